"""The picture of the page on tables: predictions for the rows that were held out, beside what was measured.

    uv run python docs/pictures/your-table.py

Half a minute. Writes docs/images/your-table.png.
"""

import tempfile
from pathlib import Path

import pandas as pd
from _page import write
from sklearn.datasets import make_friedman1

import pyrobnn as bnn
from pyrobnn.runs.run import run
from pyrobnn.runs.spec import RunSpec


def main() -> None:
    """Run the page's command, and draw the test part."""
    x, y = make_friedman1(310, n_features=6, noise=1.0, random_state=0)
    table = pd.DataFrame(x, columns=["heat", "light", "water", "soil", "wind", "age"])
    table["harvest"] = y
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plants.csv"
        table.round(3)[:300].to_csv(path, index=False)
        spec = RunSpec.from_dict({"data": {"path": str(path), "target": "harvest"}})
        result = run(spec, Path(folder) / "plants", progress=False)
    test = result.evidence.held_out
    assert test is not None
    prediction = result.evidence.posterior.predict(test.x)
    figure = bnn.plots.observed_vs_predicted(prediction, test.y, target="harvest")
    figure.axes[1].set_title("Coverage", loc="left")
    write(figure, "your-table", 3.4)


if __name__ == "__main__":
    main()

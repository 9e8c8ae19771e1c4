"""The picture of the page on tables: predictions for the rows that were held out, beside what was measured.

    uv run python docs/pictures/your-table.py

Half a minute. Writes docs/images/your-table.png.
"""

import tempfile
from pathlib import Path

import pandas as pd
from sklearn.datasets import make_friedman1

import pyrobnn as bnn
from pyrobnn.runs.run import run
from pyrobnn.runs.spec import RunSpec

OUT = Path(__file__).parents[1] / "images" / "your-table.png"


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
    figure = bnn.plots.observed_vs_predicted(result.posterior.predict(result.test.x), result.test.y, target="harvest")
    figure.set_size_inches(6.4, 4.0)
    for axis in figure.axes:
        for label in (axis.xaxis.label, axis.yaxis.label, *axis.get_xticklabels(), *axis.get_yticklabels()):
            label.set_fontsize(11)
        for text in axis.get_legend().get_texts():
            text.set_fontsize(10)
    OUT.parent.mkdir(exist_ok=True)
    figure.savefig(OUT, dpi=110)
    print(OUT, f"{OUT.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()

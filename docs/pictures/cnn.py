"""The picture of docs/how-to/cnn.md: the digits that a convolutional network is least sure of.

    uv run python docs/pictures/cnn.py

Runs the page itself; under a minute. Writes docs/images/cnn.png.
"""

import re
from pathlib import Path

from _page import write

import pyrobnn as bnn

DOCS = Path(__file__).parents[1]


def main() -> None:
    """Make the picture."""
    page = (DOCS / "how-to" / "cnn.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    exec(re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)[0], names)
    test, fits = names["test"], names["fits"]
    figure = bnn.plots.images(test, fits["radial"].predict(test.x, num_draws=50), num=12)
    write(figure, "cnn", 5.6)


if __name__ == "__main__":
    main()

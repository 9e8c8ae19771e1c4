"""The picture of docs/how-to/own-network.md: the digits that a convolutional network is least sure of.

    uv run python docs/pictures/cnn.py

Runs two blocks of the page; under a minute. Writes docs/images/cnn.png.
"""

import re
from pathlib import Path

from _page import write

import pyrobnn as bnn

DOCS = Path(__file__).parents[1]


def main() -> None:
    """Make the picture."""
    page = (DOCS / "how-to" / "own-network.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    for block in (blocks[0], next(block for block in blocks if "load_digits" in block)):
        exec(block, names)
    test, fits = names["test"], names["fits"]
    figure = bnn.plots.images(test, fits["radial"].predict(test.x, num_draws=50), num=12)
    write(figure, "cnn", 5.6)


if __name__ == "__main__":
    main()

"""The picture of docs/how-to/convergence.md: the ELBO of a fit that ended by itself.

    uv run python docs/pictures/convergence.py

Under a minute. Writes docs/images/convergence.png.
"""

from pathlib import Path

from matplotlib.text import Text
from matplotlib.ticker import EngFormatter
from PIL import Image

import pyrobnn as bnn
from pyrobnn.plots._colors import GREY
from pyrobnn.plots._style import legend

OUT = Path(__file__).parents[1] / "images" / "convergence.png"


def main() -> None:
    """Make the picture."""
    raw = bnn.datasets.sinusoid(noise=3.0)
    data = bnn.Data(raw.x, raw.y, standardize=True)
    model = bnn.BNN(
        bnn.MLP(1, [10], 1, activation="tanh"),
        prior=bnn.priors.Normal(1.0),
        likelihood=bnn.likelihoods.Gaussian(scale=3.0),
    )
    posterior = model.fit(data, guide="mean_field", seed=0, progress=False)
    print(posterior.record.stop_reason)
    print(posterior.record.convergence)
    print(bnn.diagnose(posterior, data))
    figure = bnn.plots.elbo(posterior.history)
    figure.set_size_inches(7.6, 3.4)
    for text in figure.findobj(Text):
        text.set_fontsize(10)
    for axis in figure.axes:
        for number, end in enumerate(posterior.record.convergence.cycle_ends):
            name = "" if number else "end of a cycle"
            axis.axvline(end, color=GREY, linewidth=0.8, linestyle=":", label=name)
        axis.xaxis.set_major_formatter(EngFormatter())
        legend(axis, loc="lower right", fontsize=9, frameon=True, framealpha=0.85, edgecolor="none")
    figure.savefig(OUT, dpi=110)
    Image.open(OUT).convert("RGB").quantize(96).save(OUT, optimize=True)  # few colours, a small file


if __name__ == "__main__":
    main()

"""The picture of docs/how-to/convergence.md: the ELBO of a fit that ended by itself.

    uv run python docs/pictures/convergence.py

Under a minute. Writes docs/images/convergence.png.
"""

from pathlib import Path

from matplotlib.text import Text
from PIL import Image

import pyrobnn as bnn

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
    figure.set_size_inches(7.6, 3.0)
    for text in figure.findobj(Text):
        text.set_fontsize(10)
    for axis in figure.axes:
        for end in posterior.record.convergence.cycle_ends:
            axis.axvline(end, color="#8a8f98", linewidth=0.8, linestyle=":")
    figure.savefig(OUT, dpi=110)
    Image.open(OUT).convert("RGB").quantize(96).save(OUT, optimize=True)  # few colours, a small file


if __name__ == "__main__":
    main()

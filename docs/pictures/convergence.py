"""The picture of docs/how-to/convergence.md: the ELBO of a fit that ended by itself.

    uv run python docs/pictures/convergence.py

Under a minute. Writes docs/images/convergence.png.
"""

from _page import write
from matplotlib.ticker import EngFormatter

import pyrobnn as bnn
from pyrobnn.plots._colors import GREY
from pyrobnn.plots._style import legend_below


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
    figure = bnn.plots.elbo(posterior.history, layout="column")
    for axis in figure.axes:
        for number, end in enumerate(posterior.record.convergence.cycle_ends):
            name = "" if number else "end of a cycle"
            axis.axvline(end, color=GREY, linewidth=0.8, linestyle=":", label=name)
        axis.xaxis.set_major_formatter(EngFormatter())
        legend_below(axis, ncols=3)
    write(figure, "convergence", 6.4)


if __name__ == "__main__":
    main()

"""The picture of docs/how-to/priors.md: functions drawn from six priors of one network.

    uv run python docs/pictures/priors.py

Some seconds. Writes docs/images/priors.png.
"""

import numpy as np
import torch
from _page import write
from matplotlib.figure import Figure

import pyrobnn as bnn
from pyrobnn.plots._colors import BLUE, PALE

PRIORS = {
    'Normal("he")': bnn.priors.Normal("he"),
    "Normal(3.0)": bnn.priors.Normal(3.0),
    'StudentT(2, "he")': bnn.priors.StudentT(2.0, "he"),
    "ScaleMixture()": bnn.priors.ScaleMixture(),
    "SpikeAndSlab(inclusion=0.1)": bnn.priors.SpikeAndSlab(inclusion=0.1),
    "RegularizedHorseshoe()": bnn.priors.RegularizedHorseshoe(global_scale="he"),
}
_SHOWN = 12


def main() -> None:
    """Make the picture."""
    x = torch.linspace(-2, 2, 200)[:, None]
    figure = Figure(layout="constrained")
    axes = figure.subplots(3, 2)
    for axis, (name, prior) in zip(axes.flat, PRIORS.items(), strict=True):
        model = bnn.BNN(bnn.MLP(1, [50], 1), prior=prior)
        functions = model.sample_prior_predictive(x, num_draws=2000, seed=1).draw_means.numpy()
        low, high = np.quantile(functions, [0.05, 0.95], axis=0)
        axis.fill_between(x[:, 0], low, high, color=PALE, linewidth=0)
        axis.plot(x[:, 0], functions[:_SHOWN].T, color=BLUE, linewidth=0.8)
        reach = float(np.abs([low, high]).max()) * 1.3
        axis.set(xlim=(-2, 2), ylim=(-reach, reach), xticks=[-2, 0, 2])
        axis.set_title(name, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("f(x)")
    for axis in axes[-1]:
        axis.set_xlabel("x")
    handles = [axes[0, 0].lines[0], axes[0, 0].collections[0]]
    figure.legend(handles, ["functions", "90 % of them"], loc="outside lower center", ncols=2, frameon=False)
    write(figure, "priors", 6.2)


if __name__ == "__main__":
    main()

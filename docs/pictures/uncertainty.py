"""Draw uncertainty.png and uncertainty-classes.png: the two parts of the uncertainty, of numbers and of classes."""

import matplotlib.pyplot as plt
import torch
from _page import write
from sklearn.datasets import make_moons

import pyrobnn as bnn
from pyrobnn.plots._colors import BLUE, INK, ORANGE, PALE, SHADES
from pyrobnn.plots.one_input import draw_bands

MARKS = ("o", ORANGE), ("^", "white")
LAPLACE = bnn.guides.Laplace(structure="full")


def numbers() -> None:
    """Draw bands over one input, and the two standard deviations below each other."""
    x = torch.cat([torch.linspace(-1, -0.2, 60), torch.linspace(0.4, 1, 60)])[:, None]
    noise = torch.where(x[:, 0] < 0, 0.05, 0.35)
    y = torch.sin(3 * x[:, 0]) + noise * torch.randn(120, generator=torch.Generator().manual_seed(0))
    net = bnn.MLP(1, [20], 2, activation="tanh")
    likelihood = bnn.likelihoods.Gaussian(scale="heteroscedastic")
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=likelihood)
    posterior = model.fit(x, y, guide=LAPLACE, steps=400, lr=0.05, seed=0, progress=False)
    grid = torch.linspace(-1.6, 1.6, 161)[:, None]
    prediction = posterior.predict(grid, num_draws=2000)
    epistemic, aleatoric = prediction.epistemic_std, prediction.aleatoric_std
    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, layout="constrained")
    draw_bands(upper, grid[:, 0].numpy(), prediction)
    upper.plot(x[:, 0], y, "o", color=INK, markersize=2.5, label="data")
    upper.set(xlim=(-1.6, 1.6), ylim=(-2.5, 3.5), title="prediction", ylabel="y")
    lower.plot(grid[:, 0], epistemic, color=BLUE, linewidth=1.8, label="epistemic_std")
    lower.plot(grid[:, 0], aleatoric, "--", color=ORANGE, linewidth=1.8, label="aleatoric_std")
    for low, high in ((-1, -0.2), (0.4, 1)):
        lower.axvspan(low, high, ymax=0.84, color=PALE, linewidth=0, label="" if low > 0 else "data")
    lower.set(ylim=(0, 0.75), xlabel="x", ylabel="standard deviation of y", title="two parts of its standard deviation")
    upper.legend(frameon=False, loc="upper left", ncols=2)
    lower.legend(frameon=False, loc="upper left", ncols=3, columnspacing=1)
    write(figure, "uncertainty", 5.2)


def classes() -> None:
    """Draw the mean entropy of draws and the mutual information over two moons."""
    points, labels = make_moons(100, noise=0.2, random_state=0)
    net = bnn.MLP(2, [20], 2, activation="tanh")
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood="categorical")
    posterior = model.fit(points, labels, guide=LAPLACE, steps=300, lr=0.05, seed=0, progress=False)
    across, up = torch.linspace(-1.8, 2.8, 141), torch.linspace(-1.8, 2.3, 131)
    prediction = posterior.predict(torch.cartesian_prod(across, up), num_draws=500)
    epistemic = prediction.mutual_information
    parts = {
        "aleatoric:\nentropy of a draw": prediction.entropy - epistemic,
        "epistemic:\nmutual information": epistemic,
    }
    figure, axes = plt.subplots(1, 2, sharex=True, sharey=True, layout="constrained")
    for axis, (name, values) in zip(axes, parts.items(), strict=True):
        picture = axis.pcolormesh(across, up, values.view(141, 131).T, cmap=SHADES, vmin=0, vmax=0.7, rasterized=True)
        for label, (marker, color) in enumerate(MARKS):
            axis.plot(*points[labels == label].T, marker, color=color, mec=INK, mew=0.6, ms=4)
        axis.set(title=name, xlabel="x0")
    axes[0].set_ylabel("x1")
    handles = [plt.Line2D([], [], marker=marker, color=color, mec=INK, linestyle="") for marker, color in MARKS]
    figure.legend(handles, ["class 0", "class 1"], loc="outside lower center", ncols=2, frameon=False)
    figure.colorbar(picture, ax=axes, label="part of the entropy (nats)")
    write(figure, "uncertainty-classes", 3.4)


if __name__ == "__main__":
    plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False}
    numbers()
    classes()

"""The picture of docs/how-to/ensembles.md: an ensemble, an anchored one, and SWAG.

    uv run python docs/pictures/ensembles.py

A minute or two. Writes docs/images/ensembles.png.
"""

import torch
from _page import write

import pyrobnn as bnn


def main() -> None:
    """Make the picture."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.linspace(-1, -0.3, 16), torch.linspace(0.3, 1, 16)])[:, None]
    data = bnn.Data(x, torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(32, generator=generator))
    model = bnn.BNN(
        bnn.MLP(1, [10], 1, activation="tanh"),
        prior=bnn.priors.Normal(1.0),
        likelihood=bnn.likelihoods.Gaussian(scale=0.1),
    )
    point = bnn.SVI(guide="map")
    methods = {
        "ensemble of 5 points": bnn.Ensemble(point),
        "5 anchored points": bnn.Ensemble(point, anchored=True),
        "SWAG": bnn.SWAG(point),
    }
    fits = {name: bnn.fit(model, data, method, seed=0, progress=False) for name, method in methods.items()}
    for name, posterior in fits.items():
        print(name, posterior.predict([[0.6], [0.0], [2.0]], num_draws=500).epistemic_std)
    figure = bnn.plots.compare_guides(fits, data)
    for axis in figure.axes:
        axis.label_outer()
    figure.axes[0].get_legend().remove()
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=2, frameon=False)
    write(figure, "ensembles", 3.0)


if __name__ == "__main__":
    main()

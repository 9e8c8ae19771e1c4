"""The picture of docs/how-to/guides.md: six guides on one problem, each trained until it ended by itself.

    uv run python docs/pictures/guides.py

Some minutes on two cores. Writes docs/images/guides.png.
"""

import torch
from _page import write

import pyrobnn as bnn

QUIET = {"seed": 0, "progress": False}


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
    fits = {
        "map: one point": model.fit(data, guide="map", **QUIET),
        "dropout, rate 0.1": model.fit(data, guide="dropout", **QUIET),
        "mean_field": model.fit(data, guide="mean_field", **QUIET),
        "full_rank": model.fit(data, guide="full_rank", **QUIET),
        "laplace": model.fit(data, guide="laplace", **QUIET),
        "NUTS, the reference": bnn.fit(model, data, bnn.NUTS(num_draws=500, warmup=500, num_chains=2), **QUIET),
    }
    for name, posterior in fits.items():
        print(name, posterior.record.stop_reason, posterior.predict([[0.5], [0.0], [1.5]]).epistemic_std)
    figure = bnn.plots.compare_guides(fits, data)
    for axis in figure.axes:
        axis.label_outer()
    figure.axes[0].get_legend().remove()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    write(figure, "guides", 5.0)


if __name__ == "__main__":
    main()

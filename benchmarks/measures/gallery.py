"""The five figures of the README, in results/gallery. Under three minutes on two cores."""

import torch
from matplotlib.figure import Figure
from sklearn.datasets import make_moons

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Row, each

KEY = ("figure",)
DPI = 90
QUIET = {"seed": 0, "progress": False}


def sinusoid() -> Figure:
    """Return the fit of the classic example, and what its weights know."""
    data = bnn.datasets.sinusoid()
    model = bnn.BNN(
        bnn.MLP(1, [20, 20], 1),
        prior=bnn.priors.ScaleMixture(pi=0.2, sigma1=1.0, sigma2=0.1, learnable=True),
        likelihood=bnn.likelihoods.Gaussian(scale=1.0),
    )
    guide = bnn.guides.MeanField(init_loc="prior", init_rho=0.0)
    return bnn.plots.fit_1d(model.fit(data, guide=guide, steps=3000, lr=0.03, **QUIET), data)


def guides() -> Figure:
    """Return the bands of three guides on points with a gap between them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.linspace(-1, -0.3, 16), torch.linspace(0.3, 1, 16)])[:, None]
    data = bnn.Data(x, torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(32, generator=generator))
    model = bnn.BNN(
        bnn.MLP(1, [10], 1, activation="tanh"),
        likelihood=bnn.likelihoods.Gaussian(scale=0.1),
        prior=bnn.priors.Normal(1.0),
    )
    long = {"steps": 10_000, "lr": 0.01, "schedule": "cosine_annealing_lr"}
    methods = {
        "mean field": bnn.SVI(**long),
        "Laplace": bnn.SVI(guide=bnn.guides.Laplace(structure="full"), **(long | {"steps": 3000})),
        "ensemble of ten": bnn.Ensemble(bnn.SVI(guide="map", **(long | {"steps": 3000})), members=10),
    }
    return bnn.plots.compare_guides({name: bnn.fit(model, data, m, **QUIET) for name, m in methods.items()}, data)


def moons() -> Figure:
    """Return the classes of two moons, and where the network doubts them."""
    x, y = make_moons(200, noise=0.15, random_state=0)
    data = bnn.Data(x.astype("float32"), y)
    model = bnn.BNN(bnn.MLP(2, [20], 2, activation="tanh"), likelihood="categorical", prior=bnn.priors.Normal(1.0))
    laplace = bnn.guides.Laplace(structure="full")
    return bnn.plots.decision_surface(model.fit(data, guide=laplace, steps=3000, lr=0.01, **QUIET), data)


def prediction() -> tuple[bnn.Data, bnn.Prediction]:
    """Return handwritten digits, and what a network says of them."""
    dataset = bnn.datasets.load("digits")
    train, test = dataset.split(0)
    model = bnn.BNN(bnn.MLP(64, [50], 10), prior=bnn.priors.Normal("fan_in"), likelihood="categorical")
    posterior = model.fit(
        train, guide=bnn.guides.MeanField(init_rho=-4.0), steps=3000, lr=0.01, batch_size=128, **QUIET
    )
    return test, posterior.predict(test.x, num_draws=200)


def digits() -> Figure:
    """Return the least certain handwritten digits."""
    return bnn.plots.images(*prediction(), num=12)


def risk() -> Figure:
    """Return errors against doubt."""
    test, found = prediction()
    return bnn.plots.selective_risk(found, test.y)


FIGURES = {figure.__name__: figure for figure in (sinusoid, guides, moons, digits, risk)}
OPTIONS = {"figures": list(FIGURES)}
jobs = each("figure", "figures")


def run(job: Row, options: Options) -> list[Row]:
    """Make a figure; there are no rows."""
    (options.out / "gallery").mkdir(exist_ok=True)
    FIGURES[job["figure"]]().savefig(options.out / "gallery" / f"{job['figure']}.png", dpi=DPI)
    return []


def page(rows: list[Row], options: Options) -> list[str]:
    """Return no page."""
    return []

"""How much the gradient varies from draw to draw, by the noise that the examples of a mini-batch share, on MNIST.

The network is 784-400-400-10 under a Normal(0, 1) prior, its KL in closed form or from the draw; the mini-batch of 128
of 60,000 examples stays the same. The variance of each entry of the gradient of the negative ELBO is taken over draws
of the noise and added up over the entries of a layer. The table has the variance with a shared draw divided by that of
the estimator: how many shared draws each of its draws is worth. "own weights" is the reference: 128 passes, each with
weights drawn for one example.
"""

from functools import cache, partial

import pyro
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page
from benchmarks.rows import Row, grid
from benchmarks.variance import variance

KEY = ("state", "KL", "noise")
NUM_DATA, BATCH, STEPS = 60_000, 128, 1000
ELBOS = {"analytic": TraceMeanField_ELBO, "mc": Trace_ELBO}
ESTIMATORS = {"analytic": ["flipout", "local", "own weights"], "mc": ["flipout", "local"]}
"""By KL. With "own weights" 128 draws of the KL would take the place of one, which is another estimator."""
DRAWS = {"shared": 64, "flipout": 64, "local": 64, "own weights": 4}
SCALES = {f"start, rho = {rho:g}": rho for rho in (-3.0, -5.0)}
TRAINED = f"after {STEPS} steps"
OPTIONS = {"states": [*SCALES, TRAINED]}
LAYERS = {"0": "layer 1", "2": "layer 2", "4": "layer 3", "all": "all"}
PARAMETERS = ("loc", "rho")
Batch = tuple[Tensor, Tensor]


def gradient(model: bnn.BNN, guide: nn.Module, batch: Batch, kl: str, num_data: int) -> Tensor:
    """Return an estimate of the gradient of the negative ELBO, (2, D), mu first."""
    loss = ELBOS[kl]().differentiable_loss(model, guide, *batch, num_data=num_data)
    return torch.stack(torch.autograd.grad(loss, [guide.loc, guide.rho]))


def estimate(name: str, model: bnn.BNN, guide: nn.Module, batch: Batch, kl: str) -> Tensor:
    """Return an estimate by the estimator of that name, (2, D)."""
    if name != "own weights":
        return gradient(model, guide, batch, kl, NUM_DATA)
    examples = zip(*(part.split(1) for part in batch), strict=True)
    total = torch.zeros(2, len(guide.loc))
    for example in examples:
        total += gradient(model, guide, example, kl, round(NUM_DATA / BATCH))
    return total


def by_layer(variances: Tensor, guide: nn.Module) -> dict[str, float]:
    """Return the sum of the variances of each layer and of all of them, by layer and parameter."""
    sums = {f"{layer} {name}": 0.0 for layer in LAYERS.values() for name in PARAMETERS}
    start = 0
    for site, (loc, _) in guide.moments().items():
        totals = variances[:, start : start + loc.numel()].double().sum(1).tolist()
        for name, total in zip(PARAMETERS, totals, strict=True):
            sums[f"{LAYERS[site.split('.')[0]]} {name}"] += total
            sums[f"all {name}"] += total
        start += loc.numel()
    return sums


@cache
def prepared(state: str) -> tuple[bnn.BNN, dict[str, Tensor], Batch, dict[str, float]]:
    """Return the model, the guide's parameters in a state, the mini-batch, and the accuracy if there was training."""
    data, _ = bnn.datasets.load("mnist").split(0)
    model = bnn.BNN(bnn.MLP(784, [400, 400], 10), prior=bnn.priors.Normal(1.0), likelihood="categorical")
    batch = (data.x[:BATCH], data.y[:BATCH])
    if state in SCALES:
        torch.manual_seed(0)
        return model, bnn.guides.MeanField(init_rho=SCALES[state]).build(model, *batch).state_dict(), batch, {}
    method = bnn.SVI(guide=bnn.guides.MeanField(noise="local"), steps=STEPS, batch_size=BATCH, lr=1e-3)
    posterior = bnn.fit(model, data, method, seed=0, progress=False)
    accuracy = bnn.score(posterior.predict(data.x[-5000:], num_draws=10), data.y[-5000:])["accuracy"].value
    return posterior.bnn.train(), posterior.guide.state_dict(), batch, {"accuracy": round(accuracy, 3)}


def jobs(options: Options) -> list[Row]:
    """Return the states with each KL."""
    return [{"state": state, "KL": kl, "noise": names} for state in options.states for kl, names in ESTIMATORS.items()]


def run(job: Row, options: Options) -> list[Row]:
    """Return a row for each estimator."""
    with pyro.settings.context(module_local_params=True), pyro.validation_enabled(is_validate=False):
        model, parameters, batch, reached = prepared(job["state"])
        sums = {}
        for name in ("shared", *job["noise"]):
            guide = bnn.guides.MeanField(noise="shared" if name == "own weights" else name).build(model, *batch)
            guide.load_state_dict(parameters)
            draw = partial(estimate, name, model, guide, batch, job["KL"])
            sums[name] = by_layer(variance(draw, DRAWS[name]), guide)
    shared = sums.pop("shared")
    return [
        job | {"noise": name} | {key: float(f"{shared[key] / value:.3g}") for key, value in totals.items()} | reached
        for name, totals in sums.items()
    ]


def page(rows: list[Row], options: Options) -> Page:
    """Return the table."""
    about = (
        f"MNIST, 784-400-400-10, batch {BATCH}, N = {NUM_DATA}, {DRAWS['shared']} draws (own weights: "
        f"{DRAWS['own weights']}), seed 1: variance with a shared draw / variance"
    )
    columns = [*KEY, *(f"{layer} {name}" for layer in LAYERS.values() for name in PARAMETERS)]
    cells = [[f"{row[key]:.3g}" if key not in KEY else row[key] for key in columns] for row in rows]
    reached = [
        f"Accuracy on 5000 of the training examples {TRAINED}: {value:.3f}."
        for value in {row["accuracy"] for row in rows if "accuracy" in row}
    ]
    return Page("Variance of the gradient", [about], [*grid(columns, cells), "", *reached])

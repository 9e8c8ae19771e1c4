"""How much the gradient varies from draw to draw, by the noise that the examples of a mini-batch share, on MNIST.

    uv run python benchmarks/gradient_variance.py

The network is 784-400-400-10 under a Normal(0, 1) prior, its KL in closed form or from the draw; the mini-batch of 128
of 60,000 examples stays the same. The variance of each entry of the gradient of the negative ELBO is taken over draws
of the noise and added up over the entries of a layer. The table has the variance with a shared draw divided by that of
the estimator: how many shared draws one of its draws is worth. "own weights" is the reference: 128 passes, each with
weights drawn for one example. Writes benchmarks/results/gradient-variance.md.
"""

from pathlib import Path

import pyro
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn

import pyrobnn as bnn

HERE = Path(__file__).parent
NUM_DATA, BATCH, STEPS = 60_000, 128, 1000
ELBOS = {"analytic": TraceMeanField_ELBO, "mc": Trace_ELBO}
ESTIMATORS = {"shared": "shared", "flipout": "flipout", "local": "local", "own weights": "shared"}
DRAWS = {"shared": 64, "flipout": 64, "local": 64, "own weights": 4}
SCALES = (-3.0, -5.0)
LAYERS = ("0", "2", "4")
PARAMETERS = ("loc", "rho")
Batch = tuple[Tensor, Tensor]


def gradient(model: bnn.BNN, guide: nn.Module, batch: Batch, kl: str, num_data: int) -> Tensor:
    """Return an estimate of the gradient of the negative ELBO, (2, D), mu first."""
    loss = ELBOS[kl]().differentiable_loss(model, guide, *batch, num_data=num_data)
    return torch.stack(torch.autograd.grad(loss, [guide.loc, guide.rho]))


def estimate(name: str, model: bnn.BNN, guide: nn.Module, batch: Batch, kl: str) -> Tensor:
    """Return an estimate by one of the estimators, (2, D)."""
    if name != "own weights":
        return gradient(model, guide, batch, kl, NUM_DATA)
    examples = zip(*(part.split(1) for part in batch), strict=True)
    total = torch.zeros(2, len(guide.loc))
    for example in examples:
        total += gradient(model, guide, example, kl, round(NUM_DATA / BATCH))
    return total


def variance(name: str, model: bnn.BNN, guide: nn.Module, batch: Batch, kl: str) -> Tensor:
    """Return the variance of each entry of the gradient over draws, (2, D)."""
    torch.manual_seed(1)
    mean = torch.zeros(2, len(guide.loc))
    squares = torch.zeros_like(mean)
    for count in range(1, DRAWS[name] + 1):
        value = estimate(name, model, guide, batch, kl)
        change = value - mean
        mean += change / count
        squares += change * (value - mean)
    return squares / (DRAWS[name] - 1)


def by_layer(variances: Tensor, guide: nn.Module) -> dict[tuple[str, str], float]:
    """Return the sum of the variances of each layer and of all of them, by layer and parameter."""
    sums = dict.fromkeys(((layer, name) for layer in (*LAYERS, "all") for name in PARAMETERS), 0.0)
    start = 0
    for site, (loc, _) in guide.moments().items():
        totals = variances[:, start : start + loc.numel()].double().sum(1).tolist()
        for name, total in zip(PARAMETERS, totals, strict=True):
            sums[site.split(".")[0], name] += total
            sums["all", name] += total
        start += loc.numel()
    return sums


def measure(state: str, model: bnn.BNN, trained: dict[str, Tensor], batch: Batch) -> list[str]:
    """Return the rows of the table for one state of the guide."""
    rows = []
    for kl in ELBOS:
        sums = {}
        for name, noise in ESTIMATORS.items():
            if name == "own weights" and kl == "mc":
                continue  # 128 draws of the KL instead of one: not the same estimator
            guide = bnn.guides.MeanField(noise=noise).build(model, *batch)
            guide.load_state_dict(trained)
            sums[name] = by_layer(variance(name, model, guide, batch, kl), guide)
            if name != "shared":
                ratios = " | ".join(f"{sums['shared'][key] / value:.3g}" for key, value in sums[name].items())
                rows.append(f"| {state} | {kl} | {name} | {ratios} |")
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure at the start and after training, and write the table."""
    data, _ = bnn.datasets.load("mnist").split(0)
    model = bnn.BNN(bnn.MLP(784, [400, 400], 10), prior=bnn.priors.Normal(1.0), likelihood="categorical")
    batch = (data.x[:BATCH], data.y[:BATCH])
    columns = [f"{layer} {name}" for layer in ("layer 1", "layer 2", "layer 3", "all") for name in PARAMETERS]
    lines = [
        f"MNIST, 784-400-400-10, batch {BATCH}, N = {NUM_DATA}, {DRAWS['shared']} draws (own weights: "
        f"{DRAWS['own weights']}), seed 1: variance with a shared draw / variance",
        "",
        f"| state | KL | noise | {' | '.join(columns)} |",
        "|---|---|---|" + "---|" * len(columns),
    ]
    with pyro.settings.context(module_local_params=True), pyro.validation_enabled(is_validate=False):
        for rho in SCALES:
            torch.manual_seed(0)
            guide = bnn.guides.MeanField(init_rho=rho).build(model, *batch)
            lines += measure(f"start, rho = {rho:g}", model, guide.state_dict(), batch)
        method = bnn.SVI(guide=bnn.guides.MeanField(noise="local"), steps=STEPS, batch_size=BATCH, lr=1e-3)
        posterior = bnn.fit(model, data, method, seed=0, progress=False)
        accuracy = bnn.score(posterior.predict(data.x[-5000:], num_draws=10), data.y[-5000:])["accuracy"].value
        state = f"after {STEPS} steps"
        lines += measure(state, posterior.bnn.train(), posterior.guide.state_dict(), batch)
    lines += ["", f"Accuracy on 5000 of the training examples after {STEPS} steps: {accuracy:.3f}."]
    (HERE / "results" / "gradient-variance.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

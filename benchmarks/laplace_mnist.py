"""Laplace approximations of a trained network on MNIST: last-layer full, Kronecker and diagonal, before and after.

    uv run python benchmarks/laplace_mnist.py

A 784-400-400-10 ReLU network under the prior N(0, 1 / 10) is trained to its mode on the 60,000 training images (10
epochs of Adam, batch 128, seed 0). Then three Gaussians around it, and the 10,000 test images predicted by each (probit
link); "tuned" has the precisions of the prior, one a site, that maximise the evidence (not for the full one, where it
would take minutes). Writes benchmarks/results/laplace-mnist.md.
"""

import time
from pathlib import Path

import pyro.distributions as dist
from torch import Tensor

import pyrobnn as bnn

HERE = Path(__file__).parent
EPOCHS, PRECISION = 10, 10.0
COLUMNS = {"accuracy": 1, "log_likelihood": -1, "ece": 1}
SETTINGS = {
    "last layer, full": bnn.guides.Laplace(structure="full", sites="last_layer"),
    "kron": bnn.guides.Laplace(structure="kron"),
    "diag": bnn.guides.Laplace(structure="diag"),
}


def row(name: str, probs: Tensor, test: bnn.Data, *seconds: float) -> str:
    """Return a row of the table."""
    scores = bnn.score(bnn.Prediction(dist.Categorical(probs=probs[None])), test.y)
    numbers = [f"{sign * scores[key].value:.4f}" for key, sign in COLUMNS.items()]
    return f"| {name} | {' | '.join(numbers)} | {' | '.join(f'{s:.1f}' for s in seconds)} |"


def main() -> None:
    """Train, approximate, predict, write."""
    train, test = bnn.datasets.load("mnist").split(0)
    net = bnn.MLP(784, [400, 400], 10)
    model = bnn.BNN(net, prior=bnn.priors.Normal(PRECISION**-0.5), likelihood="categorical")
    started = time.perf_counter()
    mode = bnn.fit(model, train, bnn.SVI(guide="map", epochs=EPOCHS, batch_size=128, lr=1e-3), seed=0)
    seconds = time.perf_counter() - started
    lines = [
        "# Laplace on MNIST, 784-400-400-10",
        "",
        f"Made by benchmarks/laplace_mnist.py, seed 0; training to the mode took {seconds:.0f} s.",
        "",
        "| posterior | accuracy | NLL | ECE | fit, s | predict 10,000, s |",
        "|---|---|---|---|---|---|",
    ]
    started = time.perf_counter()
    probs = mode.predict(test.x, at_mean=True).class_probs
    lines.append(row("mode", probs, test, 0.0, time.perf_counter() - started))
    for name, setting in SETTINGS.items():
        started = time.perf_counter()
        posterior = setting.around(mode.bnn, train, weights=mode.mean())
        fitted = time.perf_counter()
        probs = bnn.functional(posterior, test.x).class_probs("probit")
        lines.append(row(name, probs, test, fitted - started, time.perf_counter() - fitted))
        print(lines[-1], flush=True)
        if setting.structure == "full":
            continue  # every step of the tuning would factorise a matrix of 4010 weights
        started = time.perf_counter()
        tuned = bnn.tune_prior(posterior, train, per="site")
        fitted = time.perf_counter()
        probs = bnn.functional(tuned, test.x).class_probs("probit")
        lines.append(row(f"{name}, tuned", probs, test, fitted - started, time.perf_counter() - fitted))
        print(lines[-1], flush=True)
    (HERE / "results" / "laplace-mnist.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Fits and predicts for the measure `wall`, as a user would write it: import, fit, predict.

    whole_fits.py ENGINE CASE STEPS

Prints the seconds from the start of this script to the end of its parts. A prediction is mean and standard deviation of
the targets at the first 100 inputs, from 100 draws.
"""

import json
import sys
import time

_STARTED = time.perf_counter()
PARTS = []

from dataclasses import replace  # noqa: E402

from benchmarks.peers import cases  # noqa: E402

FITTED = cases.CASES | {"mnist": replace(cases.CASES["mlp400"], num_data=60_000)}
DRAWS, INPUTS = 100, 100


def _now(part: str) -> None:
    PARTS.append([part, round(time.perf_counter() - _STARTED, 3)])


def pyrobnn(case: cases.Case, steps: int, engine: str) -> None:
    """Fit and predict with pyrobnn."""
    import pyrobnn as bnn

    first, *hidden, last = case.widths
    likelihood = (
        bnn.likelihoods.Categorical() if case.task == "classification" else bnn.likelihoods.Gaussian(cases.NOISE)
    )
    prior = bnn.priors.ScaleMixture(pi=cases.PI, sigma1=cases.SIGMA1, sigma2=cases.SIGMA2)
    model = bnn.BNN(bnn.MLP(first, hidden, last), prior=prior, likelihood=likelihood)
    guide = bnn.guides.MeanField(init_rho=cases.INIT_RHO)
    method = bnn.SVI(guide=guide, steps=steps, lr=cases.LEARNING_RATE, batch_size=case.batch_size)
    x, y = cases.make_data(case)
    _now("import")
    posterior = bnn.fit(model, bnn.Data(x, y), method, seed=cases.SEED, engine=engine, progress=False)
    _now(f"fit, {posterior.record.engine.used}")
    prediction = posterior.predict(x[:INPUTS], num_draws=DRAWS)
    _ = prediction.mean, prediction.std
    _now("predict")


def numpyro(case: cases.Case, steps: int) -> None:
    """Fit with one jitted scan over all steps, and predict with `Predictive`, jitted."""
    import jax
    from jax import lax, random

    from benchmarks.peers.engine_numpyro import Inference, make_predict

    inference = Inference(case)
    _now("import")
    scan = jax.jit(
        lambda carry, x, y: lax.scan(lambda state, _: inference.step(state, x, y), carry, length=steps),
        donate_argnums=0,
    )
    (state, _), losses = scan(inference.init(random.PRNGKey(cases.SEED)), inference.x, inference.y)
    jax.block_until_ready(losses)
    _now("fit")
    predict, key = make_predict(inference, DRAWS), random.PRNGKey(cases.SEED + 1)
    jax.block_until_ready(predict(key, inference.svi.get_params(state), inference.x[:INPUTS]))
    _now("predict")


def pyro(case: cases.Case, steps: int) -> None:
    """Fit with `svi.step` and predict with `Predictive`."""
    import torch
    from pyro import enable_validation
    from pyro.infer import SVI, Predictive, Trace_ELBO
    from pyro.optim import Adam

    from benchmarks.peers.engine_pyro import Model, make_guide
    from benchmarks.peers.torch_parts import Batches, moments

    torch.set_flush_denormal(True)
    torch.set_num_threads(case.threads)
    enable_validation(is_validate=False)
    device = torch.device("cpu")
    batches, model = Batches(case, device), Model(case)
    guide = make_guide(case, model, device)
    _now("import")
    svi = SVI(model, guide, Adam({"lr": cases.LEARNING_RATE}), Trace_ELBO())
    for _ in range(steps):
        svi.step(*batches.draw())
    _now("fit")
    predictive = Predictive(model, guide=guide, num_samples=DRAWS, return_sites=("_RETURN",))
    f = predictive(batches.x[:INPUTS])["_RETURN"]
    moments(f.softmax(-1) if case.task == "classification" else f)
    _now("predict")


def main() -> None:
    """Do what the arguments name."""
    engine, case, steps = sys.argv[1], FITTED[sys.argv[2]], int(sys.argv[3])
    if engine.startswith("pyrobnn"):
        pyrobnn(case, steps, "eager" if engine == "pyrobnn eager" else "auto")
    else:
        {"numpyro": numpyro, "pyro": pyro}[engine](case, steps)
    print(json.dumps(PARTS))


if __name__ == "__main__":
    main()

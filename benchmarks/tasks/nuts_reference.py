# /// script
# requires-python = "==3.12.*"
# dependencies = ["numpyro==0.22.*", "jax==0.12.*", "numpy>=2"]
# ///
"""NUTS by NumPyro, an implementation independent of this library, for the task `nuts`.

    uv run python -m benchmarks.tasks.nuts                     # all problems
    uv run benchmarks/tasks/nuts_reference.py PROBLEM.npz OUT.npz  # one of them, as that command calls it

Reads x, y, test, widths and kind ("gaussian" with noise, "heteroscedastic", "categorical"); the network has tanh units
and N(0, 1) priors on weights and biases. Writes, for 1000 thinned draws of 4 chains at the test inputs, mean and std of
the targets or the probability of class 1, with the largest R-hat and smallest effective sample size of the function.
"""

import os
import sys
import time
from itertools import pairwise
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS, Predictive

SMALLEST_SCALE = 1e-3
"""Offset that pyrobnn adds to the softplus of a heteroscedastic scale."""
CHAINS, DRAWS, WARMUP, THIN = 4, 2500, 1000, 10


def network(x: Any, widths: tuple[int, ...]) -> Any:
    """Return the outputs for weights drawn from the prior, (N, outputs)."""
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        weight = numpyro.sample(f"weight_{index}", dist.Normal(jnp.zeros((inputs, outputs)), 1).to_event(2))
        bias = numpyro.sample(f"bias_{index}", dist.Normal(jnp.zeros(outputs), 1).to_event(1))
        x = x @ weight + bias
        x = jnp.tanh(x) if index + 2 < len(widths) else x
    return x


def model(x: Any, y: Any, widths: tuple[int, ...], kind: str, noise: float) -> None:
    """The Bayesian network; it records the quantities that are compared, by their names in the output."""
    f = network(x, widths)
    if kind == "categorical":
        numpyro.deterministic("probs", jax.nn.softmax(f)[:, 1])
        numpyro.sample("y", dist.Categorical(logits=f), obs=y)
        return
    scale = jnp.full(len(x), noise) if kind == "gaussian" else jax.nn.softplus(f[:, 1]) + SMALLEST_SCALE
    numpyro.deterministic("mean", f[:, 0])
    numpyro.deterministic("std", scale)
    numpyro.sample("y", dist.Normal(f[:, 0], scale), obs=y)


def main(problem_file: str, out_file: str) -> None:
    """Sample the posterior of a problem."""
    given = np.load(problem_file)
    widths, kind = tuple(int(width) for width in given["widths"]), str(given["kind"])
    settings = {"widths": widths, "kind": kind, "noise": float(given["noise"])}
    sampler = MCMC(
        NUTS(model, target_accept_prob=0.9, max_tree_depth=10),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="parallel",
        progress_bar=False,
    )
    started = time.perf_counter()
    sampler.run(jax.random.PRNGKey(0), given["x"], given["y"], **settings)
    seconds = time.perf_counter() - started
    weights = {k: v for k, v in sampler.get_samples().items() if k.startswith(("weight", "bias"))}
    names = ["probs"] if kind == "categorical" else ["mean", "std"]
    predict = Predictive(model, weights, return_sites=names)
    functions = {k: np.asarray(v) for k, v in predict(jax.random.PRNGKey(1), given["test"], None, **settings).items()}
    chains = functions[names[0]].reshape(CHAINS, DRAWS, -1)
    np.savez_compressed(
        out_file,
        seconds=seconds,
        max_rhat=np.max(split_gelman_rubin(chains)),
        min_ess=np.min(effective_sample_size(chains)),
        num_diverging=int(sampler.get_extra_fields()["diverging"].sum()),
        **{k: v[::THIN].astype(np.float16) for k, v in functions.items()},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

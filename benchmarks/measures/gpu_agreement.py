"""Every guide, prior and likelihood on the device, beside a CPU in float64.

Every pair of parts occurs in one eager step; every part occurs in two steps whose second is captured, and in 200 steps.
Steps are compared for the same noise, network and data: `elbo_error` is the largest difference of log-likelihood and KL
over their size, `step_error` that of all parameters after plain gradient steps over the largest move of any. The 200
steps draw their own noise: `distance` is the difference of the mean ELBO of the last 50, in standard errors.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import torch

import pyrobnn as bnn
from benchmarks.gpu import Checks, measure_of, size
from benchmarks.measures.harness import Options
from benchmarks.noise import SameNoise
from benchmarks.rows import Row
from pyrobnn import guides, likelihoods, priors
from pyrobnn.testing.checks import accepted_targets, make_net, pairwise

PRIORS = [
    priors.Normal("fan_in"),
    priors.ScaleMixture(),
    priors.ScaleMixture(learnable=True),
    priors.StudentT(5.0),
    priors.Laplace(),
    priors.SpikeAndSlab(),
    priors.Hierarchical(),
    priors.ARD(),
    priors.Horseshoe(),
    priors.RegularizedHorseshoe(),
]
LIKELIHOODS = [
    likelihoods.Gaussian(0.3),
    likelihoods.Gaussian("learned"),
    likelihoods.Gaussian("heteroscedastic"),
    likelihoods.Laplace(),
    likelihoods.StudentT(),
    likelihoods.Bernoulli(),
    likelihoods.Categorical(),
    likelihoods.Poisson(),
    likelihoods.NegativeBinomial(),
    likelihoods.CensoredGaussian(lower=0.0),
    likelihoods.Ordinal(3),
]
GUIDES = [
    guides.MeanField(),
    guides.MeanField(init_loc="prior"),
    guides.MeanField(noise="local"),
    guides.MeanField(path_derivative=True),
    guides.FullRank(),
    guides.LowRank(3),
    guides.MatrixNormal(),
    guides.Radial(),
    guides.Flow(),
    guides.Map(),
    guides.Dropout(),
    guides.Auto("AutoNormal"),
]
_RATE = 1e-3
_STEP_ERROR = 2e-3
_ERRORS = 6.0
"""Standard errors that two ELBOs may lie apart; neighbouring steps of a fit are alike, so that errors are too small."""


def checks(options: Options) -> Checks:
    """Yield the combinations."""
    rotation = [
        (PRIORS[k % len(PRIORS)], GUIDES[k % len(GUIDES)], LIKELIHOODS[k % len(LIKELIHOODS)])
        for k in range(max(len(PRIORS), len(GUIDES), len(LIKELIHOODS)))
    ]
    for parts in rotation[: size(options, len(rotation), 1)]:
        yield f"captured: {_name(parts)}", partial(_steps, options.device, "captured", 2, parts)
    for parts in rotation[: size(options, len(rotation), 1)]:
        yield f"200 steps: {_name(parts)}", partial(_elbos, options.device, size(options, 200, 60), parts)
    pairs = list(pairwise(PRIORS, GUIDES, LIKELIHOODS))
    for parts in pairs[:: size(options, 1, len(pairs) // 4)]:
        yield f"eager: {_name(parts)}", partial(_steps, options.device, "eager", 1, parts)


KEY, OPTIONS, jobs, run, page = measure_of("Every part on a GPU beside a CPU in float64", checks)


def _name(parts: tuple[Any, ...]) -> str:
    return ", ".join(map(repr, parts))


def _fit(device: str, dtype: torch.dtype, parts: tuple[Any, ...], **settings: Any) -> bnn.Posterior:
    prior, guide, likelihood = parts
    y, outputs = next(accepted_targets(likelihood))
    x = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(1))
    model = bnn.BNN(make_net(outputs).to(dtype), prior=prior, likelihood=likelihood)
    data = bnn.Data(x, y, standardize=False)
    return model.fit(data, seed=0, device=device, guide=guide, progress=False, **settings)


def _steps(device: str, engine: str, steps: int, parts: tuple[Any, ...]) -> Row:
    sgd: dict[str, Any] = {"optimizer": bnn.optimizers.Optimizer("sgd"), "steps": steps}
    with SameNoise(device):
        here = _fit(device, torch.float32, parts, engine=engine, lr=_RATE, **sgd)
    with SameNoise("cpu"):
        there, start = (_fit("cpu", torch.float64, parts, engine="eager", lr=lr, **sgd) for lr in (_RATE, 1e-30))
    if here.record.engine.used != engine:
        return {"holds": False, "failures": [f"ran {here.record.engine.used}: {here.record.engine.reason}"]}
    terms = [np.array([fit.history.log_likelihood, fit.history.kl]) for fit in (here, there)]
    elbo_error = float((np.abs(terms[0] - terms[1]) / (1 + np.abs(terms[1]))).max())
    ours, exact, before = map(_flat, (here, there, start))
    step_error = float((ours - exact).abs().max() / (exact - before).abs().max())
    return {"holds": max(elbo_error, step_error) < _STEP_ERROR, "elbo_error": elbo_error, "step_error": step_error}


def _flat(posterior: bnn.Posterior) -> torch.Tensor:
    parameters = (*posterior.guide.parameters(), *posterior.bnn.parameters())
    return torch.cat([value.detach().cpu().double().reshape(-1) for value in parameters])


def _elbos(device: str, steps: int, parts: tuple[Any, ...]) -> Row:
    last = [
        _fit(place, dtype, parts, steps=steps, engine="eager", lr=0.01).history.elbo[-50:]
        for place, dtype in ((device, torch.float32), ("cpu", torch.float64))
    ]
    means, variances = ([float(f(np.asarray(values))) for values in last] for f in (np.mean, np.var))
    error = math.sqrt(sum(variances) / len(last[0])) + 1e-3 * abs(means[1])
    distance = abs(means[0] - means[1]) / error
    return {"holds": distance < _ERRORS, "elbo": means[0], "elbo_cpu": means[1], "distance": distance}

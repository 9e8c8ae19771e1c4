"""The Laplace approximation with diagonal and Kronecker-factored curvature: fit and linearised prediction.

784-128-10, float32, the Gaussian put around a network as it starts; beside laplace-torch, whose batches are tensors on
the device. Prediction is mean and covariance of the outputs of 200 inputs.
`evidence_error` is the relative difference of the log evidence to a CPU in float64.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import pyrobnn as bnn
from benchmarks import laplace_torch
from benchmarks.gpu import Checks, measure_of, size
from benchmarks.measures.harness import Options
from benchmarks.rows import Row
from benchmarks.timing import milliseconds


def checks(options: Options) -> Checks:
    """Yield structure by structure, ours and theirs."""
    for structure in ("diag", "kron"):
        yield f"pyrobnn, {structure}", partial(_ours, options, structure)
        yield f"laplace-torch, {structure}", partial(_theirs, options, structure)


KEY, OPTIONS, jobs, run, page = measure_of("The Laplace approximation on a GPU", checks)


def _problem(options: Options) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, size(options, 128, 16)), nn.ReLU(), nn.Linear(size(options, 128, 16), 10))
    count = size(options, 6000, 300)
    return net, torch.rand(count, 784), torch.randint(0, 10, (count,)), torch.rand(200, 784)


def _around(structure: Any, net: nn.Module, x: Tensor, y: Tensor, device: str) -> bnn.Posterior:
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood="categorical")
    data = bnn.Data(x, y, standardize=False)
    return bnn.guides.Laplace(structure=structure).around(model, data, device=device, progress=False)


def _ours(options: Options, structure: str) -> Row:
    net, x, y, test = _problem(options)
    fit_ms = milliseconds(lambda: _around(structure, net, x, y, options.device), options.device, seconds=1, warm_up=1)
    posterior = _around(structure, net, x, y, options.device)
    predict_ms = milliseconds(lambda: bnn.functional(posterior, test), options.device, seconds=0.5, warm_up=1)
    exact = _around(structure, net.double(), x.double(), y, "cpu")
    evidences = [fit.info["laplace"]["log_evidence"] for fit in (posterior, exact)]
    error = abs(evidences[0] / evidences[1] - 1)
    return {"fit_ms": fit_ms, "predict_ms": predict_ms, "evidence_error": error, "holds": error < 1e-4}


def _theirs(options: Options, structure: str) -> Row:
    from laplace.curvature import BackPackGGN

    net, x, y, test = (value.to(options.device) for value in _problem(options))
    fit = partial(laplace_torch.fit, net, laplace_torch.Batches(x, y, 256), structure, backend=BackPackGGN)
    fit_ms = milliseconds(fit, options.device, seconds=1, warm_up=1)
    fitted = fit()
    predict_ms = milliseconds(lambda: fitted._glm_predictive_distribution(test), options.device, seconds=0.5, warm_up=1)
    return {"fit_ms": fit_ms, "predict_ms": predict_ms}

"""What `test_parallel.py` runs in two processes under torchrun; the first writes what was found to a file as JSON."""

import json
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyrobnn as bnn
from pyrobnn._torch.processes import is_main_process
from pyrobnn.inference.training.checkpoint import digest
from pyrobnn.inference.training.state import TrainingState

NOISE, NUM_GRADIENTS = 0.5, 500


def problem(num=21):
    """Rows come in equal pairs, so that with an even number both processes hold the same examples."""
    generator = torch.Generator().manual_seed(0)
    half = torch.linalg.qr(torch.randn((num + 1) // 2, 2, generator=generator, dtype=torch.float64)).Q
    noise = torch.randn((num + 1) // 2, generator=generator, dtype=torch.float64)
    x = half.repeat_interleave(2, 0)[:num] * torch.tensor([2.0, 5.0])
    return x, x @ torch.tensor([1.0, -0.5], dtype=torch.float64) + NOISE * noise.repeat_interleave(2)[:num]


def data_of(name):
    x, y = problem()
    return bnn.Data(x, y, weights=torch.linspace(0.5, 3.0, len(y)) if name.startswith("weighted") else None)


def linear(start=0.0):
    net = nn.Linear(2, 1, bias=False).double()
    nn.init.constant_(net.weight, start)
    return bnn.BNN(net, likelihood=bnn.likelihoods.Gaussian(scale=NOISE), prior=bnn.priors.Normal(1.0))


def declared():
    return bnn.BNN(bnn.MLP(2, [4], 1), prior=bnn.priors.Normal(1.0))


MODES = {
    "batches": {"steps": 23, "batch_size": 8, "clip_norm": 1.0},
    "all data, shared out unevenly": {"steps": 10},
    "a batch size that is too large": {"steps": 10, "batch_size": 50},
    "weighted": {"steps": 23, "batch_size": 8},
    "weighted, all data": {"steps": 10},
}
TO_THE_MODE = {"guide": "map", "lr": 0.1}
FOR_GRADIENTS = bnn.SVI(steps=NUM_GRADIENTS, lr=1e-30, optimizer="sgd", kl="analytic")
REGRESSION = bnn.SVI(
    guide=bnn.guides.MeanField(path_derivative=True),
    steps=400,
    lr=0.3,
    schedule={"type": "exponential_lr", "gamma": 0.98},
)
LAPLACE = bnn.SVI(guide="laplace", steps=20, lr=0.1)


def fit(method, data=None, model=None, **settings):
    settings = {"seed": 0, "engine": "eager", "progress": False} | settings
    method = bnn.DataParallel(method) if isinstance(method, bnn.SVI) else method
    return bnn.fit(model or linear(), problem() if data is None else data, method, **settings)


def weights(posterior):
    return posterior.mean()["weight"][0].tolist()


def moments_of_gradients():
    """Mean and variance of the gradient, after the average over processes, at the start of the guide."""
    noted, update = [], TrainingState.update

    def noting(self):
        noted.append(torch.cat([p.grad.reshape(-1) for p in self.guide.parameters()]))
        update(self)

    TrainingState.update = noting
    try:
        posterior = fit(FOR_GRADIENTS, problem(20))
    finally:
        TrainingState.update = update
    gradients = torch.stack(noted)
    start = [p.detach().reshape(-1).tolist() for p in posterior.guide.parameters()]
    return {"start": start, "mean": gradients.mean(0).tolist(), "variance": gradients.var(0).tolist()}


def failing(name, **arguments):
    """Type, message and seconds of the error that a fit ends with."""
    started = time.time()
    try:
        fit(**arguments)
    except Exception as error:
        found = [type(error).__name__, str(error)]
    else:
        found = ["no error", ""]
    return {name: [*found, time.time() - started]}


def stop_at_50(progress):
    return progress.step == 50


def meddle(progress):
    with torch.no_grad():
        next(progress.guide.parameters()).add_(1.0)


def broken(progress):
    raise ZeroDivisionError("a callback failed")


def differing(value):
    """Return the value in the first process and another in the second."""
    return value if is_main_process() else value + 1


def refusals():
    x, y = problem(20)
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    found = {}
    found |= failing("seeds", method=bnn.SVI(steps=5), seed=differing(0))
    found |= failing("data", method=bnn.SVI(steps=5), data=(x + differing(0), y))
    found |= failing("batch size", method=bnn.SVI(steps=5, batch_size=7))
    found |= failing("loader", method=bnn.SVI(steps=5), data=loader)
    found |= failing("too few", method=bnn.SVI(steps=5), data=(x[:1], y[:1]))
    found |= failing("callback", method=bnn.SVI(steps=500), callbacks=[broken])
    infinite = y.clone()
    infinite[1] = 1e300
    return found | failing("not finite", method=bnn.SVI(steps=500), data=(x, infinite))


def main(folder):
    settings = {name: bnn.SVI(**TO_THE_MODE, **options) for name, options in MODES.items()}
    found = {"modes": {name: weights(fit(method, data_of(name))) for name, method in settings.items()}}
    assert not dist.is_initialized()
    dist.init_process_group("gloo")
    found["in a group of the user's"] = weights(
        fit(
            bnn.SVI(**TO_THE_MODE, **MODES["batches"]), model=linear(differing(0.0))
        )  # the first's start is that of all
    )
    found["gradients"] = moments_of_gradients()
    regression = fit(REGRESSION, problem(20))
    found["regression"] = [weights(regression), regression.draw(1, seed=0)["weight"].tolist()]
    found["regression"][1] = [float(s) for s in guide_scales(regression)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = fit(bnn.SVI(steps=60, batch_size=4), model=declared(), callbacks=[stop_at_50], engine="captured")
    found["posterior"] = {
        "info": {key: posterior.info[key] for key in ("engine", "data_parallel", "method", "stop_reason", "num_steps")},
        "digest": digest([*posterior.guide.parameters(), *posterior.bnn.parameters()]),
        "elbo": posterior.history.elbo.tolist(),
        "warnings": [str(one.message) for one in caught],
    }
    found["laplace"] = fit(LAPLACE).info["laplace"]["log_evidence"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        meddled = fit(bnn.SVI(steps=60), callbacks=[meddle])
    messages = [str(one.message) for one in caught if not issubclass(one.category, bnn.PoorFitWarning)]
    found["meddled"] = [digest([*meddled.guide.parameters()]), messages]
    found["refusals"] = refusals()
    found["is main"] = is_main_process()
    everything = [None, None]
    dist.all_gather_object(everything, found)
    if is_main_process():
        (folder / "found.json").write_text(json.dumps(everything))
    dist.destroy_process_group()
    if not is_main_process():
        TrainingState.differentiate = None  # this process alone fails, and nothing catches it
    fit(bnn.SVI(steps=10_000_000))


def guide_scales(posterior):
    rho = dict(posterior.guide.named_parameters())["rho"].detach().reshape(-1)
    return torch.nn.functional.softplus(rho)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

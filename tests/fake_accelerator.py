"""What runs on a device that is not there: tensors without numbers, which refuse to meet tensors of the CPU.

Run as a script, in a process of its own since the device stays registered, with the number n of which each n-th case is
tried: it prints a JSON table from each case to what went wrong, or None, and how often a training step reads a number
back from the device.

Left out is what leaves torch on purpose: the low-rank Laplace approximation and quantiles of Student's t, which SciPy
computes, and linearised predictions, since torch takes no forward derivatives of such tensors.

The device is torch's own stand-in for an accelerator. Fake tensors on "cuda" do for everything but derivatives:
torch's autograd asks the driver of a GPU before it begins.
"""

import copy
import functools
import itertools
import json
import sys
import warnings
from contextlib import contextmanager

import torch
from test_conformance import GUIDES, LIKELIHOODS, PRIORS
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import pyrobnn as bnn
from benchmarks.networks import resnet18
from pyrobnn import guides, likelihoods, priors
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.inference.data import make_source
from pyrobnn.inference.laplace import complete
from pyrobnn.inference.training.state import start
from pyrobnn.testing.checks import accepted_targets, make_inputs, make_net

DEVICE = "elsewhere"
_MODES = []
"""Kept: the garbage collector frees their references to storage twice (torch 2.15)."""
LAPLACE = [
    guides.Laplace(structure=structure, **settings)
    for structure, settings in [
        ("diag", {}),
        ("kron", {}),
        ("kron", {"sites": "last_layer", "linearized": False}),
        ("full", {}),
        ("full", {"subnetwork": 3}),
        ("full", {"curvature": "hessian"}),
        ("diag", {"curvature": "hessian"}),
        ("kron", {"curvature": "fisher"}),
        ("diag", {"curvature": "recursion"}),
    ]
]


class _Module:
    """What torch asks of the module of a device: here, that there is none of it."""

    is_available = staticmethod(lambda: False)
    is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 0)
    current_device = staticmethod(lambda: 0)
    manual_seed_all = staticmethod(lambda seed: None)
    _is_in_bad_fork = staticmethod(lambda: False)


class _Reads(TorchDispatchMode):
    """Answers where the host asks for the number in a tensor that has none, and counts those asked of the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            asked = args[0]
            self.count += asked.device.type == DEVICE
            if isinstance(asked, FakeTensor) and asked.constant is None:
                is_any = getattr(asked, "is_any", False)  # "is any of them wrong?" is answered no, "are all right?" yes
                return not is_any if asked.dtype == torch.bool else 1.0 if asked.is_floating_point() else 1
        if func in (torch.ops.aten.allclose.default, torch.ops.aten.equal.default):
            return True
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.any.default:
            result.is_any = True
        return result


def _move(module, function):
    """Do what `nn.Module._apply` does, with new tensors: it cannot change the device of a fake one."""
    for child in module.children():
        _move(child, function)
    for name, value in module._parameters.items():
        if value is not None:
            module._parameters[name] = nn.Parameter(function(value.detach()), requires_grad=value.requires_grad)
    for name, value in module._buffers.items():
        if value is not None:
            module._buffers[name] = function(value)
    return module


@contextmanager
def begun(model, data, **settings):
    """Yield a fit on the device before its first step, as `fit` begins it."""
    method = bnn.SVI(steps=10, **settings)
    source = make_source(data, model, method.batch_size, seed=0)
    ready = model.fresh()  # made of real tensors, which can be copied

    def fresh(*, device, target_scale):
        ready.to(device)
        ready.scale_targets(target_scale)
        return ready

    object.__setattr__(model, "fresh", fresh)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    _MODES.append(mode)
    with mode, _Reads() as reads, seeded(0, "fit"), fast_pyro():
        posterior, fit = start(model, method, source, 0, DEVICE)
        fit.bnn.train()
        yield posterior, fit, reads, source


def check(prior, likelihood, guide, *, predict):
    """Build a model of three parts, do a step, and predict; Laplace puts its Gaussian first."""
    y, outputs = next(accepted_targets(likelihood))
    model = bnn.BNN(make_net(outputs), prior=prior, likelihood=likelihood)
    with begun(model, bnn.Data(make_inputs(len(y)), y), guide=guide) as (posterior, fit, _, source):
        fit.advance(1)
        fit.bnn.eval()
        if isinstance(guide, guides.Laplace):
            complete(posterior, guide, source, progress=False)
        if predict:
            posterior.mean()
            prediction = posterior.predict(make_inputs(5), num_draws=4, linearized=False)
            values = [prediction.mean, prediction.variance, prediction.log_prob(y[:5]), prediction.sample(seed=0)]
            if isinstance(likelihood, likelihoods.Gaussian):
                values.append(prediction.quantile([0.1, 0.9]))
            left = [value.device.type for value in values if value.device.type not in (DEVICE, "cpu")]
            assert not left, left


def check_moved(prior, likelihood, guide):
    """Prepare a fit on the CPU, move the module, and compute its loss and gradients there for a batch of the CPU."""
    y, outputs = next(accepted_targets(likelihood))
    batch = (make_inputs(len(y)), y)
    model = bnn.BNN(make_net(outputs), prior=prior, likelihood=likelihood)
    kl = "quadrature" if isinstance(prior, priors.ScaleMixture) else "auto"
    fit = bnn.prepare(model, bnn.SVI(guide=guide, kl=kl), num_data=100, like=batch, seed=0)
    unchecked = fit.bnn.settings["likelihood"] = copy.copy(likelihood)
    object.__setattr__(unchecked, "check_targets", lambda *_: None)  # it looks at values
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    _MODES.append(mode)
    with mode, _Reads(), seeded(0):
        fit.to(DEVICE)
        fit.loss(batch).backward()
        left = [name for name, p in fit.named_parameters() if p.grad is not None and p.device.type != DEVICE]
    assert not left, left


def reads_in_a_step(net, data, **settings):
    """Return how often the third step of a fit waits for a number from the device."""
    likelihood = "gaussian" if data.y.is_floating_point() else "categorical"
    model = bnn.BNN(net, prior="scale_mixture", likelihood=likelihood)
    with begun(model, data, batch_size=8, **settings) as (_, fit, reads, _):
        fit.advance(2)
        reads.count = 0
        fit.advance(1)
        return reads.count


def cases():
    """Yield a setting of every prior, guide and likelihood beside plain others, by name."""
    plain = {"prior": priors.Normal(1.0), "likelihood": likelihoods.Gaussian(0.3), "guide": guides.MeanField()}
    parts = {
        "prior": {type(one): one for one in PRIORS}.values(),
        "likelihood": LIKELIHOODS,
        "guide": [*{type(one): one for one in GUIDES}.values(), *LAPLACE],
    }
    for kind, settings in parts.items():
        for setting in settings:
            given = plain | {kind: setting}
            yield f"{kind} {setting!r}", functools.partial(check, **given, predict=kind != "prior")
            if setting not in LAPLACE:
                yield f"moved, {kind} {setting!r}", functools.partial(check_moved, **given)


def main():
    """Run everything, and print what came out."""
    _setup_privateuseone_for_python_backend(DEVICE, backend_module=_Module())
    nn.Module._apply = _move
    # a fake tensor cannot be copied, as this copies the network
    sys.modules[start.__module__].check_calls = lambda *_, **__: None
    warnings.simplefilter("ignore")
    failures = {}
    num_cases = 0
    for name, run in itertools.islice(cases(), 0, None, int(sys.argv[1])):
        num_cases += 1
        try:
            run()
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {str(error)[:300]}"
    table = bnn.Data(torch.randn(20, 3), torch.randn(20))
    images = bnn.Data(torch.randn(20, 3, 32, 32), torch.arange(20) % 10)
    reads = {
        "MLP": reads_in_a_step(make_net(), table),
        "MLP, two particles, clipped": reads_in_a_step(make_net(), table, num_particles=2, clip_norm=1.0),
        "MLP, analytic": reads_in_a_step(make_net(), table, kl="quadrature"),
        "ResNet-18": reads_in_a_step(resnet18(width=2), images),
    }
    print(json.dumps({"cases": num_cases, "failures": failures, "reads": reads}))


if __name__ == "__main__":
    main()

"""The density that chains sample: of unconstrained latents given data, with its gradient, eager or compiled."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call, grad_and_value

from pyrobnn._core.lock import ONE_THREAD
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch
from pyrobnn.guides.empirical import segments
from pyrobnn.guides.sites import Site
from pyrobnn.inference.cost import Work
from pyrobnn.inference.engine import Choice, Engine, capture, choose
from pyrobnn.posterior.record import EngineRecord

ValueAndGradient = Callable[[Tensor], tuple[Tensor, Tensor]]


class LogJoint(nn.Module):
    """log p(D | w) + log p(w) + log |dw/dz| as a function of the unconstrained latents z, one flat vector.

    w(z) is Pyro's bijection to the support of each site, the identity for weights on the real line. The log-likelihood
    of a part of the data is scaled by N / B, by the plate of the model, so that it is unbiased for that of all.
    """

    def __init__(self, bnn: BNN, sites: list[Site], num_data: int) -> None:
        super().__init__()
        self.bnn = bnn
        self._num_data = num_data
        self._transforms = {site.name: site.transform for site in sites}
        self._shapes = [site.unconstrained.shape for site in sites]

    def forward(self, z: Tensor, *batch: Tensor) -> Tensor:
        """Return the log density, (), of latents z (P,) and a batch in the units of the model."""
        values, volumes = {}, []
        for (name, transform), part in zip(self._transforms.items(), segments(z, self._shapes), strict=True):
            values[name] = part if transform is None else transform(part)
            if transform is not None:
                volumes.append(transform.log_abs_det_jacobian(part, values[name]).sum())
        with poutine.block():
            model = poutine.condition(self.bnn, data=values)
            trace = poutine.trace(model).get_trace(*batch, num_data=self._num_data)
        trace.compute_log_prob(lambda name, node: not site_is_subsample(node))
        densities = [node["log_prob_sum"] for node in trace.nodes.values() if "log_prob_sum" in node]
        return torch.stack([*densities, *volumes]).sum()

    def constrain(self, z: Tensor) -> Tensor:
        """Return the values w(z) of unconstrained latents (..., P) as flat vectors (..., Q)."""
        pairs = zip(self._transforms.values(), self._shapes, segments(z, self._shapes), strict=True)
        parts = [(part if transform is None else transform(part), len(shape)) for transform, shape, part in pairs]
        return torch.cat([part.reshape(*z.shape[:-1], -1) for part, _ in parts], -1)

    def unconstrain(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the unconstrained latents z (P,) of values by site name."""
        parts = [values[name] if t is None else t.inv(values[name]) for name, t in self._transforms.items()]
        return torch.cat([part.reshape(-1) for part in parts])


class Potential:
    """U(z) = -log p(z, D) as Pyro's kernels call it, on {"z": vector}, with a gradient that comes with the value.

    Args:
        evaluate: returns the value (), and the gradient (P,), at z (P,), as new tensors.

    Attributes:
        num_evaluations: how often it was called.
    """

    def __init__(self, evaluate: ValueAndGradient) -> None:
        self.evaluate = evaluate
        self.num_evaluations = 0

    def __call__(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return U(z), (), from which autograd gets the gradient that `evaluate` returned."""
        ONE_THREAD.let_waiting_in()
        self.num_evaluations += 1
        return _Evaluated.apply(parameters["z"], self.evaluate)


class _Evaluated(torch.autograd.Function):
    """A value whose gradient is known with it."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, evaluate: ValueAndGradient) -> Tensor:
        value, gradient = evaluate(z.detach())
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return outer * gradient, None


def eager_potential(log_joint: LogJoint, data: Batch) -> ValueAndGradient:
    """Return U and its gradient through Pyro and autograd; data are all examples."""

    def evaluate(z: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = z.detach().requires_grad_()
            energy = -log_joint(point, *data)
            (gradient,) = torch.autograd.grad(energy, point)
        return energy.detach(), gradient

    return evaluate


def captured_potential(
    log_joint: LogJoint, data: Batch, like: Tensor, compiler: Any = None
) -> tuple[ValueAndGradient, Path | None]:
    """Return U and its gradient as one compiled graph, and the library that holds it, if there is one.

    Numbers of the model are inputs of the graph: the same library serves a model with others.

    Raises:
        NotCapturable: with the reason.
    """
    from pyrobnn.inference.svi.capture.compiler import compile_graph  # imports that eager chains do without
    from pyrobnn.inference.svi.capture.loop import make_loop
    from pyrobnn.inference.svi.capture.record import lift_constants, record
    from pyrobnn.inference.svi.capture.step import drop_unused

    model = {name: t.detach() for name, t in (*log_joint.named_parameters(), *log_joint.named_buffers())}

    def step(place: Tensor, value: Tensor, gradient: Tensor, *tensors: Tensor) -> tuple[()]:
        batch, state = tensors[: len(data)], dict(zip(model, tensors[len(data) :], strict=True))
        found, energy = grad_and_value(lambda z: -functional_call(log_joint, state, (z, *batch)))(place)
        value.copy_(energy)
        gradient.copy_(found)
        return ()

    place, value, gradient = like.clone(), like.new_zeros(()), torch.zeros_like(like)
    leaves = [place, value, gradient, *data, *model.values()]
    graph = record(step, leaves)
    constants = lift_constants(graph)
    inputs = drop_unused(graph, leaves + constants)
    program = (compiler or compile_graph)(graph, like.device)
    loop = make_loop(program, inputs)

    def evaluate(z: Tensor) -> tuple[Tensor, Tensor]:
        place.copy_(z)
        loop(1)
        return value.clone(), gradient.clone()

    return evaluate, program if isinstance(program, Path) else None


def make_potential(
    log_joint: LogJoint, data: Batch, like: Tensor, engine: Engine, num_evaluations: int
) -> tuple[Potential, EngineRecord]:
    """Return the potential under the engine that was asked for or pays, and the record of that choice.

    "auto" counts the work of an evaluation at the latents `like`, (P,), and multiplies it by their rough number.
    """
    eager = eager_potential(log_joint, data)
    choice = Choice(engine, engine)
    if engine == "auto":
        with Work() as work:
            eager(like)
        choice = choose(work, num_evaluations, like.device.type)

    def make(compiler: Any) -> ValueAndGradient:
        return captured_potential(log_joint, data, like, compiler)[0]

    captured, record = capture(choice, make, what="chains run", from_step=1)
    return Potential(captured or eager), record


def is_finite(evaluate: ValueAndGradient, z: Tensor) -> bool:
    """Say whether U and its gradient are finite at z (P,)."""
    value, gradient = evaluate(z)
    return bool(value.isfinite() & gradient.isfinite().all())

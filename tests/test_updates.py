"""The updates that a captured step makes against the optimisers of torch, over 8 steps of given gradients.

Parameters, gradients and learning rates are random from seed 0. Each comparison is to rounding: 1e-12 relative in
float64 and 1e-5 in float32, where both sides sum the same terms in another order, and as much of the typical size, 1.
"""

import itertools
import math

import pytest
import torch

from pyrobnn.inference.capture.updates import UPDATES, clip

STEPS = 8
SHAPES = {"matrix": (3, 4), "vector": (5,), "number": ()}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
DTYPES = list(TOLERANCE)


def grid(**choices):
    """All combinations of options."""
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


ADAM = grid(weight_decay=[0, 0.1], maximize=[False, True], betas=[(0.9, 0.999), (0.5, 0.8)])
SGD = [
    options
    for options in grid(
        weight_decay=[0, 0.1], momentum=[0, 0.9], dampening=[0, 0.3], nesterov=[False, True], maximize=[False, True]
    )
    if not options["nesterov"] or (options["momentum"] and not options["dampening"])  # torch refuses the others
]
CASES = [
    *((torch.optim.Adam, options) for options in ADAM),
    (torch.optim.Adam, {"eps": 0.3}),
    (torch.optim.Adam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    *((torch.optim.AdamW, options) for options in ADAM),
    (torch.optim.AdamW, {"eps": 0.3}),
    *((torch.optim.SGD, options) for options in SGD),
]


def name_of(case):
    return "-".join([case[0].__name__, *(f"{key}={value}" for key, value in case[1].items() if value)])


every_case = pytest.mark.parametrize(("cls", "options"), CASES, ids=map(name_of, CASES))
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


class Reference:
    """An optimiser of torch after its first step, as a captured step finds it, and the gradients of the others."""

    def __init__(self, cls, options, dtype, seed=0):
        self.dtype = dtype
        generator = torch.Generator().manual_seed(seed)

        def random(shape):
            return torch.randn(shape, dtype=dtype, generator=generator)

        self.parameters = {name: torch.nn.Parameter(random(shape)) for name, shape in SHAPES.items()}
        # Gradients of other sizes at other steps, so that running means and maxima differ.
        self.gradients = [
            {name: random(shape) * math.exp(math.sin(step)) for name, shape in SHAPES.items()} for step in range(STEPS)
        ]
        self.lrs = (0.001 + 0.1 * torch.rand(STEPS, generator=generator, dtype=torch.float64)).tolist()
        self.optimizer = cls(self.parameters.values(), lr=0.1, **options)
        self.step(0)
        self.update = UPDATES[cls]
        self.group = {key: value for key, value in self.optimizer.param_groups[0].items() if key != "params"}

    def step(self, index):
        self.optimizer.param_groups[0]["lr"] = self.lrs[index]
        for name, parameter in self.parameters.items():
            parameter.grad = self.gradients[index][name].clone()
        self.optimizer.step()

    def rates(self, index):
        return torch.tensor([self.lrs[index], *self.update.rates(self.group, index + 1)], dtype=self.dtype)

    def values(self):
        return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    def states(self):
        return {
            name: {
                key: value.clone()
                for key, value in self.optimizer.state[parameter].items()
                if key != "step" and value is not None
            }
            for name, parameter in self.parameters.items()
        }


def assert_same(found, expected, dtype):
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.one_in(6)
@every_dtype
@every_case
def test_updates_are_those_of_torch(cls, options, dtype):
    reference = Reference(cls, options, dtype)
    values, states = reference.values(), reference.states()
    for index in range(1, STEPS):
        reference.step(index)
        rates = reference.rates(index)
        for name in SHAPES:
            gradient = reference.gradients[index][name]
            values[name], states[name] = reference.update.apply(
                values[name], gradient, states[name], rates, reference.group
            )
        assert_same(values, reference.values(), dtype)
        assert_same(states, reference.states(), dtype)


def clipped_by_torch(gradients, max_norm):
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients.values()]
    for parameter, gradient in zip(parameters, gradients.values(), strict=True):
        parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return {name: parameter.grad for name, parameter in zip(gradients, parameters, strict=True)}


def some_gradients(dtype, scale, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {name: scale * torch.randn(shape, dtype=dtype, generator=generator) for name, shape in SHAPES.items()}


@every_dtype
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-3, 0.3, 1.0, 50.0, 1e6])
@pytest.mark.parametrize("max_norm", [1e-6, 0.5, 10.0])
def test_clipped_gradients_are_those_of_torch(scale, max_norm, dtype):
    gradients = some_gradients(dtype, scale)
    clipped = clip(gradients, max_norm)
    torch.testing.assert_close(clipped, clipped_by_torch(gradients, max_norm), rtol=TOLERANCE[dtype], atol=0.0)
    if scale <= 0.3 and max_norm == 10.0:  # below the bound they stay bit by bit
        assert all(torch.equal(clipped[name], gradients[name]) for name in gradients)


@pytest.mark.parametrize("strange", [math.inf, math.nan])
def test_clipping_gradients_that_are_not_finite_does_as_torch_does(strange):
    gradients = some_gradients(torch.float64, 1.0)
    gradients["vector"][1] = strange
    torch.testing.assert_close(clip(gradients, 1.0), clipped_by_torch(gradients, 1.0), equal_nan=True)

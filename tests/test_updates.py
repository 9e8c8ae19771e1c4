"""The updates that a captured step makes against the optimisers of torch, over 8 steps of given gradients.

Parameters, gradients and learning rates are random from seed 0. Each comparison is to rounding: 1e-12 relative in
float64 and 1e-5 in float32, where both sides sum the same terms in another order, and as much of the typical size, 1.
"""

import itertools
import math

import pytest
import torch

from pyrobnn.inference.capture.updates import UPDATES, clip

SHAPES = {"matrix": (3, 4), "vector": (5,), "number": ()}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def grid(**choices):
    """All combinations of options."""
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


ADAM = grid(weight_decay=[0, 0.1], maximize=[False, True], betas=[(0.9, 0.999), (0.5, 0.8)])
SWITCHES = {"nesterov": [False, True], "maximize": [False, True]}
SGD = [
    options
    for options in grid(weight_decay=[0, 0.1], momentum=[0, 0.9], dampening=[0, 0.3], **SWITCHES)
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


every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def random(dtype, generator, scale=1.0):
    return {name: scale * torch.randn(shape, dtype=dtype, generator=generator) for name, shape in SHAPES.items()}


@pytest.mark.one_in(6)
@every_dtype
@pytest.mark.parametrize(("cls", "options"), CASES, ids=map(name_of, CASES))
def test_updates_are_those_of_torch(cls, options, dtype):
    """From the state after a first step, as a captured step finds it; the sizes of gradients vary, and so do maxima."""
    generator, update, close = torch.Generator().manual_seed(0), UPDATES[cls], {"rtol": TOLERANCE[dtype]}
    parameters = {name: torch.nn.Parameter(value) for name, value in random(dtype, generator).items()}
    optimizer = cls(parameters.values(), lr=0.1, **options)
    (settings,), values, states = optimizer.param_groups, {}, {}
    group = {key: value for key, value in settings.items() if key != "params"}
    for step in range(8):
        gradients, lr = random(dtype, generator, math.exp(math.sin(step))), 0.001 + 0.1 * math.cos(step) ** 2
        if step:
            rates = torch.tensor([lr, *update.rates(group, step + 1)], dtype=dtype)
            values, states = update.of_all(values, gradients, states, rates, group)
        settings["lr"] = lr
        for name, parameter in parameters.items():
            parameter.grad = gradients[name].clone()
        optimizer.step()
        of_torch = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        kept = {name: optimizer.state[parameter] for name, parameter in parameters.items()}
        memories = {
            name: {key: value.clone() for key, value in memory.items() if key != "step" and value is not None}
            for name, memory in kept.items()
        }
        values, states = (values, states) if step else (of_torch, memories)
        torch.testing.assert_close((values, states), (of_torch, memories), atol=TOLERANCE[dtype], **close)


def clipped_by_torch(gradients, max_norm):
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients.values()]
    for parameter, gradient in zip(parameters, gradients.values(), strict=True):
        parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return {name: parameter.grad for name, parameter in zip(gradients, parameters, strict=True)}


@every_dtype
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-3, 0.3, 1.0, 50.0, 1e6, math.inf, math.nan])
@pytest.mark.parametrize("max_norm", [1e-6, 0.5, 10.0])
def test_clipped_gradients_are_those_of_torch(scale, max_norm, dtype):
    gradients = random(dtype, torch.Generator().manual_seed(1), scale if math.isfinite(scale) else 1.0)
    if not math.isfinite(scale):
        gradients["vector"][1] = scale
    clipped, expected = clip(gradients, max_norm), clipped_by_torch(gradients, max_norm)
    torch.testing.assert_close(clipped, expected, rtol=TOLERANCE[dtype], atol=0.0, equal_nan=True)
    if scale <= 0.3 and max_norm == 10.0:  # below the bound they stay bit by bit
        assert all(torch.equal(clipped[name], gradients[name]) for name in gradients)

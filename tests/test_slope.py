"""Values and gradients that are recorded once: against autograd, after changes of what they read."""

import pytest
import torch

import pyrobnn as bnn
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.inference.capture.graph import recorded_slope
from pyrobnn.inference.scales.fixed_point import Rows
from pyrobnn.inference.scales.tuned_mode import FirstScales, Search, TunedMode

X = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
REAL = X @ torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
TARGETS = {
    "gaussian": REAL,
    "student_t": REAL,
    "categorical": (REAL > 0).long(),
    "negative_binomial": REAL.exp().round(),
}


def mode(likelihood, energy=None):
    outputs = 2 if likelihood == "categorical" else 1
    net = bnn.MLP(3, [8], outputs, activation="silu").build().double()
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=likelihood).fresh().eval()
    weights = {name: value.detach().clone() for name, value in model.initial_values.items()}
    y = model.cast_targets(TARGETS[likelihood], model.like)
    search, first = Search(per="input", rounds=1), FirstScales(0.3)
    return TunedMode(model, weights, Rows(X, (y,)), search, first=first, energy=energy)


@pytest.mark.parametrize("likelihood", TARGETS)
def test_recorded_slope_is_that_of_autograd(likelihood):
    found = mode(likelihood)
    for _ in range(2):
        found.to_mode(5, 0.0)
        found.tune()
    found.to_mode(0, 0.0)  # takes the precisions over
    found.to_mode(3, 0.0)
    energy = found.energy
    assert energy.recorded is not None
    value = energy(energy.places)
    gradients = torch.autograd.grad(value, list(energy.places.values()))
    expected = torch.cat([value.detach().reshape(1), *(gradient.reshape(-1) for gradient in gradients)])
    bound = 1e-7 if likelihood == "negative_binomial" else 1e-10  # large values of lgamma cancel
    torch.testing.assert_close(energy.recorded(), expected, rtol=bound, atol=bound)


def test_a_record_serves_another_start_and_leaves_the_first_as_it_is():
    with fast_pyro():
        first = mode("gaussian")
        start = {name: value.clone() for name, value in first.weights.items()}
        first.to_mode(40, 0.0)
        expected = first.weights
        first.tune()
        first.to_mode(40, 0.0)
        other, scale = mode("gaussian", first.energy), first.bnn.likelihood.scale.clone()
        other.weights = start
        other.to_mode(40, 0.0)
        assert other.energy is first.energy
        assert first.bnn.likelihood.scale.equal(scale)
        assert not scale.equal(other.bnn.likelihood.scale)
    torch.testing.assert_close(other.weights, expected, rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 3), (3, 1), (1, 1, 2), (2, 1, 1)])
@pytest.mark.parametrize("order", [1, -1])
def test_parts_of_one_vector_are_told_apart_even_those_of_one_number(sizes, order):
    flat = torch.arange(1.0, 1.0 + sum(sizes), dtype=torch.float64)
    parts = {f"{at}": part for at, part in enumerate(flat.split(sizes))}
    places = {name: parts[name].requires_grad_() for name in list(parts)[::order]}

    def energy(values):
        return torch.stack([float(name) + values[name].square().sum() for name in values]).prod()

    recorded = recorded_slope(energy, places)
    flat.data.mul_(1.5)
    value = energy(places)
    gradients = torch.autograd.grad(value, list(places.values()))
    torch.testing.assert_close(recorded(), torch.cat([value.detach().reshape(1), *gradients]))


@pytest.mark.parametrize("per", ["site", "input"])
def test_a_line_through_one_input_is_found_from_any_start(per):
    """Its weight and its bias are single numbers, in one vector: the mode is that of ridge regression."""
    x, y = X[:, :1], REAL - 3.0
    model = bnn.BNN(bnn.MLP(1, [], 1, dtype="float64"), likelihood=bnn.likelihoods.Gaussian(0.5)).fresh().eval()
    weights = {name: torch.full_like(value, 7.0) for name, value in model.initial_values.items()}
    found = TunedMode(model, weights, Rows(x, (model.cast_targets(y, model.like),)), Search(per=per))
    found.to_mode(50, 0.0)
    precision = torch.cat([value.reshape(-1) for value in found.prior.by_site().values()])
    rows = torch.cat([x, torch.ones_like(x)], 1)
    expected = torch.linalg.solve(rows.T @ rows / 0.25 + precision.diag(), rows.T @ y / 0.25)
    assert found.energy.recorded is not None
    torch.testing.assert_close(torch.cat([value.reshape(-1) for value in found.weights.values()]), expected)

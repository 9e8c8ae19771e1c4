"""The parts of a captured step, each against its eager counterpart: Pyro's ELBO, the recorded function, torch's noise.

Seed 7; 1e-5 relative in float32, since unrolled matrix products add in another order, and 1e-10 in float64.
"""

import contextlib
import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import nn

import pyrobnn as bnn
from pyrobnn._core.errors import NotCapturable
from pyrobnn._core.random import seeded
from pyrobnn._torch.devices import flushed_denormals
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.distributions.latents import ScaleMixtureNormal
from pyrobnn.guides import Auto, Map, MeanField
from pyrobnn.inference.capture.graph import (
    _cuda_loop,
    drop_unused,
    interpreted,
    lift_constants,
    make_loop,
    record,
    slope,
)
from pyrobnn.inference.capture.objective import ELBO, Objective, WeightLatents, check_reparameterized
from pyrobnn.inference.training.captured import RandomInputs
from pyrobnn.likelihoods import Bernoulli, Categorical, Gaussian
from pyrobnn.priors import Normal, ScaleMixture
from pyrobnn.tape import runner

BATCH, NUM_DATA, KL_WEIGHT = 8, 50, 0.7
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
aten = torch.ops.aten
PRIORS = {
    "normal": Normal(0.8),
    "fan in": Normal("fan_in", loc=0.1),
    "mixture": ScaleMixture(pi=0.3),
    "learned mixture": ScaleMixture(pi=0.2, sigma1=1.0, sigma2=0.3, learnable=True),
    "two learned mixtures": bnn.priors.resolve(
        {"*.bias": ScaleMixture(pi=0.4, learnable=True), "*": ScaleMixture(pi=0.2, learnable=True)}
    ),
    "mixture and normal": bnn.priors.resolve({"*.bias": Normal(2.0), "*": ScaleMixture(learnable=True)}),
    "two normals": bnn.priors.resolve({"*.bias": Normal(2.0), "*": Normal(0.5)}),
    "last layer": bnn.priors.resolve({"2.*": "normal", "*": None}),
    "latent scale": bnn.priors.Hierarchical("log_normal"),
}
GUIDES = {
    "mean field": MeanField(),
    "map": Map(),
    "AutoNormal": Auto("AutoNormal"),
    "AutoDiagonalNormal": Auto("AutoDiagonalNormal"),
    "AutoMultivariateNormal": Auto("AutoMultivariateNormal"),
    "AutoLowRankMultivariateNormal": Auto("AutoLowRankMultivariateNormal", {"rank": 2}),
    "by name": bnn.guides.resolve({"2.*": Auto("AutoMultivariateNormal"), "*": "mean_field"}),
    "points and normals": bnn.guides.resolve({"*.bias": "map", "*": "mean_field"}),
}
LIKELIHOODS = {
    "known noise": Gaussian(0.3),
    "learned noise": Gaussian("learned"),
    "learned noise of two columns": Gaussian("learned"),
    "heteroscedastic": Gaussian("heteroscedastic"),
    "heteroscedastic, two columns": Gaussian("heteroscedastic"),
    "bernoulli": Bernoulli(),
    "categorical": Categorical(),
}
OUTPUTS = {"learned noise of two columns": 2, "heteroscedastic": 2, "heteroscedastic, two columns": 4, "categorical": 3}


def problem(prior=PRIORS["normal"], guide=GUIDES["mean field"], likelihood="known noise", dtype=torch.float64):
    """A model, its guide away from its starting values, and a batch."""
    with seeded(0), fast_pyro():
        outputs = OUTPUTS.get(likelihood, 1)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).to(dtype)
        model = bnn.BNN(net, prior=prior, likelihood=LIKELIHOODS[likelihood])
        columns = outputs // 2 if likelihood.startswith("hetero") else outputs
        x, y = torch.randn(BATCH, 3, dtype=dtype), torch.randn(BATCH, columns, dtype=dtype).squeeze(1)
        if columns > 1 and "columns" in likelihood:
            model.scale_targets(torch.tensor([1.0, 2.0]))
        if likelihood == "bernoulli":
            y = (y > 0).to(dtype)
        if likelihood == "categorical":
            y = y.argmax(1)
        guide = guide.build(model, x, y)
        with torch.no_grad():
            for parameter in (*model.parameters(), *guide.parameters()):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model, guide, x, y


def gradients(model, guide):
    named = dict(nn.ModuleDict({"model": model, "own": guide}).named_parameters())
    found = {name: parameter.grad for name, parameter in named.items()}
    for parameter in named.values():
        parameter.grad = None
    return found


def by_pyro(model, guide, x, y, *, kl, num_data=NUM_DATA, kl_weight=KL_WEIGHT):
    elbo = ELBO(kl, 1)
    with seeded(7), fast_pyro(), WeightLatents(kl_weight):
        elbo.differentiable_loss(model, guide, x, y, num_data=num_data).backward()
    return (elbo.log_likelihood, elbo.kl), gradients(model, guide)


def by_objective(model, guide, x, y, *, kl, num_data=NUM_DATA, kl_weight=KL_WEIGHT):
    with seeded(7), fast_pyro():
        log_likelihood, divergence = Objective(model, guide, num_data=num_data, kl=kl)(x, y)
        (kl_weight * divergence - log_likelihood).backward()
    return (log_likelihood.detach(), divergence.detach()), gradients(model, guide)


def assert_as_pyro(model, guide, x, y, *, kl="mc", **settings):
    dtype = x.dtype
    terms, gradient = by_objective(model, guide, x, y, kl=kl, **settings)
    expected_terms, expected = by_pyro(model, guide, x, y, kl=kl, **settings)
    assert [term.dtype for term in terms] == [torch.float64] * 2
    torch.testing.assert_close(terms, expected_terms, rtol=TOLERANCE[dtype], atol=0.0)
    with_gradient = [{name for name, value in each.items() if value is not None} for each in (gradient, expected)]
    assert with_gradient[0] == with_gradient[1]
    assert any(value is not None and bool(value.any()) for value in expected.values())
    for name, value in expected.items():
        if value is not None:
            tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype] * float(value.abs().max())}
            torch.testing.assert_close(gradient[name], value, **tolerance, msg=lambda m, n=name: f"{n}: {m}")


every_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)


@pytest.mark.one_in(5)
@every_dtype
@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("prior", PRIORS)
def test_objective_and_gradient_are_those_of_pyro(prior, guide, dtype):
    if prior == "last layer" and guide in ("by name", "points and normals"):
        guide = "mean field"  # a pattern would match nothing, or leave nothing
    assert_as_pyro(*problem(PRIORS[prior], GUIDES[guide], dtype=dtype))


@pytest.mark.one_in(3)
@every_dtype
@pytest.mark.parametrize("guide", ["mean field", "AutoMultivariateNormal"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_log_likelihood_and_gradient_are_those_of_pyro(likelihood, guide, dtype):
    prior = PRIORS["learned mixture"]
    assert_as_pyro(*problem(prior, GUIDES[guide], likelihood, dtype=dtype))


@every_dtype
@pytest.mark.parametrize(
    ("prior", "guide"),
    [
        *((prior, "mean field") for prior in ("normal", "fan in", "two normals", "last layer")),
        *((prior, "map") for prior in ("normal", "learned mixture")),
        ("two normals", "points and normals"),
    ],
)
def test_analytic_objective_and_gradient_are_those_of_pyro(prior, guide, dtype):
    assert_as_pyro(*problem(PRIORS[prior], GUIDES[guide], "learned noise", dtype=dtype), kl="analytic")


@pytest.mark.parametrize("kl", ["mc", "analytic", "quadrature"])
@pytest.mark.parametrize("num_data", [BATCH, 11, 1000])
def test_only_the_log_likelihood_of_a_batch_is_scaled(num_data, kl):
    parts = problem(likelihood="learned noise")
    assert_as_pyro(*parts, kl=kl, num_data=num_data)
    (whole, divergence), _ = by_objective(*parts, kl=kl, num_data=BATCH)
    (scaled, same), _ = by_objective(*parts, kl=kl, num_data=num_data)
    assert float(scaled) == pytest.approx(float(whole) * num_data / BATCH, rel=1e-12)
    assert float(same) == float(divergence)


class TiltedNormal(dist.Normal):
    """A normal times exp(-|value|), which is drawn as the normal but has another density."""

    def log_prob(self, value):
        return super().log_prob(value) - value.abs()


@dataclasses.dataclass(frozen=True)
class PriorOf:
    """The prior that a function gives for each value."""

    law: object

    def build(self, values):
        module = PyroModule()
        module.forward = lambda name, value: self.law(value)
        return module


@pytest.mark.parametrize(
    "law",
    [
        lambda value: TiltedNormal(torch.zeros_like(value), 1.0).to_event(value.ndim),
        lambda value: dist.Normal(torch.zeros_like(value), 0.5).mask(value > 0).to_event(value.ndim),
    ],
    ids=["a subclass of the normal", "a mask"],
)
def test_priors_keep_their_own_density(law):
    assert_as_pyro(*problem(PriorOf(law)))


class HandWritten(PyroModule):
    """Normal draws of all weights around learned means, each of them by `draw`."""

    def __init__(self, model, draw):
        super().__init__()
        self.starts = nn.ParameterList([nn.Parameter(value.clone()) for value in model.initial_values.values()])
        self.names, self.draw = list(model.initial_values), draw

    def forward(self, *args, **kwargs):
        for name, loc in zip(self.names, self.starts, strict=True):
            self.draw(name, loc)


def hand_written(draw):
    model, _, x, y = problem()
    with fast_pyro():
        return model, HandWritten(model, draw), x, y


def normal(loc, scale=0.3):
    return dist.Normal(loc, scale).to_event(loc.ndim)


class NotReparameterized(dist.Normal):
    has_rsample = False


def draw_without_reparameterization(name, loc):
    pyro.sample(name, NotReparameterized(loc, 0.3).to_event(loc.ndim))


def draw_masked(name, loc):
    with pyro.poutine.mask(mask=name != "0.weight"):
        pyro.sample(name, normal(loc))


def draw_fixed_biases(name, loc):
    if name.endswith("bias"):
        draw_without_reparameterization(name, loc.detach())
    else:
        pyro.sample(name, normal(loc))


@pytest.mark.parametrize("draw", [lambda name, loc: pyro.sample(name, normal(loc)), draw_masked, draw_fixed_biases])
def test_guides_written_by_hand_give_the_elbo_of_pyro(draw):
    parts = hand_written(draw)
    with fast_pyro():
        check_reparameterized(*parts[1:])
    assert_as_pyro(*parts)


def draw_with_a_factor(name, loc):
    value = pyro.sample(name, normal(loc))
    pyro.factor(f"{name} factor", -value.square().sum(), has_rsample=True)


def draw_from_a_learned_mixture(name, loc):
    pi = torch.tensor(0.5, dtype=loc.dtype)
    pyro.sample(name, ScaleMixtureNormal(pi, loc.square().mean().sqrt(), pi).expand(loc.shape).to_event(loc.ndim))


def draw_around_a_reparameterized_site(name, loc):
    centre = pyro.sample(f"{name} centre", normal(loc), infer={"is_auxiliary": True})
    draw_without_reparameterization(name, centre)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (draw_with_a_factor, "the guide has the factor '0.weight factor'"),
        (draw_without_reparameterization, "'0.weight' is not reparameterised"),
        (draw_from_a_learned_mixture, "not reparameterised"),
        (draw_around_a_reparameterized_site, "'0.weight' is not reparameterised"),
    ],
)
def test_other_guides_are_refused_with_the_name_of_the_site(draw, message):
    with fast_pyro(), pytest.raises(NotCapturable, match=message):
        check_reparameterized(*hand_written(draw)[1:])


def recorded(function, *inputs):
    """The outcome of a function of tensors as its graph has it, and as it is, both from seed 0."""
    out = torch.zeros_like(function(*inputs))

    def in_place(out, *inputs):
        out.copy_(function(*inputs))
        return ()

    before = [value.clone() for value in inputs]
    graph = record(in_place, [out, *inputs])
    assert not out.any()
    given = drop_unused(graph, [out, *inputs, *lift_constants(graph)])
    with seeded(0):
        expected = function(*inputs)
    for make in (interpreted, make_loop):
        out.zero_()
        with seeded(0):
            make(graph, given)(1)
        assert all(map(torch.equal, before, inputs))
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    return graph, out


def targets(graph):
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def some(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def loops_until_small(x):
    while x.norm() > 1:
        x = x / 2
    return x


def as_step(function):
    """An objective and its derivative, as the captured step has them."""

    def step(x):
        x.copy_(slope(lambda values: (function(values["x"]).sum(), ()), {"x": x})[0]["x"])
        return ()

    return step


def in_place(function):
    def step(x):
        x.copy_(function(x))
        return ()

    return step


def raises(x):
    raise ValueError("no such thing")


BRANCHES, LEAVES = "branches on values of tensors", "(cannot be recorded|turns a tensor into an array)"


@pytest.mark.parametrize("wrapped", [in_place, as_step])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x if x.sum() > 0 else -x, BRANCHES),
        (lambda x: x.sin() if x[0] > 0 else x, BRANCHES),
        (loops_until_small, BRANCHES),
        (lambda x: x + torch.from_numpy(np.sin(x.detach().numpy())), LEAVES),
        (lambda x: x + torch.as_tensor(np.cos(np.asarray(x.detach()))), LEAVES),
        (lambda x: x + torch.tensor(x.tolist()), LEAVES),
        (raises, r"cannot be recorded \(ValueError: no such thing\)"),
    ],
)
def test_functions_that_branch_on_values_or_leave_torch_are_refused(function, message, wrapped):
    with pytest.raises(NotCapturable, match=f"the model {message}"):
        record(wrapped(function), [some(3)])


def test_constants_become_inputs():
    number, counted, vector = torch.tensor(2.5), torch.full((1, 1), 3), torch.arange(3.0)
    graph, _ = recorded(lambda x: (x * number + counted + 0.5).sum(0) + vector, some(3))
    assert not graph.graph.find_nodes(op="get_attr")


RANDOM = {
    "normal_": lambda x: x * torch.empty(3).normal_(),
    "normal_ of given moments": lambda x: x * torch.empty(3).normal_(0.5, 2.0),
    "normal_ of named moments": lambda x: x * torch.empty(3).normal_(std=2.0, mean=0.5),
    "uniform_": lambda x: x * torch.empty(3).uniform_(),
    "uniform_ of given bounds": lambda x: x * torch.empty(3).uniform_(-1.0, 3.0),
    "uniform_ of a named bound": lambda x: x * torch.empty(3).uniform_(to=5.0),
    "Normal": lambda x: dist.Normal(x, 0.5).rsample(),
    "Laplace": lambda x: dist.Laplace(x, 0.5).rsample(),
    "Uniform": lambda x: dist.Uniform(x, x + 1).rsample(),
    "MultivariateNormal": lambda x: dist.MultivariateNormal(x, scale_tril=torch.eye(3) * 0.5).rsample(),
    "LowRankMultivariateNormal": lambda x: dist.LowRankMultivariateNormal(x, x[:, None], x.square()).rsample(),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_operations_are_recorded_as_they_draw(name):
    graph, _ = recorded(RANDOM[name], some(3))
    assert {aten.randn_like.default, aten.rand_like.default, aten.rand.default} & {*targets(graph)}


def ignores_the_result(x):
    noise = torch.zeros(3)
    noise.normal_()
    return x + noise


@pytest.mark.parametrize("function", [ignores_the_result, lambda x: x + nn.init.normal_(torch.zeros(3))])
def test_in_place_draws_whose_result_is_read_from_the_tensor_are_right_or_refused(function):
    with contextlib.suppress(NotCapturable):
        recorded(function, some(3))


def noisy(function, shape, num_rows, dtype=torch.float32):
    """A graph that writes what a function of zeros draws to the row at its position, with its noise and inputs."""
    inputs = [torch.zeros((), dtype=torch.int64), torch.zeros(num_rows, *shape, dtype=dtype)]

    def step(position, rows):
        drawn = function(torch.zeros(shape, dtype=dtype))
        rows.index_copy_(0, position.reshape(1), drawn.unsqueeze(0))
        position.add_(1)
        return ()

    graph = record(step, inputs)
    noise = RandomInputs(graph, graph.graph.find_nodes(op="placeholder")[0], num_rows)
    graph.recompile()
    return graph, noise, inputs


def run(graph, noise, inputs, num_steps):
    for done in range(0, num_steps, noise.num_rows):
        count = min(noise.num_rows, num_steps - done)
        noise.draw(count)
        for _ in range(count):
            graph(*inputs, *noise.inputs)
    return inputs[1][:num_steps]


def mixed(like):
    """Normal and uniform numbers, in an order that a change of it would show."""
    first = torch.randn_like(like)
    second = torch.rand_like(like)
    third = torch.randn(like.shape, dtype=like.dtype)
    return first + 10 * second + 100 * third + 1000 * torch.rand(like.shape, dtype=like.dtype)


@pytest.mark.parametrize("function", [torch.randn_like, torch.rand_like, mixed])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("shape", "num_rows", "rows_drawn"), [((3, 7), 16, 16), ((), 5, 5), ((64, 2**10), 80, 1)])
def test_noise_is_that_of_torch_in_the_order_of_eager_steps(function, shape, num_rows, rows_drawn, dtype):
    graph, noise, inputs = noisy(function, shape, num_rows, dtype)
    assert noise.num_rows == rows_drawn
    operations = 4 if function is mixed else 1
    expected_shape = (rows_drawn, *shape) if rows_drawn > 1 else shape
    assert [value.shape for value in noise.inputs] == [expected_shape] * operations
    assert not any("rand" in str(target) for target in targets(graph))
    with seeded(0):
        found = run(graph, noise, inputs, 4)
    with seeded(0):
        expected = torch.stack([function(torch.zeros(shape, dtype=dtype)) for _ in range(4)])
    if rows_drawn == 1 and dtype == torch.float32 and function is not torch.rand_like:  # the library draws
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 if function is torch.randn_like else 1e-3)
    elif function is mixed:
        torch.testing.assert_close(found, expected)
    else:
        assert torch.equal(found, expected)


MANY = 2**18


@pytest.mark.parametrize("draws", [True, False])
def test_many_normal_numbers_are_those_of_torch_up_to_rounding(draws, monkeypatch, request):
    """Drawn by the library, or by torch, if that is a version that draws otherwise."""
    request.addfinalizer(functools.partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(2)
    monkeypatch.setattr("pyrobnn.inference.training.captured.draws_as_torch", lambda: draws)
    graph, noise, inputs = noisy(torch.randn_like, (2, MANY // 2), 2)
    with seeded(0):
        found, after = run(graph, noise, inputs, 2), torch.rand(3)
    with seeded(0):
        expected = torch.stack([torch.randn(2, MANY // 2) for _ in range(2)])
        assert torch.equal(after, torch.rand(3))
    assert torch.equal(found, expected) is not draws
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("skipped", [0, 1, 600, 1000])
@pytest.mark.parametrize("size", [16, 17, 31, 32, 623, 624, 625, 100_003])
def test_the_library_draws_the_normal_numbers_of_torch(size, skipped):
    """Wherever the state of the generator is; from 16 numbers on torch draws 16 at once, the last ones twice."""
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        with seeded(skipped):
            torch.rand(skipped)
            numbers = torch.empty(size)
            runner.draw_normals(numbers)
            found.append((numbers, torch.get_rng_state()))
    torch.set_num_threads(before)
    with seeded(skipped):
        torch.rand(skipped)
        expected, state = torch.randn(size), torch.get_rng_state()
    assert all(torch.equal(numbers, found[0][0]) and torch.equal(after, state) for numbers, after in found)
    torch.testing.assert_close(found[0][0], expected, rtol=1e-5, atol=1e-5)


def test_a_torch_that_draws_otherwise_is_noticed(monkeypatch):
    before = torch.get_rng_state()
    assert runner.draws_as_torch.__wrapped__()
    monkeypatch.setattr(runner, "draw_normals", lambda out: out.uniform_())
    assert not runner.draws_as_torch.__wrapped__()
    monkeypatch.setattr(runner, "draw_normals", lambda out: out.normal_().mul_(1.001))
    assert not runner.draws_as_torch.__wrapped__()
    assert torch.equal(torch.get_rng_state(), before)


def keeps_denormals():
    """Whether the smallest normal number of NumPy, halved, is more than nothing."""
    return bool(np.float32(np.finfo(np.float32).tiny) / np.float32(2) > 0)


@pytest.mark.parametrize("flushed_before", [False, True])
def test_denormals_are_flushed_inside_and_as_before_outside(flushed_before):
    assert keeps_denormals()
    torch.set_flush_denormal(flushed_before)
    try:
        with flushed_denormals():
            assert not keeps_denormals()
            with flushed_denormals():
                assert not keeps_denormals()
            assert not keeps_denormals()
        assert keeps_denormals() != flushed_before
        with pytest.raises(KeyError), flushed_denormals():
            raise KeyError
        assert keeps_denormals() != flushed_before
    finally:
        torch.set_flush_denormal(False)


def test_entries_written_into_a_mask_are_seen_by_what_follows():
    def masked(x):
        mask = torch.full((8, 8), -10000.0)
        mask[torch.arange(8)[None], torch.arange(8)[:, None]] = 0
        return torch.softmax(x + mask, dim=1)

    _, found = recorded(masked, some(8, 8))
    assert float(found.sum()) == pytest.approx(8)


def test_a_cuda_graph_starts_from_the_values_that_its_inputs_had(monkeypatch):
    """Stand-ins for CUDA's streams and graphs; inputs are a leaf, an expanded tensor and one that steps write to."""

    @contextlib.contextmanager
    def capturing(_):
        before = [tensor.clone() for tensor in inputs]
        yield
        inputs[2].copy_(before[2])  # kernels are noted and not run

    def add(x, y, total):
        total.add_((x * y).sum())
        return ()

    graph = record(add, [torch.ones(3), torch.ones(3), torch.zeros(())])
    inputs = [torch.arange(3.0).requires_grad_(), torch.ones(()).expand(3), torch.zeros(())]
    stream = SimpleNamespace(wait_stream=lambda _: None)
    replayed = SimpleNamespace(replay=lambda: interpreted(graph, inputs)(1))
    stand_ins = {"CUDAGraph": lambda: replayed, "graph": capturing}
    stand_ins |= dict.fromkeys(["Stream", "current_stream"], lambda: stream)
    stand_ins |= dict.fromkeys(["stream", "device"], contextlib.nullcontext)
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    loop = _cuda_loop(graph, inputs)
    assert float(inputs[2]) == 0
    loop(2)
    assert float(inputs[2]) == 6

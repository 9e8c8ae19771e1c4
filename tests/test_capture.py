"""The captured engine: the same numbers as the eager one for the same seed, the choice between them, and replicates.

They differ in rounding only, which grows along a fit: histories agree to 1e-3, against 1e-1 between seeds.
"""

import collections
import contextlib
import random
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import Fixed, Net, without_tapes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyrobnn as bnn
from pyrobnn._core.errors import NotCapturable
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn._torch.work import Work
from pyrobnn.data.batches import LoaderBatches
from pyrobnn.inference.capture.graph import make_loop, record
from pyrobnn.inference.data import make_source
from pyrobnn.inference.training.captured import Captured, RandomInputs
from pyrobnn.inference.training.loop import Stepper
from pyrobnn.inference.training.state import start
from pyrobnn.tape import build, runner
from pyrobnn.testing.checks import require_capturable

UNIT = bnn.priors.Normal(1.0)


def problem(num=40):
    x = torch.randn(num, 3, generator=torch.Generator().manual_seed(0))
    return x, torch.sin(x[:, 0]) + 0.1 * x[:, 1]


def mixture_model(net=None, likelihood=None):
    prior = bnn.priors.ScaleMixture(pi=0.3, sigma1=1.0, sigma2=0.2, learnable=True)
    likelihood = likelihood or bnn.likelihoods.Gaussian("learned")
    return bnn.BNN(net or bnn.MLP(3, [8], 1), prior=prior, likelihood=likelihood)


def both(model, *data, **settings):
    return [model.fit(*data, seed=3, progress=False, engine=name, **settings) for name in ("eager", "captured")]


def assert_same(eager, captured):
    assert captured.history.engine.used == "captured", captured.history.engine.reason
    assert captured.guide.loc.dtype == eager.guide.loc.dtype
    rtol, atol = (1e-9, 1e-8) if eager.guide.loc.dtype == torch.float64 else (1e-3, 1e-2)
    np.testing.assert_allclose(captured.history.log_likelihood, eager.history.log_likelihood, rtol=rtol, atol=atol)
    np.testing.assert_allclose(captured.history.kl, eager.history.kl, rtol=rtol, atol=atol)
    for module, other in ((eager.guide, captured.guide), (eager.bnn, captured.bnn)):
        for (name, value), found in zip(module.state_dict().items(), other.state_dict().values(), strict=True):
            torch.testing.assert_close(found, value, rtol=rtol, atol=atol / 100, msg=name)


NORMED = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
CONVOLUTION = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 4, 2), nn.GELU(), nn.Flatten(), nn.Linear(8, 1))
X = problem()[0]
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()
CLASSIFIER = bnn.BNN(bnn.MLP(3, [8], 3), prior=bnn.priors.Normal(1.0), likelihood="categorical")
SMALL = {"steps": 30, "batch_size": 10}
FITS = {
    "a loader, the smaller last batch too": lambda: (
        *(mixture_model(), [DataLoader(TensorDataset(*problem()), batch_size=16, shuffle=True)]),
        {"epochs": 10},
    ),
    "classes and a KL in closed form": lambda: (CLASSIFIER, (X, LABELS), {"steps": 30, "kl": "analytic"}),
    "a KL that warms up at a constant rate": lambda: (mixture_model(), problem(), {"steps": 30, "kl_warmup": 20}),
    "batch normalisation": lambda: (mixture_model(NORMED), problem(), SMALL),
    "convolution": lambda: (mixture_model(CONVOLUTION), problem(), SMALL),
    "double precision": lambda: (
        *(mixture_model(bnn.MLP(3, [8], 1).build().double()), [value.double() for value in problem()]),
        {"steps": 30},
    ),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("how", ["as tapes", "operation by operation"])
@pytest.mark.parametrize("name", FITS)
def test_captured_fit_is_the_eager_fit(name, how, monkeypatch):
    if how == "operation by operation":
        without_tapes(monkeypatch)
    model, data, settings = FITS[name]()
    assert_same(*both(model, *data, **settings))


def test_inputs_that_are_parts_of_one_vector_get_their_values_back():
    def step(one, two):
        one.mul_(2)
        two.add_(one)
        return ()

    x = torch.arange(1.0, 6.0)
    parts = list(x.split([1, 4]))
    graph = record(step, parts)
    assert torch.equal(x, torch.arange(1.0, 6.0))
    make_loop(graph, parts)(1)
    assert torch.equal(x, torch.tensor([2.0, 4.0, 5.0, 6.0, 7.0]))


def test_views_that_show_the_same_numbers_otherwise_stay_apart():
    def step(x, out):
        out.copy_((x * x.conj()).real + x.view(torch.float32)[:3])
        return ()

    x, out = torch.tensor([1 + 2j, 3j, -1 - 1j]), torch.zeros(3)
    graph = record(step, [x, out])
    expected = (x * x.conj()).real + torch.view_as_real(x).flatten()[:3]
    make_loop(graph, [x, out])(1)
    torch.testing.assert_close(out, expected)


def recurrent(kind):
    """The last output of a recurrent layer that sees each row three times."""
    run = lambda net, x: net.head(net.cell(x[:, None].expand(-1, 3, -1))[0][:, -1])  # noqa: E731
    return Net(run, cell=kind(3, 4, 2, dropout=0.4, batch_first=True), head=nn.Linear(4, 1))


def encoder():
    """A layer of a transformer, whose rows are first in order but not in memory."""
    run = lambda net, x: net.last(net.layer(net.first(x).view(-1, 2, 4)).flatten(1))  # noqa: E731
    layer = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.2, batch_first=True)
    return Net(run, first=nn.Linear(3, 8), last=nn.Linear(8, 1), layer=layer)


def attention():
    attend = lambda net, h: net.attention(h, h, h, need_weights=False)[0].flatten(1)  # noqa: E731
    run = lambda net, x: net.last(attend(net, net.first(x).view(-1, 2, 4)))  # noqa: E731
    layer = nn.MultiheadAttention(4, 2, dropout=0.4, batch_first=True)
    return Net(run, first=nn.Linear(3, 8), last=nn.Linear(8, 1), attention=layer)


def columns(h):
    """The same numbers, in memory column after column."""
    return h.t().contiguous().t()


def after(*layers):
    return nn.Sequential(nn.Linear(3, 8), *layers, nn.Flatten(), nn.Linear(8, 1))


NOISY = {
    "dropout": lambda: after(nn.Dropout(0.3), nn.Tanh(), nn.Dropout(0.1)),
    "of a channel": lambda: after(nn.Unflatten(1, (2, 2, 2)), nn.Dropout2d(0.3)),
    "of alpha": lambda: after(nn.SELU(), nn.AlphaDropout(0.3)),
    "as a function": lambda: moving(lambda net, h: nn.functional.dropout(h, 0.3)),
    "of columns in memory": lambda: moving(lambda net, h: nn.functional.dropout(columns(h), 0.3)),
    "of an LSTM": lambda: recurrent(nn.LSTM),
    "of a GRU": lambda: recurrent(nn.GRU),
    "of an RNN": lambda: recurrent(nn.RNN),
    "of attention": attention,
    "of a transformer": encoder,
    "slopes": lambda: after(nn.RReLU()),
    "torch.bernoulli": lambda: moving(lambda net, h: h * torch.bernoulli(torch.full_like(h, 0.7))),
    "bernoulli_": lambda: moving(lambda net, h: h * torch.empty_like(h).bernoulli_(0.7)),
    "randint": lambda: moving(lambda net, h: h * torch.randint(0, 2, h.shape)),
    "randn_like of columns": lambda: moving(lambda net, h: h + torch.randn_like(columns(h))),
    "rand": lambda: moving(lambda net, h: h * torch.rand(h.shape)),
    "around": lambda: moving(lambda net, h: torch.normal(h, 0.5)),
    "exponential_": lambda: moving(lambda net, h: h * torch.empty_like(h).exponential_()),
}


@pytest.mark.one_in(3, 2)
@pytest.mark.filterwarnings("ignore:torch.func.vmap does not take the model")
@pytest.mark.parametrize("how", ["as tapes", "operation by operation"])
@pytest.mark.parametrize("name", NOISY)
def test_networks_with_noise_draw_that_of_eager_steps(name, how, monkeypatch):
    if how == "operation by operation":
        without_tapes(monkeypatch)
    assert_same(*both(mixture_model(NOISY[name]()), *problem(), steps=6, kl="mc", batch_size="all"))


def test_loader_batches_are_neither_lost_nor_recorded_at_the_size_of_the_last():
    x, y = torch.arange(7.0)[:, None], torch.arange(7.0)
    loader = DataLoader(TensorDataset(x, y), batch_size=3)
    batches = LoaderBatches(loader, tuple, None, torch.zeros(()), head=(x[:3], y[:3]))
    assert [len(next(batches)[0]) for _ in range(2)] == [3, 3]
    assert len(batches.example[0]) == 3
    assert [float(next(batches)[1][0]) for _ in range(3)] == [6.0, 0.0, 3.0]


def branching(net, x):
    return net.layer(x if bool(x.isfinite().all()) else -x)


def moving(act, **held):
    """A network whose activations `act` maps in training, and which may change what it holds."""

    def run(net, x):
        h = torch.tanh(net.first(x))
        return net.last(act(net, h) if net.training else h - net.m)

    return Net(run, first=nn.Linear(3, 4), last=nn.Linear(4, 1), m=nn.Buffer(torch.zeros(4)), **held)


def counts(net, h):
    net.count += 1
    return h / net.count if net.count % 5 == 0 else h


CALLS, STREAM = [0], np.random.default_rng(0)


def rebound(net, h):
    net.m = 0.9 * net.m + 0.1 * h.mean(0).detach()
    return h - net.m


def as_data(net, h):
    net.m.data = 0.9 * net.m.data + 0.1 * h.mean(0).detach()
    return h - net.m


def new_buffer(net, h):
    net.m = nn.Buffer(0.9 * net.m + 0.1 * h.mean(0).detach())
    return h - net.m


def in_place(net, h):
    net.m.mul_(0.9).add_(0.1 * h.mean(0).detach())
    return h - net.m


def annealed(net, h):
    net.settings.temperature *= 0.9
    return h * net.settings.temperature


def queued(net, h):
    net.queue.append(h.mean(0).detach())
    return h - sum(net.queue) / len(net.queue)


def entries(net, h):
    net.table["means"][0] = 0.9 * net.table["means"][0] + 0.1 * h.mean(0).detach()
    return h - net.table["means"][0]


def counted_outside(net, h):
    CALLS[0] += 1
    return h * CALLS[0]


def set_up_once(net, h):
    net.shape, net.numbers = h.shape, [1, h.shape[1] / 3, "text"]
    net.scale = getattr(net, "scale", None) or 2.0
    return net.scale * h


A_STREAM = "changes a random stream of Python"
MOVING = {
    "a buffer bound anew": (moving(rebound), "changes 'm'"),
    "data": (moving(as_data), "changes 'm'"),
    "a new buffer": (moving(new_buffer), "changes 'm'"),
    "an attribute of an object": (moving(annealed, settings=SimpleNamespace(temperature=1.0)), "changes 'settings'"),
    "a deque": (moving(queued, queue=collections.deque(maxlen=3)), "changes 'queue'"),
    "a nested list": (moving(entries, table={"means": [torch.zeros(4)]}), "changes 'table'"),
    "a nested counter": (
        moving(lambda net, h: net.inner(h), inner=nn.Sequential(nn.Identity(), Net(counts, count=0))),
        "changes 'inner.1.count'",
    ),
    "Python's stream": (moving(lambda net, h: h if random.random() < 0.5 else 2 * h), A_STREAM),
    "NumPy's stream": (moving(lambda net, h: h * np.random.normal()), A_STREAM),
    "a stream it holds": (moving(lambda net, h: h * net.rng.normal(), rng=np.random.default_rng(0)), "changes 'rng'"),
    "a generator it holds": (
        moving(lambda net, h: h + torch.randn(4, generator=net.rng), rng=torch.Generator()), "changes 'rng'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("net", "settings", "reason"),
    [
        (Net(branching, layer=nn.Linear(3, 1)), {}, "branches on values"),
        (None, {"optimizer": "adagrad"}, "Adagrad has no recorded form"),
        (None, {"schedule": "one_cycle_lr"}, "schedule changes `betas`"),
        *((net, {}, reason) for net, reason in MOVING.values()),
    ],
    ids=["values", "optimiser", "schedule", *MOVING],
)
def test_what_cannot_be_captured_runs_eagerly_and_says_why(net, settings, reason):
    model, settings = mixture_model(net), {"steps": 8, "seed": 3, "progress": False} | settings
    with pytest.warns(UserWarning, match=reason):
        captured = model.fit(*problem(), engine="captured", **settings)
    eager = model.fit(*problem(), engine="eager", **settings)
    assert captured.history.engine.used == "eager"
    assert reason in captured.record.engine.reason
    np.testing.assert_array_equal(captured.history.elbo, eager.history.elbo)
    assert all(map(torch.equal, captured.bnn.buffers(), eager.bnn.buffers()))


@pytest.mark.parametrize(
    "act",
    [
        counted_outside,
        lambda net, h: h * STREAM.random(),
        lambda net, h: h * np.random.default_rng().random(),
        lambda net, h: h * (1 + 1000 * time.perf_counter() % 1),
    ],
    ids=["a counter outside", "a stream outside", "noise without a seed", "a clock"],
)
def test_what_no_seed_repeats_is_not_recorded(act):
    with pytest.warns(UserWarning, match="changes something outside"):
        fit = mixture_model(moving(act)).fit(*problem(), steps=3, seed=3, progress=False, engine="captured")
    assert fit.record.engine.used == "eager"


@pytest.mark.parametrize("act", [in_place, set_up_once])
def test_what_stays_bound_is_captured(act):
    assert_same(*both(mixture_model(moving(act)), *problem(), steps=8))


def moves_always(net, x):
    net.count += 1
    return net.layer(x)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        bnn.NUTS(num_draws=2, warmup=2, num_chains=1, max_tree_depth=3),
        bnn.MCLMC(num_draws=2, warmup=8, num_chains=2, thinning=4),
        bnn.SVI(guide="laplace", steps=3),
        bnn.EvidenceFramework(rounds=1, starts=1),
        bnn.Ensemble(bnn.SVI(steps=3), members=2),
    ],
    ids=lambda method: type(method).__name__,
)
@pytest.mark.filterwarnings("ignore")
def test_no_recorder_takes_a_network_that_moves(method):
    net = Net(moves_always, layer=nn.Linear(3, 1), count=0)
    model = bnn.BNN(net, prior=UNIT, likelihood=bnn.likelihoods.Gaussian(0.3))
    fits = [bnn.fit(model, problem(), method, seed=3, progress=False, engine=name) for name in ("captured", "eager")]
    for one, other in zip(*(fit.members for fit in fits), strict=True):
        assert one.record.engine.used == "eager"
        assert "each call of the network changes 'count'" in one.record.engine.reason
        torch.testing.assert_close(one.predict(problem()[0]).mean, other.predict(problem()[0]).mean, rtol=0, atol=0)


@pytest.mark.slow
def test_a_network_that_a_callback_changes_goes_on_eagerly():
    def anneal(progress):
        progress.bnn.net.table["temperature"] = 1 - progress.step / 200

    fits, net = [], moving(lambda net, h: h * net.table["temperature"], table={"temperature": 1.0})
    for engine in ("eager", "captured"):
        settings = {"steps": 80, "seed": 3, "progress": False, "callbacks": [anneal]}
        fits.append(mixture_model(net).fit(*problem(), engine=engine, **settings))
    eager, captured = fits
    assert "until 'table' of the network changed after step 50" in captured.record.engine.reason
    np.testing.assert_allclose(captured.history.elbo, eager.history.elbo, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(("steps", "used", "from_step"), [(99, "eager", None), (100, "captured", 2)])
def test_auto_captures_from_100_steps_on(steps, used, from_step):
    model, method = mixture_model(), bnn.SVI(steps=steps)
    source = make_source(bnn.Data(*problem()), model, method.batch_size, seed=0)
    with seeded(0), fast_pyro():
        training = Stepper([start(model, method, source, 0, "cpu")[1]], "auto", steps)
        training.advance(3)
    assert (training.record.used, training.record.from_step) == (used, from_step)
    assert "100 steps" in training.record.reason


def test_without_a_compiler_operations_run_one_by_one_and_a_line_says_so(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(runner, "find", lambda name: None)
    monkeypatch.setattr(build, "INSTALLED", tmp_path)
    runner.library.cache_clear()
    runner.kernel.cache_clear()
    terms = []
    for engine in ("auto", "eager"):
        method = bnn.SVI(steps=50_000)
        source = make_source(bnn.Data(*problem()), mixture_model(), method.batch_size, seed=0)
        with seeded(0), fast_pyro():
            training = Stepper([start(mixture_model(), method, source, 0, "cpu")[1]], engine, 50_000)
            terms.append(training.advance(20))
    assert "operation by operation, many times slower: there is no C++ compiler 'no-such-compiler'" in caplog.text
    torch.testing.assert_close(*terms, rtol=1e-4, atol=1e-3)


def test_work_is_that_of_forward_and_backward_pass():
    """Of x w for x (8, 3) and w (3, 5): 8 x 3 x 5 products forward, and as many for the gradient of w alone."""
    x, w = torch.randn(8, 3), torch.randn(3, 5, requires_grad=True)
    with Work() as work:
        (x @ w).sum().backward()
    assert work.products == 2 * 8 * 3 * 5
    assert 8 * 5 + 1 + 3 * 5 <= work.numbers <= 8 * 5 + 1 + 3 * 5 + 2
    assert 3 <= work.operations < 10
    assert work.seconds() == pytest.approx(work.operations * 1e-5 + work.numbers * 1e-9 + work.products * 5e-11)


ONE_OF_EACH = {
    "a line": (1, [], {}, {"guide": "mean_field"}),
    "no bias": (1, [], {}, {"guide": "map", "bias": False}),
    "one hidden unit": (1, [1], {"likelihood": "student_t"}, {"guide": "full_rank"}),
    "two layers of one unit": (1, [1, 1], {"prior": "laplace"}, {"guide": "low_rank"}),
    "one row": (1, [2], {"prior": "scale_mixture"}, {"guide": "mean_field", "rows": 1, "kl": "mc"}),
    "a row of two inputs": (2, [1], {"prior": "hierarchical"}, {"guide": "mean_field", "rows": 1}),
    "batches of one": (1, [1], {"likelihood": "poisson"}, {"guide": "matrix_normal", "batch_size": 1}),
    "batches of all rows": (1, [], {"likelihood": "categorical"}, {"guide": "radial", "batch_size": 4}),
    "three classes": (1, [], {"likelihood": bnn.likelihoods.Ordinal(3)}, {"guide": "mean_field"}),
    "two particles": (1, [], {"prior": "ard"}, {"guide": bnn.guides.MeanField(noise="shared"), "num_particles": 2}),
    "dropout": (1, [2], {"likelihood": "gamma"}, {"guide": "dropout"}),
    "a flow": (1, [], {"likelihood": "negative_binomial"}, {"guide": "flow"}),
    "weights of rows": (2, [], {"likelihood": "mixture_density"}, {"guide": "mean_field", "weights": True}),
    "two targets": (1, [], {"likelihood": bnn.likelihoods.Gaussian("learned")}, {"guide": "mean_field", "targets": 2}),
}
"""Inputs, hidden units, parts, and settings: tensors of one row, one column or one number."""


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, ("float32", "float64")[index % 2]) for index, name in enumerate(ONE_OF_EACH)]
)
def test_models_of_single_inputs_units_and_rows_are_fitted_as_eagerly(name, dtype):
    inputs, hidden, parts, settings = ONE_OF_EACH[name]
    settings = {"bias": True, "rows": 4, "targets": None, "weights": False} | settings
    bias, rows, targets, weighs = (settings.pop(key) for key in ("bias", "rows", "targets", "weights"))
    likelihood = bnn.likelihoods.resolve(parts.get("likelihood", bnn.likelihoods.Gaussian(0.5)))
    y = torch.tensor([1, 0, 2, 1])[:rows]
    y = y if likelihood.integer_targets else 0.5 + y.to(getattr(torch, dtype))
    y = y if targets is None else torch.stack([y, -y], 1)
    x = torch.tensor([[0.5, -0.3], [-1.0, 0.8], [0.2, 1.1], [1.5, 0.4]], dtype=getattr(torch, dtype))[:rows, :inputs]
    net = bnn.MLP(inputs, hidden, likelihood.num_outputs(y), bias=bias, dtype=dtype)
    model = bnn.BNN(net, likelihood=likelihood, prior=parts.get("prior", bnn.priors.Normal(1.0)))
    require_capturable(model, bnn.Data(x, y, weights=torch.arange(1.0, 5.0) if weighs else None), **settings)


OPTIMIZER = """
import sys
import torch
import pyrobnn as bnn
x = torch.linspace(-1, 1, 20)[:, None]
model = bnn.BNN(bnn.MLP(1, [2], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.2))
for method in (bnn.SVI(steps=300, schedule="cosine_annealing_lr"), bnn.IVON(steps=20)):
    used = bnn.fit(model, (x, x[:, 0]), method, seed=1, progress=False).record.engine
    print(used.used, "torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
def test_short_fits_do_without_the_compiler():
    """It takes two seconds to import, and torch's optimisers import it unless they are kept from that."""
    run = subprocess.run([sys.executable, "-c", OPTIMIZER], check=True, capture_output=True, text=True)
    assert run.stdout.splitlines() == ["captured False", "eager False"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("replicates", [1, 3])
@pytest.mark.parametrize("particles", [1, 2, 4])
def test_engines_agree_for_the_same_noise_whatever_is_drawn_at_once(particles, replicates, monkeypatch):
    """The captured step's noise fed to eager steps, in the order of replicates and then draws; seeds 0 to 2."""
    drawn, draw = [], RandomInputs.draw

    def noted(noise, num_steps):
        draw(noise, num_steps)
        (table,) = noise.inputs
        drawn.extend(table[:num_steps].reshape(-1, table.shape[-1]).clone())

    monkeypatch.setattr(RandomInputs, "draw", noted)
    model = bnn.BNN(bnn.MLP(3, [], 1), likelihood=bnn.likelihoods.Gaussian(0.2), prior=bnn.priors.Normal(1.0))
    method = bnn.SVI(steps=5, num_particles=particles, batch_size=16)

    def train(name, noise=None):
        with seeded(0), fast_pyro():
            source = lambda seed: make_source(bnn.Data(*problem()), model, 16, seed=seed)  # noqa: E731
            fits = [start(model, method, source(seed), seed, "cpu")[1] for seed in range(replicates)]
            training = Stepper(fits, name, 5)
            first = training.advance(1)
            with Fixed(torch.cat(noise)) if noise else contextlib.nullcontext():
                return torch.cat([first, training.advance(4)])

    captured = train("captured")
    assert len(drawn) == 4 * replicates * particles
    torch.testing.assert_close(train("eager", drawn), captured, rtol=1e-4, atol=1e-3)
    if replicates * particles == 1:
        torch.testing.assert_close(train("eager"), captured, rtol=1e-4, atol=1e-3)


def test_callbacks_and_validation_see_the_parameters_as_they_train():
    seen = []
    settings = {"steps": 150, "engine": "captured", "seed": 0, "progress": False, "validation": problem()}
    callback = lambda progress: seen.append(progress.guide.loc.detach().clone())  # noqa: E731
    posterior = mixture_model().fit(*problem(), **settings, eval_every=40, callbacks=[callback])
    assert len(seen) == 3
    assert not torch.equal(seen[0], seen[1])
    torch.testing.assert_close(seen[-1], posterior.guide.loc.detach())
    assert posterior.history.validation_steps == [40, 80, 120, 150]


@pytest.mark.slow
def test_replicates_captured_are_reproducible_independent_and_on_their_own():
    x, y = problem()
    fits = [
        mixture_model().fit(x, y, seed=1, steps=80, replicates=3, engine="captured", progress=False, batch_size=16)
        for _ in range(2)
    ]
    assert fits[0][0].history.engine.used == "captured"
    for first, second in zip(*fits, strict=True):
        np.testing.assert_array_equal(first.history.elbo, second.history.elbo)
        torch.testing.assert_close(first.guide.loc, second.guide.loc, rtol=0, atol=0)
    elbos = np.stack([posterior.history.elbo for posterior in fits[0]])
    assert len(np.unique(elbos.round(3), axis=0)) == 3
    assert [posterior.record.replicate for posterior in fits[0]] == [0, 1, 2]
    storages = {posterior.guide.loc.untyped_storage().data_ptr() for posterior in fits[0]}
    assert len(storages) == 3
    draws = [posterior.draw(2)["0.bias"] for posterior in fits[0]]
    assert not torch.equal(draws[0] - fits[0][0].guide.mean()["0.bias"], draws[1] - fits[0][1].guide.mean()["0.bias"])


@pytest.mark.slow
def test_replicates_may_differ_in_priors_rates_and_data():
    """At scale 3e-7 and with the KL in closed form noise has nearly no effect: captured and eager must agree."""
    x, y = problem()
    bnns = [bnn.BNN(bnn.MLP(3, [5], 1), prior=bnn.priors.Normal(s), likelihood="gaussian") for s in (0.2, 5.0, 1.0)]
    guide = bnn.guides.MeanField(init_rho=-15.0)
    methods = [
        bnn.SVI(guide=guide, steps=30, kl="analytic", lr=lr, temperature=t, batch_size=10, schedule=s)
        for lr, t, s in ((0.01, 1.0, None), (0.03, 0.5, None), (0.05, 1.0, "cosine_annealing_lr"))
    ]
    datas = [(x, y), (x, y + 1), (x.flip(0), y)]
    eager, captured = (
        bnn.fit_replicates(bnns, datas, methods, seed=4, engine=name, progress=False) for name in ("eager", "captured")
    )
    for one, other in zip(eager, captured, strict=True):
        assert other.history.engine.used == "captured"
        np.testing.assert_allclose(other.history.elbo, one.history.elbo, rtol=1e-3, atol=0.05)
        torch.testing.assert_close(other.guide.loc, one.guide.loc, rtol=1e-2, atol=1e-3)


def test_replicates_that_one_graph_cannot_serve_run_eagerly():
    bnns = [mixture_model(likelihood=bnn.likelihoods.Gaussian(s)) for s in (0.1, "learned")]
    with pytest.warns(UserWarning, match="replicates differ"):
        posteriors = bnn.fit_replicates(bnns, problem(), bnn.SVI(steps=5), seed=4, engine="captured", progress=False)
    assert [p.history.engine.used for p in posteriors] == ["eager"] * 2


@pytest.mark.parametrize(
    ("priors", "schedules", "reason"),
    [
        ((bnn.priors.Normal("fan_in"), bnn.priors.Normal("he")), (None, None), "differ in prior"),
        ((UNIT, bnn.priors.Normal("he")), (None, None), "differ in prior"),
        (({"0.*": UNIT, "*": None}, {"2.*": UNIT, "*": None}), (None, None), "differ in prior"),
        (("normal", "scale_mixture"), (None, None), "differ in prior"),
        (("normal", "normal"), (None, "one_cycle_lr"), "schedule changes"),
    ],
)
def test_replicates_are_not_trained_under_the_settings_of_the_first(priors, schedules, reason):
    with seeded(0), fast_pyro():
        fits = []
        for prior, schedule in zip(priors, schedules, strict=True):
            model, method = bnn.BNN(bnn.MLP(3, [5], 1), prior=prior), bnn.SVI(steps=5, schedule=schedule)
            source = make_source(bnn.Data(*problem()), model, method.batch_size, seed=0)
            fits.append(start(model, method, source, 0, "cpu")[1])
            fits[-1].advance(1)
        with pytest.raises(NotCapturable, match=reason):
            Captured(fits)

"""Prepared fits: minus the ELBO as the loss of a loop of the caller's, and the posterior that it leads to."""

import copy
import importlib.util
import math
import re
import subprocess
import sys

import numpy as np
import pyro
import pytest
import torch
from helpers import Net, quick
from test_documentation import OWN_LOOP, blocks
from torch import nn
from torch.nn.functional import softplus

import pyrobnn as bnn
from pyrobnn import InputError, guides, likelihoods, priors
from pyrobnn._core.random import derive, random_state, set_random_state
from pyrobnn.data.batches import TensorBatches
from pyrobnn.inference.training.state import TrainingState

N = 32
X = torch.linspace(-1, 1, N)[:, None]
Y = (3 * X).sin()[:, 0]
MIXED = {"2.*": "full_rank", "*": "mean_field"}
GUIDES = ["low_rank", "flow", guides.Dropout(rate=0.2, learned=True), "laplace", MIXED]


def model(net=None, **parts):
    return bnn.BNN(net or bnn.MLP(1, [6], 1), **({"prior": priors.Normal(1.0)} | parts))


def prepare(guide="mean_field", *, of=None, like=(X, Y), num_data=N, seed=0, **settings):
    return bnn.prepare(of or model(), bnn.SVI(guide=guide, **settings), num_data=num_data, like=like, seed=seed)


def loss_of(fit, batch=(X, Y), *, noise=1):
    """The loss under noise of a seed."""
    torch.manual_seed(noise)
    return fit.loss(batch)


def gradients(fit, *losses):
    fit.zero_grad()
    sum(losses).backward()
    return {name: parameter.grad.clone() for name, parameter in fit.named_parameters() if parameter.grad is not None}


def go(fit, batches, lr=0.02, factor=1.0, **options):
    optimizer = torch.optim.Adam(fit.param_groups(lr), **options)
    for batch in batches:
        optimizer.zero_grad()
        (factor * fit.loss(batch)).backward()
        optimizer.step()
    return fit


def state(posterior):
    return {**posterior.bnn.state_dict(), **{f"guide.{k}": v for k, v in posterior.guide.state_dict().items()}}


def linear(*, num_particles=1, temperature=1.0):
    """A linear model in float64 with all numbers known, 7 rows of 40, and a mean-field guide away from its start."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x, y = torch.randn(7, 2, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
        of = model(bnn.MLP(2, [], 1, dtype="float64"), likelihood=likelihoods.Gaussian(0.5), prior=priors.Normal(2.0))
        settings = {"num_particles": num_particles, "temperature": temperature}
        fit = prepare(guides.MeanField(noise="shared"), of=of, like=(x, y), num_data=40, kl="analytic", **settings)
        with torch.no_grad():
            fit.guide.loc.copy_(torch.randn(3))
            fit.guide.rho.copy_(torch.randn(3))
    return fit, x, y


def divergence(loc, scale):
    """KL(N(loc, scale^2) || N(0, 4))."""
    return ((scale.square() + loc.square()) / 8 - 0.5 + math.log(2) - scale.log()).sum()


def test_the_loss_is_the_elbo_per_example_for_the_same_noise():
    """-(40 / 7 sum log p - 0.7 KL) / 40 in closed form, with its gradient."""
    fit, x, y = linear(temperature=0.7)
    loss = loss_of(fit, (x, y))
    torch.manual_seed(1)
    loc, rho = (value.detach().clone().requires_grad_() for value in (fit.guide.loc, fit.guide.rho))
    weights = loc + softplus(rho) * torch.randn(3, dtype=torch.float64)
    log_likelihood = torch.distributions.Normal(x @ weights[:2] + weights[2], 0.5).log_prob(y)
    expected = -(40 / 7 * log_likelihood.sum() - 0.7 * divergence(loc, softplus(rho))) / 40
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    found = gradients(fit, loss)
    for name, gradient in zip(("loc", "rho"), torch.autograd.grad(expected, (loc, rho)), strict=True):
        torch.testing.assert_close(found[f"guide.{name}"], gradient, rtol=1e-10, atol=1e-12)


def test_the_temperature_may_change_in_the_loop():
    fit, x, y = linear()
    warm = loss_of(fit, (x, y)).detach()
    fit.temperature = 0.25
    kl = divergence(fit.guide.loc.detach(), softplus(fit.guide.rho.detach()))
    torch.testing.assert_close(warm - loss_of(fit, (x, y)).detach(), 0.75 * kl / 40, rtol=1e-10, atol=0)


@pytest.fixture
def noise_of_fit(monkeypatch):
    """The random state before the first step of a fit."""
    states, step = [], TrainingState.step

    def noted(self, batch):
        states.append(random_state())
        return step(self, batch)

    monkeypatch.setattr(TrainingState, "step", noted)
    return states


def test_a_loop_of_adam_gives_the_bits_of_fit(noise_of_fit):
    """N is a power of two, and eps is divided by it, so that no number is rounded otherwise."""
    expected = quick(model(), bnn.SVI(guide="mean_field", steps=40, batch_size=8), (X, Y))
    fit = prepare()
    batches = TensorBatches((X, Y), 8, derive(0, "batches"))
    set_random_state(noise_of_fit[0])
    posterior = go(fit, [next(batches) for _ in range(40)], eps=1e-8 / N)
    for name, value in state(posterior.posterior()).items():
        assert torch.equal(value, state(expected)[name]), name
    assert torch.equal(posterior.posterior().predict(X).mean, expected.predict(X).mean)


@pytest.mark.parametrize("guide", [guides.FullRank(init_rho=-3.0), "low_rank", "map", "radial"], ids=str)
def test_loops_with_the_rates_of_a_guide_agree_with_fit(noise_of_fit, guide):
    """`param_groups` has the factors; what differs is the order in which they are multiplied."""
    expected = quick(model(), bnn.SVI(guide=guide, steps=30, lr=0.01, batch_size="all"), (X, Y))
    fit = prepare(guide)
    set_random_state(noise_of_fit[0])
    posterior = go(fit, [(X, Y)] * 30, lr=0.01).posterior()
    for name, value in state(posterior).items():
        torch.testing.assert_close(value, state(expected)[name], rtol=1e-4, atol=1e-5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("guide", GUIDES, ids=str)
def test_every_guide_is_trained_in_a_loop(guide):
    """It can be copied before the loop, resumed from its state, and the posterior predicts with what was trained."""
    fit = prepare(guide, of=model(likelihood=likelihoods.Gaussian(0.3)))
    copy.deepcopy(fit)
    first = sum(float(loss_of(fit, noise=seed).detach()) for seed in range(5))
    go(fit, [(X, Y)] * 100)
    assert sum(float(loss_of(fit, noise=seed).detach()) for seed in range(5)) < first
    again = prepare(guide, of=model(likelihood=likelihoods.Gaussian(0.3)), seed=3)
    again.load_state_dict(fit.state_dict())
    assert torch.equal(loss_of(fit), loss_of(again))
    posterior = fit.posterior((X, Y))
    prediction = posterior.predict(X, num_draws=200)
    assert float(prediction.log_prob(Y).mean()) > float(model().sample_prior_predictive(X, seed=0).log_prob(Y).mean())


def test_a_posterior_is_a_snapshot():
    fit = prepare()
    posterior = fit.posterior()
    before = {name: value.clone() for name, value in state(posterior).items()}
    go(fit, [(X, Y)] * 5)
    assert all(torch.equal(value, before[name]) for name, value in state(posterior).items())
    assert not torch.equal(fit.posterior().guide.loc, posterior.guide.loc)
    assert not posterior.bnn.training
    assert fit.bnn.training


def test_batch_norm_follows_the_mode():
    net = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    fit = prepare(of=model(net))

    def mean(*, train):
        """The running mean after a loss."""
        loss_of(fit.train(train))
        return fit.bnn.net[1].running_mean.clone()

    moved = mean(train=True)
    assert moved.any()
    assert torch.equal(mean(train=False), moved)
    posterior = fit.posterior()
    assert not torch.equal(mean(train=True), moved)
    assert torch.equal(posterior.bnn.net[1].running_mean, moved)
    assert torch.equal(net[1].running_mean, torch.zeros(4))


def test_frozen_parameters_stay_and_learned_ones_are_trained():
    net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    net[0].requires_grad_(requires_grad=False)
    fit = go(prepare(of=model(net)), [(X, Y)] * 3)
    assert torch.equal(fit.bnn.net[0].weight, net[0].weight)
    trained = {name for name, parameter in fit.named_parameters() if parameter.requires_grad}
    assert trained == {"bnn.likelihood.scale_unconstrained", "guide.loc", "guide.rho"}
    assert sum(len(group["params"]) for group in fit.param_groups(0.1)) == 3


def test_a_module_can_be_in_double_precision():
    fit = prepare(kl="quadrature", of=model(prior="scale_mixture")).double()
    loss = loss_of(fit, (X.double(), Y.double()))
    assert loss.dtype == torch.float64
    loss.backward()
    posterior = fit.posterior()
    assert posterior.draw(2)["0.weight"].dtype == torch.float64
    assert torch.equal(posterior.guide.loc, fit.guide.loc)


def two():
    run = lambda net, a, b: net.last((net.one(a) + net.other(b)).tanh())  # noqa: E731
    return Net(run, one=nn.Linear(1, 3), other=nn.Linear(2, 3), last=nn.Linear(3, 1))


def test_batches_of_several_inputs():
    """A mapping with labels, a pair with a mapping, and a longer tuple give the same loss."""
    a, b = X, torch.cat([X, X**2], 1)
    fit = prepare(of=model(two()), like={"a": a, "b": b, "labels": Y})
    by_name = loss_of(fit, {"a": a, "b": b, "labels": Y})
    assert torch.equal(loss_of(fit, ({"a": a, "b": b}, Y)), by_name)
    by_position = prepare(of=model(two()), like=(a, b, Y))
    by_position.load_state_dict(fit.state_dict())
    assert torch.equal(loss_of(by_position, (a, b, Y)), by_name)
    go(fit, [{"a": a, "b": b, "labels": Y}] * 2)
    assert fit.posterior().predict({"a": a, "b": b}).mean.shape == (N,)


def test_batches_in_original_units():
    """`Data` that standardise set the units: the loss is that of standardised batches, predictions are in both."""
    data = bnn.Data(10 * X + 3, 5 * Y - 1, standardize=True)
    fit, plain = prepare(like=data), prepare(like=(data.x_scaler.transform(data.x), data.y_scaler.transform(data.y)))
    plain.load_state_dict(fit.state_dict())
    expected = loss_of(plain, (data.x_scaler.transform(data.x), data.y_scaler.transform(data.y)))
    torch.testing.assert_close(loss_of(fit, (data.x, data.y)), expected, rtol=1e-5, atol=1e-6)
    at_units, at_plain = fit.posterior().predict(data.x), plain.posterior().predict(data.x_scaler.transform(data.x))
    torch.testing.assert_close(at_units.mean, data.y_scaler.inverse(at_plain.mean), rtol=1e-5, atol=1e-5)


def test_units_of_a_model_are_kept():
    first = quick(model(), bnn.SVI(steps=5), bnn.Data(10 * X + 3, 5 * Y - 1, standardize=True))
    fit = bnn.prepare(model(), bnn.SVI(), num_data=N, like=(X, Y), seed=0, start=first)
    assert torch.equal(fit.guide.loc, first.guide.loc)
    assert fit.posterior().record.start == {"seed": 0, "num_steps": 5, "num_data": N}
    assert torch.equal(fit.posterior().predict(X).mean, first.predict(X).mean)


def test_random_states_modes_and_settings_stay():
    """The loss draws from torch's generator alone, under the settings of Pyro and the modes of the caller."""
    of = model()
    before = random_state()
    fit = prepare(of=of)
    fit.posterior()
    after = random_state()
    assert torch.equal(before["torch"], after["torch"])
    numpy = np.random.get_state()[1].copy()
    validates = pyro.poutine.is_validation_enabled(), pyro.distributions.is_validation_enabled()
    with torch.autocast("cpu", torch.bfloat16):
        fit.loss((X, Y))
        assert torch.is_autocast_enabled("cpu")
    assert (np.random.get_state()[1] == numpy).all()
    assert validates == (pyro.poutine.is_validation_enabled(), pyro.distributions.is_validation_enabled())
    assert not torch.equal(after["torch"], random_state()["torch"])
    with torch.inference_mode():
        assert not loss_of(fit).requires_grad


class Notes(nn.Linear):
    """A layer that notes the precision in which it computes."""

    seen = None

    def forward(self, x):
        f = super().forward(x)
        type(self).seen = f.dtype
        return f


@pytest.mark.parametrize("guide", ["mean_field", "full_rank", "flow"])
def test_under_autocast_the_network_alone_computes_in_half_precision(guide):
    """The KL of the same draws has the same bits; the loss differs by the rounding of bfloat16, 2^-8."""
    fit = prepare(guide, of=model(nn.Sequential(Notes(1, 6), nn.Tanh(), nn.Linear(6, 1))))
    full, kl = loss_of(fit), fit._elbo.kl
    assert Notes.seen == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        half = loss_of(fit)
    assert Notes.seen == torch.bfloat16
    assert half.dtype == torch.float32
    assert torch.equal(fit._elbo.kl, kl)
    assert float(half.detach()) == pytest.approx(float(full.detach()), rel=2**-6)
    assert not torch.equal(half, full)
    expected, found = gradients(fit, full), gradients(fit, half)
    for name, gradient in expected.items():
        assert torch.linalg.norm(found[name] - gradient) < 2**-5 * torch.linalg.norm(gradient)


def test_fit_inside_autocast_stays_in_full_precision():
    with torch.autocast("cpu", torch.bfloat16):
        quick(model(nn.Sequential(Notes(1, 6), nn.Tanh(), nn.Linear(6, 1))), bnn.SVI(steps=1), (X, Y))
    assert Notes.seen == torch.float32


def test_distributed_data_parallel_wraps_it(tmp_path):
    """In a process group of one, which has the gradient of the fit itself."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    fit = prepare()
    expected = gradients(fit, loss_of(fit))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(fit)
        torch.manual_seed(1)
        found = gradients(fit, wrapped((X, Y)))
    finally:
        dist.destroy_process_group()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient)


def test_the_record_is_honest():
    record = go(prepare(temperature=0.5), [(X, Y)] * 3).posterior().record
    assert record.own_loop is True
    assert record.convergence is None
    assert record.num_steps is None
    assert "whether it has converged is unknown" in record.stop_reason
    assert (record.method["type"], record.method["temperature"]) == ("svi", 0.5)
    assert (record.kl, record.noise, record.num_data, record.batch_size) == ("analytic", "local", N, N)


def test_open_scales_are_those_of_a_fit_of_given_length():
    of = bnn.BNN(bnn.MLP(1, [6], 1))
    expected = quick(of, bnn.SVI(steps=1, lr=1e-30), (X, Y))
    found = prepare(of=of).posterior()
    for name, value in state(found).items():
        torch.testing.assert_close(value, state(expected)[name], rtol=0, atol=1e-29)


def test_fit_goes_on_from_it():
    prepared = go(prepare(), [(X, Y)] * 5)
    posterior = quick(model(), bnn.SVI(steps=1, lr=1e-30), (X, Y), start=prepared.posterior())
    assert torch.equal(posterior.guide.loc, prepared.guide.loc)


def test_laplace_takes_its_curvature_from_all_data():
    """The same as `Laplace.around` the same mode."""
    known = model(likelihood=likelihoods.Gaussian(0.3))
    fit = go(prepare("laplace", of=known, like=(X[:4], Y[:4])), [(X, Y)] * 20)
    posterior = fit.posterior((X, Y))
    mode = {name: value.detach() for name, value in fit.guide.mean().items()}
    around = guides.Laplace().around(known, (X, Y), weights=mode, seed=0, progress=False)
    torch.testing.assert_close(posterior.draw(5)["0.weight"], around.draw(5)["0.weight"], rtol=1e-4, atol=1e-5)
    assert posterior.record.laplace.log_evidence == pytest.approx(around.record.laplace.log_evidence, rel=1e-5)
    with pytest.raises(InputError, match="from all training data: pass them, fit.posterior"):
        fit.posterior()
    with pytest.raises(InputError, match="must be all 32 training examples, got 4"):
        fit.posterior((X[:4], Y[:4]))


@pytest.mark.parametrize("method", [bnn.IVON(), bnn.NUTS(), bnn.Ensemble(), bnn.SVI], ids=str)
def test_methods_without_the_gradient_of_an_elbo_are_refused(method):
    with pytest.raises(InputError, match="follows the gradient of the ELBO, as SVI"):
        bnn.prepare(model(), method, num_data=N, like=(X, Y), seed=0)


OF_THE_LOOP = {"steps": 10, "lr": 0.1, "batch_size": 8, "optimizer": "sgd", "patience": 3}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_data": 31}, "`num_data` must count all training examples, got 31, and `like` has 32"),
        ({"num_data": 0}, "num_data"),
        ({"like": X}, "must yield pairs"),
        ({"like": bnn.Data(X, Y, weights=Y + 2)}, "`like` has weights of examples"),
        ({"like": (torch.cat([X, X], 1), Y)}, "does not take"),
        ({"guide": "flow", "kl": "analytic"}, "kl='analytic' needs"),
        ({"guide": "laplace", "temperature": 0.5}, "temperature"),
        *(({name: value}, f"`{name}` belongs to the loop, which is yours here") for name, value in OF_THE_LOOP.items()),
    ],
)
def test_what_does_not_fit_is_refused(arguments, words):
    with pytest.raises(InputError) as refused:
        prepare(**arguments)
    assert words in str(refused.value)


def test_batches_are_checked():
    fit = prepare()
    with pytest.raises(InputError, match="finite"):
        fit.loss((X, Y * float("nan")))
    counts = prepare(of=model(likelihood="poisson"), like=(X, torch.ones(N)))
    with pytest.raises(InputError, match="counts from 0 up"):
        counts.loss((X, -torch.ones(N)))


@pytest.mark.slow
@pytest.mark.parametrize(("library", "x"), [("lightning", "data.x"), ("transformers", "{'values': data.x}")])
def test_the_recipe_of_the_page_trains(library, x, tmp_path):
    """In a process of its own: these libraries warn, start loggers and set signal handlers."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}, which pyrobnn does not ask for")
    (recipe,) = [block.code for block in blocks(OWN_LOOP, "py") if f"import {library}" in block.code]
    score = f"float(fit.predict({x}, seed=0).log_prob(data.y).mean())"
    check = f"print('scores', *({score} for fit in (start, posterior)), posterior.record.own_loop)"
    script = tmp_path / "recipe.py"
    build = re.search(r"bnn\.prepare\(.*\)", recipe).group().rstrip(")") + ")"
    script.write_text(f"{recipe}\nstart = {build}.posterior()\n{check}\n", encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    words = next(line for line in done.stdout.splitlines() if line.startswith("scores")).split()
    assert float(words[2]) > float(words[1]) + 1
    assert words[3] == "True"

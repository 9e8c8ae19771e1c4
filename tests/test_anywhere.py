"""Posteriors of draws and guides from elsewhere, and methods that inherit from `Sampler`."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from test_documentation import ROOT, blocks

import pyrobnn as bnn
from pyrobnn.testing import METHOD_CHECKS, parametrize_with_checks
from pyrobnn.testing.checks import make_data

pytestmark = pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning")
X = np.concatenate([np.linspace(-1, -0.6, 5), np.linspace(0.5, 1, 5)])[:, None]
Y = np.cos(4 * X[:, 0] + 0.8) + 0.3 * np.sin(50 * np.arange(10))
GAP, GRID = bnn.Data(X.astype(np.float32), Y.astype(np.float32)), np.linspace(-0.5, 0.5, 5)[:, None]
NET, UNIT = bnn.MLP(1, [5], 1, activation="tanh"), bnn.priors.Normal(1.0)
MODEL = bnn.BNN(NET, prior=UNIT, likelihood=bnn.likelihoods.Gaussian(0.3))
INFERRED = bnn.BNN(NET, prior=UNIT, likelihood=bnn.likelihoods.Gaussian({"type": "half_normal", "scale": 1.0}))
with np.load(Path(__file__).parent / "fixtures" / "gap_draws.npz") as file:
    NUMPYRO = {name: file[name].astype(np.float32) for name in file.files}  # (4, 250, *event), see make_gap_draws.py


def by_hand(x):
    """The outputs of the network for the draws of NumPyro, (S, N)."""
    names = ("0.weight", "0.bias", "2.weight", "2.bias")
    w1, b1, w2, b2 = (NUMPYRO[name].reshape(-1, *NUMPYRO[name].shape[2:]).astype(float) for name in names)
    return (np.tanh(x @ w1.transpose(0, 2, 1) + b1[:, None]) @ w2.transpose(0, 2, 1) + b2[:, None])[..., 0]


@pytest.mark.parametrize("standardize", [False, True])
def test_draws_of_numpyro_predict_in_the_units_of_the_data(standardize):
    """Those of standardised data are of a network that sees (x - m) / s and gives targets in units of s."""
    data = bnn.Data(X, Y, standardize=standardize)
    (mx, sx), (my, sy) = [(v.mean(0), v.std(0)) if standardize else (0.0, 1.0) for v in (X, Y)]
    posterior = bnn.Posterior.from_draws(MODEL, data, NUMPYRO)
    means = posterior.predict(GRID, num_draws=5000, draws=posterior.draw(1000)).draw_means
    np.testing.assert_allclose(np.sort(means, 0), np.sort(my + sy * by_hand((GRID - mx) / sx), 0), atol=1e-4)


@pytest.mark.slow
def test_draws_of_numpyro_are_judged_and_kept(tmp_path):
    diverging = np.zeros((4, 250))
    diverging[0, :3] = 1
    posterior = bnn.Posterior.from_draws(MODEL, GAP, NUMPYRO, statistics={"diverging": diverging}, seed=3)
    assert posterior.record.num_diverging == 3
    assert "3 of 1000" in str(bnn.diagnose(posterior, GAP))
    assert "under q" not in bnn.loo(posterior, GAP).kind
    tree = bnn.to_datatree(posterior, GAP)
    np.testing.assert_array_equal(tree["posterior"]["0.weight"], NUMPYRO["0.weight"])
    assert int(tree["sample_stats"]["diverging"].sum()) == 3
    again = bnn.Posterior.from_draws(MODEL, GAP, tree["posterior"].dataset, seed=3)
    for other in (again, bnn.load(posterior.save(tmp_path / "posterior"))):
        assert torch.equal(other.predict(GRID).mean, posterior.predict(GRID).mean)
    one_chain = {name: values[0] for name, values in NUMPYRO.items()} | {"likelihood.scale": np.full(250, 0.3)}
    noisy = bnn.Posterior.from_draws(INFERRED, GAP, one_chain)
    torch.testing.assert_close(noisy.predict(GRID).aleatoric_std, torch.full((5,), 0.3))


class InTheStore(pyro.nn.PyroModule):
    def forward(self, x, y=None):
        pyro.sample("0.bias", pyro.distributions.Normal(pyro.param("loc", torch.zeros(5)), 0.1).to_event(1))


def test_what_does_not_fit_the_model_is_refused():
    learned = bnn.BNN(NET, likelihood=bnn.likelihoods.Gaussian("learned"))
    small = AutoNormal(bnn.BNN(bnn.MLP(1, [4], 1), prior=UNIT, likelihood=bnn.likelihoods.Gaussian(0.3)))
    whole = AutoNormal(MODEL)
    for guide in (small, whole):
        pyro.clear_param_store()  # it has the parameters of both by the same names
        guide(*GAP.tensors)
    for draws, model, message in (
        ({}, MODEL, "`draws` of '0.weight' has shape none, expected .5, 1. after the axes of draws: the sites are"),
        (NUMPYRO | {"f": 0.0}, MODEL, "`draws` of 'f' has shape .*, expected none"),
        (NUMPYRO | {"2.bias": np.zeros((4, 250))}, MODEL, r"of '2.bias' has shape \(\), expected \(1,\)"),
        (NUMPYRO | {"2.bias": np.zeros((4, 9, 1))}, MODEL, r"alike for all sites, got \{'0.bias': \(4, 250\)"),
        (NUMPYRO | {"2.bias": np.full((4, 250, 1), np.nan)}, MODEL, "is not finite, or lies outside"),
        (NUMPYRO | {"likelihood.scale": -np.ones((4, 250))}, INFERRED, "is not finite, or lies outside"),
        (NUMPYRO, learned, "likelihood.scale would have to be optimised"),
        (small, MODEL, r"of '0.weight' has shape \(4, 1\), expected \(5, 1\)"),
        (whole, INFERRED, "The guide of 'likelihood.scale' has shape none"),
        (InTheStore(), MODEL, "keeps 'loc' in Pyro's global store"),
        (lambda x, y: None, MODEL, "must be a PyroModule, which holds its parameters, got"),
    ):
        make = bnn.Posterior.from_draws if isinstance(draws, dict) else bnn.Posterior.from_guide
        with pytest.raises(bnn.InputError, match=message):
            make(model, GAP, draws)


def test_a_guide_that_pyro_trained_is_a_posterior(tmp_path):
    """Its draws have the location and scale of AutoNormal within five standard errors; the noise is the model's."""
    pyro.clear_param_store()
    model = bnn.BNN(NET, prior=UNIT, likelihood=bnn.likelihoods.Gaussian("learned"))
    guide = AutoNormal(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(20):
        svi.step(*GAP.tensors)
    posterior = bnn.Posterior.from_guide(model, GAP, guide)
    draws = posterior.draw(400)
    for name in draws:
        loc, scale = guide._get_loc_and_scale(name)
        assert bool(((draws[name].mean(0) - loc).abs() < 5 * scale / 20).all())
        assert bool((draws[name].std(0) / scale - 1).abs().max() < 5 / 800**0.5)
    assert torch.equal(posterior.bnn.likelihood.scale, model.likelihood.scale)
    before = posterior.predict(GRID).mean
    svi.step(*GAP.tensors)
    assert torch.equal(posterior.predict(GRID).mean, before)
    path = posterior.save(tmp_path / "posterior")
    assert torch.equal(bnn.load(path, guide=AutoNormal).predict(GRID).mean, before)
    with pytest.raises(bnn.InputError, match="saved with your own guide, AutoNormal: pass what makes it"):
        bnn.load(path)
    assert bnn.diagnose(posterior, GAP).findings
    assert np.isfinite(bnn.loo(posterior, GAP, num_draws=200).elpd)
    assert bnn.to_datatree(posterior, GAP, num_draws=100).attrs["guide"] == "AutoNormal"
    pyro.clear_param_store()


METHODS = [bnn.SVI(steps=5), bnn.NUTS(6, 6, 2, max_tree_depth=3), bnn.MCLMC(6, warmup=200, num_chains=2)]


@pytest.mark.slow
@parametrize_with_checks(METHODS, METHOD_CHECKS)
def test_methods_pass_the_checks(part, check):
    check(part)


@dataclasses.dataclass(frozen=True)
class Wrong(bnn.inference.Sampler):
    """Chains with a fault: values by a clock, the same for all seeds, or that are not finite."""

    fault: str = "clock"

    def walk(self, density, start):
        while True:
            yield {"clock": start * 0 + next(CLOCK), "seed": start * 0, "finite": start / 0}[self.fault], {}


CLOCK = itertools.count()


@dataclasses.dataclass(frozen=True)
class Elsewhere(bnn.inference.BaseMethod):
    """A fit to other data than are given, without a record."""

    def infer(self, model, data, run):
        posterior = bnn.SVI(steps=2).infer(model, make_data(), run)
        posterior.note(method=None)
        return posterior


CHECKS = {check.__name__.removeprefix("check_method_"): check for check in METHOD_CHECKS}
FAULTS = [("clock", "repeats"), ("seed", "repeats"), ("finite", "draws_and_predicts")]
FAULTS = [(Wrong(2, 1, 1, fault=fault), check) for fault, check in FAULTS]
FAULTS += [(Elsewhere(), check) for check in ("stores", "refuses", "round_trips")]


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("method", "check"), FAULTS, ids=str)
def test_wrong_methods_are_caught(method, check):
    with pytest.raises((AssertionError, RuntimeError, bnn.InputError)):
        CHECKS[check](method)


@pytest.mark.slow
def test_slices_nuts_and_numpyro_agree_in_the_gap(monkeypatch):
    """The epistemic deviation in the gap to 10 %, with seed 0; errors by Monte Carlo are some 3 %."""
    monkeypatch.setattr("pyrobnn.inference.method.registry._classes", dict(bnn.inference.method.registry._classes))
    page = {"__name__": "page"}
    exec(blocks(ROOT / "docs/how-to/own-sampler.md", "python")[0].code, page)
    brought = bnn.Posterior.from_draws(MODEL, GAP, NUMPYRO)
    slices = bnn.fit(MODEL, GAP, page["EllipticalSlice"](num_draws=500, warmup=50, thinning=20), progress=False)
    nuts = bnn.fit(MODEL, GAP, bnn.NUTS(num_draws=500, warmup=300), progress=False)
    expected = nuts.predict(GRID, num_draws=2000).epistemic_std
    for posterior in (brought, slices):
        torch.testing.assert_close(posterior.predict(GRID, num_draws=2000).epistemic_std, expected, rtol=0.1, atol=0)
    assert bnn.diagnose(slices, GAP).findings
    assert "under q" not in bnn.loo(slices, GAP).kind

"""Prior precision and noise by evidence: against exact linear regression and approximations under other scales."""

import math

import numpy as np
import pytest
import torch
from helpers import quick
from scipy.optimize import minimize
from torch import nn

import pyrobnn as bnn
from pyrobnn import guides

N, D, NOISE = 40, 3, 0.3
GROUPS = ("all", "site", "weight")


def linear_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=generator).double()
    noise = NOISE * torch.randn(N, generator=generator).double()
    return bnn.Data(x, x @ torch.tensor([1.0, -2.0, 0.1]).double() + noise, standardize=False)


def at_mode(alphas, beta, structure="full"):
    """The Laplace posterior of linear regression at its mode for these precisions."""
    data = linear_data()
    precision = torch.diag(torch.as_tensor(alphas)) + beta * data.x.T @ data.x
    net = nn.Sequential(nn.Linear(D, 1, bias=False)).double()
    net[0].weight.data = torch.linalg.solve(precision, beta * data.x.T @ data.y)[None]
    spread = torch.as_tensor(alphas).rsqrt().view(1, D)
    prior = bnn.priors.FromPosterior({"0.weight": (torch.zeros(1, D).double(), spread)})
    model = bnn.BNN(net, prior=prior, likelihood=bnn.likelihoods.Gaussian(scale=beta**-0.5))
    return guides.Laplace(structure=structure).around(model, data, progress=False), data


def curved(structure="full", *, standardize=False, **settings):
    """A small network that was not trained to its mode, with its data."""
    generator = torch.Generator().manual_seed(1)
    x = 4 * torch.rand(30, 1, generator=generator).double() - 2
    y = torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(30, generator=generator).double()
    data = bnn.Data(x, y, standardize=standardize)
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    model = bnn.BNN(net, prior=bnn.priors.Normal(0.7), likelihood=bnn.likelihoods.Gaussian(scale=0.4))
    return guides.Laplace(structure=structure, **settings).around(model, data, progress=False), data


def numbers(posterior):
    return {
        key: getattr(posterior.record.laplace, key)
        for key in ("log_evidence", "log_likelihood", "log_prior", "log_det")
    }


def under(posterior, data, alphas, noise, setting):
    """Return the approximation around the same weights under other precisions by site and another noise."""
    prior = {name: bnn.priors.Normal(alpha**-0.5) for name, alpha in alphas.items()}
    model = bnn.BNN(posterior.bnn.settings["net"], prior=prior, likelihood=bnn.likelihoods.Gaussian(noise))
    return setting.around(model, data, weights=posterior.mean(), progress=False)


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:Laplace:UserWarning")
@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize("curvature", ["ggn", "fisher"])
def test_no_scales_near_by_are_more_probable(curvature, structure):
    posterior, data = curved(structure, curvature=curvature)
    setting = guides.Laplace(curvature=curvature, structure=structure)
    tuned = bnn.tune_prior(posterior, data, per="site", noise=True)
    alphas, noise = tuned.record.laplace.precision, tuned.bnn.settings["likelihood"].scale
    best = numbers(tuned)["log_evidence"]
    assert best > numbers(posterior)["log_evidence"] + 1
    assert numbers(under(tuned, data, alphas, noise, setting))["log_evidence"] == pytest.approx(best)
    for factor in (0.98, 1.02):
        for name in alphas:
            others = alphas | {name: alphas[name] * factor}
            assert numbers(under(tuned, data, others, noise, setting))["log_evidence"] < best + 1e-9
        assert numbers(under(tuned, data, alphas, noise * factor, setting))["log_evidence"] < best + 1e-9


@pytest.mark.one_in(3)
@pytest.mark.parametrize("per", GROUPS)
def test_where_the_mode_follows_the_optimum_is_that_of_the_exact_evidence(per):
    """Tuning holds the mode: turns of mode and tuning end where the exact evidence of linear regression is largest."""
    alphas, beta = np.ones(D), 4.0
    for _ in range(12):
        posterior, data = at_mode(alphas, beta)
        tuned = bnn.tune_prior(posterior, data, per=per, noise=True)
        scales = tuned.bnn.prior("0.weight", torch.zeros(1, D).double()).base_dist.scale
        alphas = scales.expand(1, D).reshape(-1).detach().numpy() ** -2.0
        beta = tuned.bnn.settings["likelihood"].scale ** -2.0

    def negative(logs):
        """-log N(y | 0, 1 / beta + X diag(1 / alphas) X^T)."""
        alphas = torch.as_tensor(np.exp(logs[:-1]) * np.ones(D))
        covariance = torch.eye(N).double() / math.exp(logs[-1]) + (data.x / alphas) @ data.x.T
        return -float(torch.distributions.MultivariateNormal(torch.zeros(N).double(), covariance).log_prob(data.y))

    best = minimize(negative, np.zeros(1 + (D if per == "weight" else 1)), method="BFGS")
    assert numbers(tuned)["log_evidence"] == pytest.approx(-best.fun, abs=1e-4)
    found = np.log(alphas)[: len(best.x) - 1]
    np.testing.assert_allclose(np.append(found, math.log(beta)), best.x, atol=0.02)


KINDS = {
    **{f"ggn {s}": {"curvature": "ggn", "structure": s} for s in ("full", "kron", "diag")},
    **{f"fisher {s}": {"curvature": "fisher", "structure": s} for s in ("full", "kron", "diag")},
    **{f"hessian {s}": {"curvature": "hessian", "structure": s} for s in ("full", "diag")},
    "recursion": {"curvature": "recursion", "structure": "diag"},
    "subnetwork": {"structure": "full", "subnetwork": 5},
}


@pytest.mark.one_in(11, 3)
@pytest.mark.filterwarnings("ignore:Laplace:UserWarning")  # not at a mode; a prior that is no product
@pytest.mark.parametrize(("kind", "per"), [(k, p) for k in KINDS for p in GROUPS if k != "subnetwork" or p == "all"])
@pytest.mark.parametrize("noise", [True, False])
def test_a_tuned_posterior_is_that_of_a_model_with_the_tuned_prior(kind, per, noise):
    posterior, data = curved(**KINDS[kind], standardize=True)
    tuned = bnn.tune_prior(posterior, data, per=per, noise=noise)
    again = guides.Laplace(**KINDS[kind]).around(tuned.bnn, data, weights=tuned.mean(), progress=False)
    own, theirs = (vars(each.record.laplace) for each in (tuned, again))
    assert numbers(tuned) == pytest.approx(numbers(again), rel=1e-8)
    assert own["product_error"] == pytest.approx(theirs["product_error"])
    for key in ("setting", "repaired", "clipped"):
        assert own[key] == theirs[key]
    for mine, other in zip(tuned.guide.moments().values(), again.guide.moments().values(), strict=True):
        torch.testing.assert_close(mine, other)
    assert (tuned.bnn.settings["likelihood"].scale == 0.4) is not noise
    if kind.split()[0] in ("ggn", "fisher") and (kind, per) not in {("ggn kron", "weight"), ("fisher kron", "weight")}:
        assert own["log_evidence"] >= numbers(posterior)["log_evidence"]


def test_a_subnetwork_is_chosen_under_the_tuned_prior():
    """With a prior of two scales the posterior chose other weights than the one precision does."""
    posterior, data = curved(subnetwork=4)
    prior = {"0.*": bnn.priors.Normal(0.1), "*": bnn.priors.Normal(2.0)}
    model = bnn.BNN(posterior.bnn.settings["net"], prior=prior, likelihood=bnn.likelihoods.Gaussian(scale=0.4))
    setting = guides.Laplace(structure="full", subnetwork=4)
    uneven = setting.around(model, data, progress=False)
    tuned = bnn.tune_prior(uneven, data)
    again = setting.around(tuned.bnn, data, progress=False)
    chosen = [each.guide.blocks[0].index.tolist() for each in (uneven, tuned, again)]
    assert chosen[0] != chosen[1] == chosen[2]
    assert numbers(again) == pytest.approx(numbers(tuned), rel=1e-8)


def test_units_are_those_of_the_posterior_and_data_those_that_are_given():
    """The same examples without `standardize`, in another order, or around half of them, tune to the same posterior."""
    posterior, data = curved(standardize=True)
    expected = bnn.tune_prior(posterior, data, per="site", noise=True)
    for other in [(data.x, data.y), bnn.Data(data.x.flip(0), data.y.flip(0))]:
        tuned = bnn.tune_prior(posterior, other, per="site", noise=True)
        assert numbers(tuned) == pytest.approx(numbers(expected), rel=1e-8)
        torch.testing.assert_close(tuned.guide.spread(), expected.guide.spread())
    posterior, data = curved()
    whole = bnn.tune_prior(posterior, data, noise=True)
    half = guides.Laplace(structure="full").around(posterior.bnn, data[:15], progress=False)
    assert numbers(bnn.tune_prior(half, data, noise=True)) == pytest.approx(numbers(whole), rel=1e-8)


@pytest.mark.filterwarnings("ignore:Laplace")
def test_in_single_precision_every_start_ends_at_the_maximum():
    """The evidence of small precisions is rounded there."""
    x = torch.linspace(-1, 1, 60)[:, None]
    data = (x, torch.sin(3 * x) + 0.1 * torch.randn(60, 1, generator=torch.Generator().manual_seed(0)))
    net = bnn.MLP(1, [20], 1, activation="tanh")
    models = [
        bnn.BNN(net, prior=bnn.priors.Normal(precision**-0.5), likelihood=bnn.likelihoods.Gaussian(0.1))
        for precision in (1.0, 16.0, 1e-3)
    ]
    mode = quick(models[0], bnn.SVI(guide="map", steps=300, lr=0.02), data).mean()
    fits = [guides.Laplace(structure="full").around(m, data, weights=mode, progress=False) for m in models]
    found = [numbers(bnn.tune_prior(posterior, data))["log_evidence"] for posterior in fits]
    assert found == pytest.approx(3 * found[:1], abs=0.1)


def test_what_is_not_gaussian_keeps_its_prior():
    posterior, data = curved(sites="last_layer")
    tuned = bnn.tune_prior(posterior, data)
    choices = dict(tuned.bnn.settings["prior"].choices)
    assert set(choices) == {"2.weight", "2.bias", "*"}
    assert choices["*"] == bnn.priors.Normal(0.7)
    assert choices["2.weight"] == choices["2.bias"] != choices["*"]
    alphas = tuned.record.laplace.precision
    assert alphas == pytest.approx({name: choices[name].scale ** -2 for name in ("2.weight", "2.bias")})


def fitted(prior=None, likelihood=None, **settings):
    net = nn.Sequential(nn.Linear(2, 1))
    model = bnn.BNN(net, prior=prior or "normal", likelihood=likelihood or bnn.likelihoods.Gaussian(scale=1.0))
    data = bnn.Data(torch.randn(8, 2), torch.randn(8))
    return guides.Laplace(**settings).around(model, data, progress=False), data


@pytest.mark.parametrize(
    ("made", "asked", "message"),
    [
        ({}, {"per": "layer"}, "`per` must be one of all, site, weight; got 'layer'"),
        ({"structure": "low_rank", "rank": 1}, {}, "what structure='low_rank' keeps depends on the prior"),
        ({"structure": "full", "subnetwork": 2}, {"per": "site"}, "which weights a subnetwork has: use per='all'"),
        ({"prior": bnn.priors.StudentT(4.0)}, {}, "tunes the precision of normal priors, but '0.weight' has"),
        ({"prior": "hierarchical"}, {}, "the prior's scales are latent and were inferred"),
        ({"likelihood": bnn.likelihoods.StudentT(scale=1.0)}, {"noise": True}, "`noise=True` tunes a single scale"),
    ],
)
def test_what_cannot_be_tuned_is_refused(made, asked, message):
    posterior, data = fitted(**made)
    with pytest.raises(bnn.InputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        bnn.tune_prior(posterior, data, **asked)


def test_other_guides_are_refused():
    data = bnn.Data(torch.randn(5, 1), torch.randn(5))
    posterior = quick(bnn.BNN(bnn.MLP(1, [2], 1), prior=bnn.priors.Normal(1.0)), bnn.SVI(steps=2), data)
    with pytest.raises(bnn.InputError, match="tune_prior takes the posterior of a Laplace guide, got MeanF"):
        bnn.tune_prior(posterior, data)

"""The Laplace guide end to end: exact on linear regression, its settings, repairs, refusals, and all that uses it."""

import dataclasses
import itertools
import math
import warnings

import pyro.distributions as dist
import pytest
import torch
from exact import linear_evidence, linear_posterior
from hard_to_batch import hard_to_batch
from helpers import Net
from helpers import block_covariance as covariance
from pyro import poutine
from pyro.infer import Trace_ELBO
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import pyrobnn as bnn
from pyrobnn import guides, likelihoods, priors
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import to_dict
from pyrobnn.curvature.prior import log_entries
from pyrobnn.guides import BlockGaussian, Laplace
from pyrobnn.guides.blocks import BlockSpec
from pyrobnn.inference import data as network_checks
from pyrobnn.inference.laplace import checked_setting
from pyrobnn.likelihoods import noise
from pyrobnn.posterior.output_covariance import functional

F64 = torch.float64
ERRORS = 4.0


def around(model, x, y, *, standardize=False, weights=None, **settings):
    data = bnn.Data(x, y, standardize=standardize)
    return Laplace(**settings).around(model, data, weights=weights, progress=False, device="cpu")


NUM, DIM, NOISE, PRIOR = 30, 4, 0.5, 0.8


def regression(*, bias):
    with seeded(1):
        x = torch.randn(NUM, DIM, dtype=F64) @ torch.randn(DIM, DIM, dtype=F64)
        y = 3.0 + 2.0 * x[:, 0] - x[:, 1] + NOISE * torch.randn(NUM, dtype=F64)
        net = nn.Linear(DIM, 1, bias=bias).double()
    model = bnn.BNN(net, prior=priors.Normal(PRIOR), likelihood=likelihoods.Gaussian(NOISE))
    features = torch.cat([x, torch.ones(NUM, 1, dtype=F64)], 1) if bias else x
    return model, x, y, features


def exact(features, y, noise_scale=NOISE):
    """Mean, covariance and log evidence of y = features w + noise, w ~ N(0, PRIOR^2)."""
    posterior = map(torch.from_numpy, linear_posterior(features, y, noise_scale, PRIOR))
    return *posterior, linear_evidence(features, y, noise_scale, PRIOR)


def mode(mean):
    weights = {"weight": mean[None, :DIM]}
    return weights | ({"bias": mean[DIM:]} if len(mean) > DIM else {})


EXACT_SETTINGS = {
    "full": {"structure": "full"},
    "kron": {"structure": "kron"},
    "kron, reduce": {"structure": "kron", "sharing": "reduce"},
    "low_rank": {"structure": "low_rank", "rank": DIM - 1},
    "hessian": {"structure": "full", "curvature": "hessian"},
    "full, subnetwork of all": {"structure": "full", "subnetwork": DIM},
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", EXACT_SETTINGS)
def test_linear_regression_is_exact(name, bias):
    settings = dict(EXACT_SETTINGS[name])
    model, x, y, features = regression(bias=bias)
    if name == "low_rank":  # of D directions at most D - 1: data with a direction that they never move in
        x = x.clone()
        x[:, -1] = x[:, 0]
        features = torch.cat([x, torch.ones(NUM, 1, dtype=F64)], 1) if bias else x
        settings["rank"] = DIM - 1 + bias
    if "subnetwork" in settings:
        settings["subnetwork"] += bias
    mean, expected, evidence = exact(features, y)
    posterior = around(model, x, y, weights=mode(mean), batch_size=7, **settings)
    torch.testing.assert_close(covariance(posterior.guide), expected, rtol=1e-8, atol=1e-10)
    assert posterior.record.laplace.log_evidence == pytest.approx(evidence, rel=1e-8)
    assert posterior.record.laplace.repaired == 0


@pytest.mark.parametrize("settings", [{"joint_bias": False}, {"structure": "diag"}], ids=["bias apart", "diag"])
def test_other_structures_have_their_part_of_the_precision(settings):
    model, x, y, features = regression(bias=True)
    mean, whole, _ = exact(features, y)
    posterior = around(model, x, y, weights=mode(mean), **settings)
    precision = torch.linalg.inv(whole)
    precision[DIM, :DIM] = precision[:DIM, DIM] = 0
    precision = torch.diag(precision.diagonal()) if "structure" in settings else precision
    torch.testing.assert_close(covariance(posterior.guide), torch.linalg.inv(precision), rtol=1e-8, atol=1e-10)


OPEN = {
    "few": ([55, 50], {}, "full"),
    "3,000": ([1500], {"sites": "0.*"}, "full"),
    "more than 3,000": ([1501], {"sites": "0.*"}, "kron"),
    "many": ([60, 50], {}, "kron"),
    "few of many": ([60, 50], {"sites": "last_layer"}, "full"),
    "a subnetwork": ([60, 50], {"subnetwork": 5}, "full"),
    "a setting of Kronecker factors": ([4], {"joint_bias": False}, "kron"),
    "another such setting": ([4], {"sharing": "reduce"}, "kron"),
    "no full": ([4], {"curvature": "recursion"}, "diag"),
    "no Kronecker factors": ([60, 50], {"curvature": "hessian"}, "diag"),
    "labels": ([4], {"likelihood": likelihoods.Bernoulli()}, "kron"),
    "counts": ([4], {"likelihood": likelihoods.Poisson()}, "full"),
    "a subnetwork for labels": ([4], {"likelihood": likelihoods.Bernoulli(), "subnetwork": 5}, "full"),
    "one that is named": ([4], {"structure": "kron"}, "kron"),
}


@pytest.mark.parametrize("name", OPEN)
def test_a_structure_left_open_depends_on_the_number_of_gaussian_weights(name):
    hidden, settings, expected = OPEN[name]
    settings = dict(settings)
    likelihood = settings.pop("likelihood", likelihoods.Gaussian(0.3))
    model = bnn.BNN(bnn.MLP(1, hidden, 1), prior=priors.Normal(1.0), likelihood=likelihood)
    example = (torch.zeros(2, 1), torch.zeros(2))
    found, _ = checked_setting(Laplace(**settings), model, example, guides.latent_sites(model, *example))
    assert found.structure == expected
    assert "structure" in to_dict(found)
    assert dataclasses.replace(found, structure=settings.get("structure")) == Laplace(**settings)


def test_evidence_of_standardised_targets_is_that_of_the_original_ones():
    """With z = (y - m) / s the evidence of y is that of z divided by s^N; the noise is given in the units of y."""
    model, x, y, _ = regression(bias=True)
    x_scaled, loc, scale = (x - x.mean(0)) / x.std(0, unbiased=False), y.mean(), y.std(unbiased=False)
    features = torch.cat([x_scaled, torch.ones(NUM, 1, dtype=F64)], 1)
    mean, expected, evidence = exact(features, (y - loc) / scale, NOISE / float(scale))
    posterior = around(model, x, y, standardize=True, weights=mode(mean), structure="full")
    torch.testing.assert_close(covariance(posterior.guide), expected, rtol=1e-8, atol=1e-10)
    wanted = evidence - NUM * math.log(float(scale))
    assert posterior.record.laplace.log_evidence == pytest.approx(wanted, rel=1e-8)
    # Predictions are in original units too: the exact predictive of the linear model.
    law = functional(posterior, x[:3])
    torch.testing.assert_close(law.mean[:, 0], features[:3] @ mean, rtol=1e-8, atol=1e-10)
    drawn = posterior.predict(x[:3], num_draws=4000, seed=1)
    error = float(scale) * law.variance[:, 0].sqrt() / math.sqrt(4000)
    assert float(((drawn.mean.flatten() - (loc + scale * law.mean[:, 0])) / error).abs().max()) < ERRORS


def make_net():
    with seeded(3):
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()


with seeded(4):
    X = torch.randn(15, 2, dtype=F64)
    Y = torch.sin(X[:, 0]) + 0.1 * torch.randn(15, dtype=F64)


def model_with(prior=None, likelihood=None, net=None):
    prior, likelihood = prior or priors.Normal(1.0), likelihood or likelihoods.Gaussian(0.3)
    return bnn.BNN(net or make_net(), prior=prior, likelihood=likelihood)


def multivariate(name, value):
    if name != "2.weight":
        return dist.Normal(torch.zeros((), dtype=F64), 1.0)
    root = torch.eye(4, dtype=F64) + 0.6 * torch.ones(4, 4, dtype=F64).tril(-1)
    return dist.MultivariateNormal(torch.zeros(1, 4, dtype=F64), scale_tril=root).to_event(1)


def positive_prior(name, value):
    if name == "0.bias":
        return dist.HalfNormal(torch.ones((), dtype=F64))
    return dist.Normal(torch.zeros((), dtype=F64), 1.0)


def unknown():
    """A layer of unknown structure."""
    return Net(lambda net, x: (x * net.a).sum(1, keepdim=True), a=nn.Parameter(torch.ones(2, dtype=F64)))


def loader(**options):
    return DataLoader(TensorDataset(X, Y), batch_size=4, **options)


class Endless:
    """Batches without an end."""

    def __iter__(self):
        return itertools.repeat((X[:4], Y[:4]))


def wide(width):
    net = nn.Linear(width, 1, bias=False).double()
    return bnn.BNN(net, prior=priors.Normal(1.0), likelihood=likelihoods.Gaussian(0.5))


def stop(_):
    raise AssertionError("a step was done")


STRUCTURES = {
    "kron": {},
    "full": {"structure": "full"},
    "diag": {"structure": "diag"},
    "low_rank": {"structure": "low_rank", "rank": 5},
    "subnetwork": {"structure": "full", "subnetwork": 6},
    "last layer": {"sites": "last_layer"},
    "fisher": {"curvature": "fisher", "structure": "full"},
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_log_q_of_a_draw_is_its_density_and_the_closed_kl_that_of_normals(name):
    """log q that Trace_ELBO adds up, over all sites, is the multivariate normal's; Deltas count nothing."""
    posterior = around(model_with(priors.Normal(0.7)), X, Y, **STRUCTURES[name])
    guide, points, whole = posterior.guide, posterior.guide.points_by_name(), covariance(posterior.guide).detach()
    varies = whole.diagonal() > 0
    normal = MultivariateNormal(torch.zeros(int(varies.sum()), dtype=F64), whole[varies][:, varies])
    with seeded(6):
        trace = poutine.trace(guide).get_trace()
    flat = torch.cat([(trace.nodes[site]["value"] - points[site]).flatten() for site in points]).detach()
    torch.testing.assert_close(trace.log_prob_sum().detach(), normal.log_prob(flat[varies]), rtol=1e-9, atol=1e-9)
    with poutine.block():
        replayed = poutine.trace(poutine.replay(posterior.bnn, trace=trace)).get_trace(X, Y)
        with seeded(6):
            elbo = -Trace_ELBO().loss(posterior.bnn, guide, X, Y)
    assert elbo == pytest.approx(float((replayed.log_prob_sum() - trace.log_prob_sum()).detach()), rel=1e-9)
    if name == "full":
        q = MultivariateNormal(guide.loc.detach(), whole)
        p = MultivariateNormal(torch.zeros(len(whole), dtype=F64), 0.49 * torch.eye(len(whole), dtype=F64))
        total = sum(kl_divergence(trace.nodes[site]["fn"], replayed.nodes[site]["fn"]) for site in points).detach()
        torch.testing.assert_close(total, kl_divergence(q, p), rtol=1e-9, atol=1e-9)


def varying(posterior):
    spread = dict(zip(posterior.guide.points_by_name(), posterior.guide.moments().values(), strict=True))
    return {name: int((std > 0).sum()) for name, (_, std) in spread.items()}


def test_sites_pick_the_weights_that_vary():
    model = model_with()
    assert varying(around(model, X, Y)) == {"0.weight": 8, "0.bias": 4, "2.weight": 4, "2.bias": 1}
    last = {"0.weight": 0, "0.bias": 0, "2.weight": 4, "2.bias": 1}
    assert varying(around(model, X, Y, sites="last_layer")) == last
    assert varying(around(model, X, Y, sites="2.*")) == last
    assert varying(around(model, X, Y, sites=("*.bias",))) == {"0.weight": 0, "0.bias": 4, "2.weight": 0, "2.bias": 1}
    both = around(model, X, Y, sites=("0.weight", "2.*"), structure="full")
    assert varying(both) == {"0.weight": 8, "0.bias": 0, "2.weight": 4, "2.bias": 1}
    bounded = around(model_with(positive_prior), X, Y, sites=("*.weight",))
    assert bool((bounded.draw(2)["0.bias"] > 0).all())
    with pytest.warns(UserWarning, match="a belong to layers of unknown structure"):
        assert around(model_with(net=unknown()), X, Y, structure="full").record.laplace.slow == ["a"]


def test_a_subnetwork_has_the_weights_of_the_largest_marginal_variance():
    model = model_with()
    diagonal = around(model, X, Y, structure="diag")
    spread = diagonal.guide.spread()
    largest = set(spread.argsort(descending=True)[:6].tolist())
    posterior = around(model, X, Y, structure="full", subnetwork=6)
    assert set(posterior.guide.spread().nonzero().flatten().tolist()) == largest
    whole = torch.linalg.inv(covariance(around(model, X, Y, structure="full").guide))
    index = torch.tensor(sorted(largest))
    found = covariance(posterior.guide)[index][:, index]
    torch.testing.assert_close(torch.linalg.inv(found), whole[index][:, index], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("settings", [{"sites": "last_layer"}, {"subnetwork": 5}], ids=repr)
@pytest.mark.parametrize(
    "prior", [priors.Normal(0.6), priors.Anchored(priors.ScaleMixture(sigma1=1.0, sigma2=0.8))], ids=repr
)
def test_evidence_counts_the_weights_that_vary_alone(settings, prior):
    """log p(y | w) + log p(w_S) + |S| / 2 log 2 pi - 1 / 2 log det of the precision of w_S, computed apart."""
    model = model_with(prior)
    posterior = around(model, X, Y, structure="full", **settings)
    points = posterior.mean()
    varies = posterior.guide.spread() > 0
    law = posterior.bnn.likelihood(posterior.bnn.outputs(points, X))
    of_entries = [log_entries(posterior.bnn.prior(name, value), value).flatten() for name, value in points.items()]
    log_prior = float(torch.cat(of_entries)[varies].sum())
    whole = covariance(posterior.guide)[varies][:, varies]
    expected = float(law.log_prob(Y).sum()) + log_prior
    expected += 0.5 * float(torch.logdet(whole)) + 0.5 * int(varies.sum()) * math.log(2 * math.pi)
    found = vars(posterior.record.laplace)
    assert found["dimension"] == 5
    assert found["log_prior"] == pytest.approx(log_prior, rel=1e-9)
    assert found["log_evidence"] == pytest.approx(expected, rel=1e-9)


def test_a_multivariate_prior_keeps_its_correlations_in_the_full_structure():
    posterior = around(model_with(multivariate), X, Y, structure="full")
    plain = around(model_with(), X, Y, structure="full")
    difference = torch.linalg.inv(covariance(posterior.guide)) - torch.linalg.inv(covariance(plain.guide))
    expected = torch.zeros(17, 17, dtype=F64)
    own = multivariate("2.weight", None).base_dist.precision_matrix[0]
    expected[12:16, 12:16] = own - torch.eye(4, dtype=F64)
    torch.testing.assert_close(difference, expected, rtol=1e-8, atol=1e-8)
    with pytest.warns(UserWarning, match="the prior correlates the entries of 2.weight"):
        diagonal = around(model_with(multivariate), X, Y, structure="diag").guide.spread() ** -2
    found = diagonal - around(model_with(), X, Y, structure="diag").guide.spread() ** -2
    torch.testing.assert_close(found, expected.diagonal(), rtol=1e-8, atol=1e-8)


def test_a_prior_that_is_no_product_is_told_of_and_kept_whole_elsewhere():
    def wild(name, value):
        scale = torch.linspace(0.2, 2.0, value.numel(), dtype=F64).view(value.shape)
        return dist.Normal(torch.zeros_like(scale), scale)

    with pytest.warns(UserWarning, match="of 0.weight is no product over inputs and outputs"):
        posterior = around(model_with(wild), X, Y, structure="kron")
    assert posterior.record.laplace.product_error["0.weight"] > 1.5
    diagonal = around(model_with(wild), X, Y, structure="diag")  # and no warning
    full = around(model_with(wild), X, Y, structure="full")
    precision = torch.linalg.inv(covariance(full.guide)).diagonal()
    torch.testing.assert_close(covariance(diagonal.guide).diagonal(), 1 / precision, rtol=1e-8, atol=1e-10)


def test_a_separable_prior_is_taken_exactly():
    """Scales by input: the Kronecker block of a layer with them is the one of a layer with scaled inputs."""

    def by_input(name, value):
        if name == "weight":
            return dist.Normal(torch.zeros_like(value), torch.tensor([0.5, 2.0], dtype=F64))
        return dist.Normal(torch.zeros_like(value), 1.0)

    net = nn.Linear(2, 1).double()
    posterior = around(model_with(by_input, net=net), X, Y, structure="kron")
    full = around(model_with(by_input, net=net), X, Y, structure="full")
    torch.testing.assert_close(covariance(posterior.guide), covariance(full.guide), rtol=1e-8, atol=1e-10)
    assert posterior.record.laplace.product_error == {}


def test_weights_where_the_prior_is_not_concave_are_counted_and_told_of_at_the_caller():
    weights = {"2.weight": torch.tensor([[0.1, 5.0, -6.0, 0.2]], dtype=F64)}
    said = r"2 weights .2.weight. stand where the log prior is not concave.*: check it .*take a normal prior"
    with pytest.warns(UserWarning, match=said) as caught:
        posterior = around(model_with(priors.StudentT(5.0, 1.0)), X, Y, weights=weights, structure="diag")
    assert posterior.record.laplace.clipped == {"2.weight": 2}
    assert not any(str(one.filename).endswith("curve.py") for one in caught)


def test_scales_that_a_prior_infers_stay_at_the_mode():
    prior, likelihood = priors.Hierarchical("gamma", 1.0), likelihoods.Gaussian(noise.HalfNormal(1.0))
    posterior = model_with(prior, likelihood).fit(
        X, Y, guide=Laplace(), seed=0, steps=30, lr=0.05, progress=False, engine="eager", device="cpu"
    )
    draws = posterior.draw(4)
    added = [name for name in draws if name not in posterior.bnn.site_names]
    assert "likelihood.scale" in added
    assert len(added) > 1
    for name in added:
        assert bool((draws[name] == draws[name][0]).all())
        torch.testing.assert_close(draws[name][0], posterior.mean()[name])
        assert float(posterior.guide.moments()[name][1].abs().max()) == 0
    law = poutine.trace(posterior.guide).get_trace().nodes[added[0]]["fn"]
    assert isinstance(law, dist.Delta)


def test_negative_curvature_is_repaired_and_told_of():
    weights = {"2.weight": torch.tensor([[4.0, -4.0, 5.0, 3.0]], dtype=F64), "0.weight": torch.ones(4, 2, dtype=F64)}
    settings = {"curvature": "hessian", "structure": "full"}
    with pytest.warns(UserWarning, match="directions of the curvature were not positive"):
        posterior = around(model_with(), X, Y, weights=weights, **settings)
    repaired = posterior.record.laplace.repaired
    assert repaired > 0
    values = torch.linalg.eigvalsh(covariance(posterior.guide))
    assert float(values.min()) > 0
    assert int((values - 1).abs().lt(1e-8).sum()) == repaired  # they have the prior's precision, 1
    with pytest.warns(UserWarning, match="directions of the curvature were not positive"):
        diagonal = around(model_with(), X, Y, weights=weights, curvature="hessian", structure="diag")
    spread = diagonal.guide.spread()
    assert diagonal.record.laplace.repaired == int((spread == 1).sum()) > 0


@pytest.mark.parametrize("structure", ["full", "subnetwork", "kron"])
@pytest.mark.parametrize(("noise", "scale"), [(1e-6, 1.0), (1e-12, 1.0), (0.1, 1e6), (1e-6, 1e6)])
@pytest.mark.parametrize(
    ("columns", "dtype"), [("twice", F64), ("constant", F64), ("wide", F64), ("twice", torch.float32)]
)
@pytest.mark.filterwarnings("ignore:Laplace. .* directions")
def test_curvature_far_above_the_prior_leaves_the_prior_where_it_is_zero(columns, dtype, noise, scale, structure):
    """The exact posterior of a linear model, by singular values."""
    x = torch.randn(12, 20 if columns == "wide" else 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    x = torch.cat([x, {"twice": x[:, :1], "constant": 0 * x[:, :1] + 2, "wide": x[:, :0]}[columns]], 1)
    design = torch.cat([x, torch.ones(12, 1, dtype=F64)], 1)
    _, values, vectors = torch.linalg.svd(design * scale / noise)
    values = torch.cat([values, torch.zeros(len(vectors) - len(values), dtype=F64)])
    values = torch.where(values < 1e-10 * values.max(), 0.0, values)
    expected = scale * (vectors.square().T @ (1 / (1 + values.square()))).sqrt()
    net = nn.Linear(x.shape[1], 1).to(dtype)
    model = bnn.BNN(net, prior=priors.Normal(scale), likelihood=likelihoods.Gaussian(noise))
    setting = {"structure": structure} if structure != "subnetwork" else {"subnetwork": design.shape[1]}
    found = Laplace(**setting).around(model, (x.to(dtype), x[:, 0].to(dtype)), progress=False).guide.spread().double()
    if structure == "kron" and dtype == torch.float32:  # its eigenvectors have rounding of their own
        expected, found = (spreads.clamp_min(1e-6 * scale) for spreads in (expected, found))
        torch.testing.assert_close(found[[0, 2]], expected[[0, 2]], rtol=0.01, atol=0)
    else:
        torch.testing.assert_close(found, expected, rtol=0.01, atol=0)


@pytest.mark.parametrize(
    "settings",
    [{"structure": name, "rank": 2} for name in ("kron", "diag", "full", "low_rank")]
    + [{"structure": "diag", "curvature": "hessian"}],
    ids=str,
)
def test_the_network_takes_no_more_examples_at_once_than_asked_for_also_of_larger_batches(settings, monkeypatch):
    monkeypatch.setattr(network_checks, "_NUMBERS", 0)
    batches, sizes = DataLoader(TensorDataset(X, Y), batch_size=len(X)), []
    net = make_net()
    net.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    model = model_with(net=net)
    whole, found = (Laplace(**settings, batch_size=size) for size in (len(X), 3))
    expected = whole.around(model, batches, progress=False, device="cpu")
    assert max(sizes) == len(X)
    sizes.clear()
    posterior = found.around(model, batches, progress=False, device="cpu")
    assert max(sizes) == 3
    torch.testing.assert_close(posterior.guide.spread(), expected.guide.spread())
    evidence = [one.record.laplace.log_evidence for one in (posterior, expected)]
    assert evidence[0] == pytest.approx(evidence[1], rel=1e-8)


def tried(model=None, x=X, y=Y, **settings):
    return lambda: around(model or model_with(), x, y, **settings)


WIDE = bnn.BNN(nn.Linear(60_000, 1, bias=False), likelihood=likelihoods.Gaussian(0.3), prior=bnn.priors.Normal(1.0))
FLAT = dist.Normal(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1e200, dtype=torch.float64))
REFUSALS = {
    "recursion' has structure 'diag', got 'kron'": lambda: Laplace(curvature="recursion", structure="kron"),
    "has structure 'full' or 'diag', got 'kron'": lambda: Laplace(curvature="hessian", structure="kron"),
    "it needs structure='full', got 'kron'": lambda: Laplace(subnetwork=3, structure="kron"),
    "over 60,000 weights needs": tried(WIDE, torch.zeros(2, 60_000), torch.zeros(2), structure="full"),
    "`subnetwork` needs a prior of independent": tried(model_with(multivariate), structure="full", subnetwork=3),
    "which is no weight of the model: 0.weight": tried(weights={"1.weight": torch.zeros(1)}),
    r"has shape \(3,\), expected \(1,\)": tried(weights={"2.bias": torch.zeros(3)}),
    "is not finite, or lies outside the support of": tried(weights={"2.bias": torch.full((1,), math.nan)}),
    "the last layer is of an unknown kind": tried(
        model_with(net=nn.Sequential(nn.Linear(2, 2).double(), unknown())), sites="last_layer"
    ),
    "a pass of the DataLoader gave 12: use drop_last=False": lambda: Laplace().around(
        model_with(), loader(drop_last=True), progress=False, device="cpu"
    ),
    "each once, and a pass of the DataLoader gave 15": lambda: model_with().fit(
        loader(sampler=RandomSampler(X, replacement=True)), guide="laplace", steps=2000, seed=0, progress=False
    ),
    "a pass of the DataLoader gave 8 or more": lambda: Laplace().around(
        model_with(), bnn.Loader(Endless(), num_data=6), progress=False, device="cpu"
    ),
    r"40,000 x 40,000 matrix for 'weight', in 36 GiB: use structure='diag'": lambda: wide(40_000).fit(
        torch.zeros(4, 40_000), torch.zeros(4), guide="laplace", steps=1, seed=0, progress=False, callbacks=[stop]
    ),
    "BlockGaussian has nothing to train: use a guide such as": lambda: model_with().fit(
        X, Y, seed=0, guide=around(model_with(), X, Y).record.method["guide"], steps=1, progress=False
    ),
    "'0.weight' is in 2 blocks: keep it in one block": lambda: BlockGaussian(
        (BlockSpec("diag", ("0.weight",)), BlockSpec("kron", ("0.weight", "0.bias")))
    ),
    "Laplace is of the posterior itself, got temperature=": lambda: model_with().fit(
        X, Y, seed=0, guide=Laplace(), temperature=0.5, steps=1, progress=False
    ),
    "is flat, its precision is zero": tried(model_with(FLAT)),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals_say_what_to_do(message):
    with pytest.raises(bnn.InputError, match=message):
        REFUSALS[message]()


EARLY = {
    "was asked for of 17 weights: use structure='full'": {"structure": "low_rank", "rank": 17},
    "a subnetwork of 18 weights was asked for of 17": {"structure": "full", "subnetwork": 18},
    "pattern '7.*' matches nothing": {"sites": "7.*"},
    "runs back through a torch.nn.Sequential": {"structure": "diag", "curvature": "recursion"},
    "and the prior of '0.bias' has another support": {},
}


@pytest.mark.parametrize("message", EARLY)
def test_what_does_not_fit_is_refused_before_training_and_around_weights(message):
    net = Net(lambda net, x: net.net(x), net=make_net()) if "Sequential" in message else make_net()
    model = model_with(positive_prior if "support" in message else None, net=net)
    with pytest.raises(bnn.InputError, match=message):
        model.fit(X, Y, seed=0, guide=Laplace(**EARLY[message]), steps=100, progress=False, callbacks=[stop])
    if "Sequential" not in message:
        with pytest.raises(bnn.InputError, match=message):
            around(model, X, Y, **EARLY[message])


@pytest.mark.parametrize("name", ["kron", "full", "diag", "low_rank"])
def test_curvature_that_is_not_finite_is_refused(name):
    with pytest.raises(FloatingPointError, match="is not finite. Look for infinities in the data"):
        around(model_with(net=nn.Linear(2, 1).double()), 1e200 * X, Y, structure=name, rank=1)


@pytest.mark.parametrize(
    ("name", "settings", "instead"),
    [
        ("cdist", {"structure": "low_rank", "rank": 2}, "use 'kron' or 'diag'"),
        ("embedding bag", {"structure": "low_rank", "rank": 2}, "use 'kron' or 'diag'"),
        ("packed", {"structure": "diag", "curvature": "hessian"}, "use 'ggn'"),
    ],
)
def test_curvature_that_torch_cannot_take_is_refused_before_training(name, settings, instead):
    net, x = hard_to_batch(name)
    model = bnn.BNN(net, prior=priors.Normal(1.0), likelihood=likelihoods.Gaussian(0.3))
    with pytest.raises(bnn.InputError, match=f"forward-mode derivatives, which torch lacks for this net.*{instead}"):
        model.fit(x, torch.zeros(len(x), 2), guide=Laplace(**settings), seed=0, progress=False, callbacks=[stop])


@pytest.mark.parametrize("name", ["cdist", "embedding bag", "packed"])
def test_too_many_derivatives_without_forward_mode_are_refused_before_training(name, monkeypatch):
    for module in ("posterior.output_draws", "inference.laplace"):
        monkeypatch.setattr(f"pyrobnn.{module}.MOST_DERIVATIVES", 20)
    net, x = hard_to_batch(name)
    model, y = bnn.BNN(net, prior=priors.Normal(1.0), likelihood=likelihoods.Gaussian(0.3)), torch.zeros(len(x), 2)
    with pytest.raises(bnn.InputError, match=r"no forward-mode derivative .*Laplace\(linearized=False\)"):
        model.fit(x, y, guide=Laplace(), seed=0, progress=False, callbacks=[stop])
    with warnings.catch_warnings(action="ignore"):
        data = bnn.Data(x, y, standardize=False)
        posterior = Laplace(linearized=False).around(model, data, progress=False, device="cpu")
        assert posterior.predict(x, num_draws=3).mean.shape == y.shape
        with pytest.raises(bnn.InputError, match=r"predict\(x, linearized=False\)"):
            posterior.predict(x, num_draws=3, linearized=True)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_noise_around_a_plain_network_is_the_deviation_of_its_residuals(standardize, columns, weighted):
    """Of each column, in its units, each example counted with its weight; a column that is met has the least."""
    with seeded(3):
        net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, columns)).double()
    counts = torch.arange(1.0, len(X) + 1, dtype=X.dtype) if weighted else torch.ones(len(X), dtype=X.dtype)
    y = torch.stack([Y, 1000 * Y.sin(), net(X)[:, -1].detach() if columns == 3 else Y], 1)[:, :columns]
    data = bnn.Data(X, y, weights=counts if weighted else None, standardize=standardize)
    posterior = Laplace(structure="full").around(net, data, progress=False, device="cpu")
    mean = posterior.predict(X, at_mean=True).mean.reshape(y.shape)
    expected = (((mean - y).square() * counts[:, None]).sum(0) / counts.sum()).sqrt().clamp_min(1e-6)
    found = posterior.bnn.settings["likelihood"].scale
    assert (found if columns > 1 else (found,)) == pytest.approx(tuple(expected.tolist()), rel=1e-6)
    noise = posterior.predict(X[:2], num_draws=2).aleatoric_std.reshape(2, columns)
    torch.testing.assert_close(noise, expected.expand(2, -1), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_columns_around_a_plain_network_are_as_certain_as_each_alone(structure):
    """Where each column has weights of its own, columns of other units leave its posterior as it is."""
    with seeded(3):
        net = nn.Linear(2, 2, bias=False).double()
    y = torch.stack([Y, 1000 * Y.cos()], 1)
    both = around(net, X, y, structure=structure)
    for column in range(2):
        alone = nn.Linear(2, 1, bias=False).double()
        alone.weight.data.copy_(net.weight[column : column + 1])
        one = around(alone, X, y[:, column : column + 1], structure=structure)
        torch.testing.assert_close(both.guide.spread().view(2, 2)[column], one.guide.spread(), rtol=1e-9, atol=0.0)


def test_around_a_plain_network_chooses_the_likelihood_by_the_targets():
    net = make_net()
    posterior = around(net, X, Y)
    assert posterior.bnn.settings["prior"] == priors.Normal(1.0)
    assert isinstance(posterior.bnn.settings["likelihood"], likelihoods.Gaussian)
    with seeded(1):
        classifier = nn.Sequential(nn.Linear(2, 3)).double()
    labels = torch.randint(0, 3, (len(X),))
    batches = DataLoader(TensorDataset(X, labels), batch_size=4, shuffle=True)
    for data in ((X, labels), bnn.Data(X, labels), batches):
        posterior = Laplace().around(classifier, data, progress=False, device="cpu")
        assert isinstance(posterior.bnn.settings["likelihood"], likelihoods.Categorical)
    torch.testing.assert_close(posterior.mean()["0.weight"], classifier[0].weight.detach())


def test_a_loader_gives_the_same_and_leaves_random_state_alone():
    model = model_with()
    state = torch.get_rng_state()
    first = Laplace(structure="full").around(model, loader(shuffle=True), progress=False, device="cpu")
    assert torch.equal(state, torch.get_rng_state())
    second = around(model, X, Y, structure="full")
    torch.testing.assert_close(covariance(first.guide), covariance(second.guide), rtol=1e-9, atol=1e-12)


def test_around_a_fit_gives_the_posterior_of_the_fit():
    """Learned noise, inferred scales and standardised targets included: the same mode, the same Gaussian."""
    model = model_with(priors.Hierarchical("gamma", 1.0), likelihoods.Gaussian("learned"))
    data = bnn.Data(X, 5.0 + 3.0 * Y)
    method = bnn.SVI(guide=Laplace(), steps=40, lr=0.05)
    fitted = bnn.fit(model, data, method, seed=0, engine="eager", progress=False, device="cpu")
    again = Laplace().around(fitted.bnn, data, weights=fitted.mean(), progress=False, device="cpu")
    for name, value in fitted.mean().items():
        torch.testing.assert_close(again.mean()[name], value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(covariance(again.guide), covariance(fitted.guide), rtol=1e-7, atol=1e-12)
    assert again.record.laplace.log_evidence == pytest.approx(fitted.record.laplace.log_evidence, rel=1e-9)


def test_the_setting_is_kept_and_the_guide_becomes_a_gaussian():
    fitted = model_with().fit(X, Y, guide=Laplace(), steps=20, seed=0, engine="eager", progress=False, device="cpu")
    assert fitted.record.laplace.setting["type"] == "laplace"
    assert fitted.record.method["guide"]["type"] == "block_gaussian"
    again = guides.resolve(fitted.record.method["guide"])
    assert isinstance(again, BlockGaussian)
    assert again.blocks[0].sites == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert guides.resolve(fitted.record.laplace.setting) == Laplace(structure="full")
    assert Laplace(sites="last_layer") == Laplace(sites=("last_layer",))


@pytest.mark.one_in(0, 2)
@pytest.mark.parametrize("width", [4200, 6000])
def test_a_wide_layer_of_few_examples_has_the_exact_posterior_in_seconds(width):
    """1 - diag(X^T (noise^2 + X X^T)^-1 X), by the lemma of Woodbury, with 30 examples."""
    x = torch.randn(30, width, generator=torch.Generator().manual_seed(0), dtype=F64)
    posterior = around(wide(width), x, x[:, 0])
    gram = x @ x.T + 0.25 * torch.eye(30, dtype=F64)
    variance = 1 - (x * torch.linalg.solve(gram, x)).sum(0)
    torch.testing.assert_close(posterior.guide.spread().square(), variance, rtol=1e-9, atol=1e-12)
    log_det = torch.logdet(gram / 0.25)
    torch.testing.assert_close(posterior.guide.log_det(), log_det, rtol=1e-9, atol=0.0)

"""Blocks of a Gaussian, and the law of their outputs: closed forms against draws (4 standard errors) and matrices."""

import math

import numpy as np
import pytest
import torch
from hard_to_batch import hard_to_batch, looped_jacobian
from helpers import block_covariance
from pyro.distributions import Normal
from test_curvature import NETS as OTHERS
from torch import nn
from torch.autograd.functional import jacobian
from torch.distributions import MultivariateNormal
from torch.func import functional_call

import pyrobnn as bnn
from pyrobnn import likelihoods
from pyrobnn._core.random import seeded
from pyrobnn.guides import Laplace
from pyrobnn.guides.blocks import BlockSpec, make_block
from pyrobnn.posterior import posterior as posterior_module
from pyrobnn.posterior.output_covariance import FunctionalNormal, functional

F64 = torch.float64
EXACT = {"rtol": 1e-9, "atol": 1e-11}
ERRORS = 4.0
UNKNOWN = pytest.mark.filterwarnings("ignore:Laplace. .* belong to layers of unknown structure")
pytestmark = [pytest.mark.usefixtures("local"), UNKNOWN]
W, BIAS = torch.Size((3, 2)), torch.Size((3,))


def positive(size, seed):
    root = torch.randn(size, size, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return root @ root.T + 0.5 * torch.eye(size, dtype=F64)


def diag_block():
    block = make_block(BlockSpec("diag", ("w",)), {"w": W}, torch.ones(1, dtype=F64))
    precision = torch.linspace(0.5, 3.0, 6, dtype=F64)
    block.fill(precision)
    return block, torch.diag(1 / precision)


def full_block():
    block = make_block(BlockSpec("full", ("w", "b")), {"w": W, "b": BIAS}, torch.ones(1, dtype=F64))
    precision = positive(9, 1)
    block.fill(torch.linalg.inv(torch.linalg.cholesky(precision)).mT)
    return block, torch.linalg.inv(precision)


def subset_block():
    block = make_block(BlockSpec("full", ("w", "b"), 3), {"w": W, "b": BIAS}, torch.ones(1, dtype=F64))
    precision, index = positive(3, 2), torch.tensor([1, 5, 8])
    block.fill(torch.linalg.inv(torch.linalg.cholesky(precision)).mT)
    block.index.copy_(index)
    whole = torch.zeros(9, 9, dtype=F64)
    whole[index[:, None], index] = torch.linalg.inv(precision)
    return block, whole


def low_rank_block():
    block = make_block(BlockSpec("low_rank", ("w",), 2), {"w": W}, torch.ones(1, dtype=F64))
    vectors = torch.linalg.qr(positive(6, 3))[0][:, :2]
    prior, values = torch.linspace(1.0, 2.0, 6, dtype=F64), torch.tensor([4.0, 0.7], dtype=F64)
    block.fill(prior, vectors, values)
    inner = torch.eye(6, dtype=F64) + vectors @ torch.diag(values) @ vectors.T
    precision = prior.sqrt()[:, None] * inner * prior.sqrt()
    return block, torch.linalg.inv(precision)


def kron_block(sites=("w", "b"), *, transposed=False):
    shapes = {"w": torch.Size((2, 3)) if transposed else W, "b": BIAS}
    block = make_block(BlockSpec("kron", sites, transposed=transposed), shapes, torch.ones(1, dtype=F64))
    columns = 2 * ("w" in sites) + ("b" in sites)
    outer, inner = positive(3, 4), positive(columns, 5)
    d_out, d_in = torch.tensor([0.5, 1.0, 2.0], dtype=F64), torch.linspace(1.0, 3.0, columns, dtype=F64)
    block.fill(outer, inner, d_out, d_in)
    dense = torch.linalg.inv(torch.kron(outer, inner) + torch.diag(torch.kron(d_out, d_in)))
    entries = torch.arange(3 * columns).view(3, columns)
    parts = [] if "w" not in sites else [(entries[:, :2].T if transposed else entries[:, :2]).reshape(-1)]
    order = torch.cat([*parts, *([entries[:, -1]] if "b" in sites else [])])
    return block, dense[order][:, order]


BLOCKS = {
    "diag": diag_block,
    "full": full_block,
    "subset": subset_block,
    "low_rank": low_rank_block,
    "kron": kron_block,
    "kron, no bias": lambda: kron_block(("w",)),
    "kron, bias alone": lambda: kron_block(("b",)),
    "kron, transposed": lambda: kron_block(("w",), transposed=True),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_block_is_the_dense_normal(name):
    block, covariance = BLOCKS[name]()
    size = len(covariance)
    torch.testing.assert_close(block.spread(), covariance.diagonal().sqrt(), **EXACT)
    matrix = torch.stack([block.transform(unit) for unit in torch.eye(block.dimension, dtype=F64)], 1)  # it is linear
    torch.testing.assert_close(matrix @ matrix.T, covariance, **EXACT)
    rows = torch.randn(4, size, dtype=F64)
    root = block.root(rows)
    torch.testing.assert_close(root @ root.T, rows @ covariance @ rows.T, **EXACT)
    varies = covariance.diagonal() > 0
    normal = MultivariateNormal(torch.zeros(int(varies.sum()), dtype=F64), covariance[varies][:, varies])
    torch.testing.assert_close(block.log_det(), -torch.logdet(covariance[varies][:, varies]), **EXACT)
    torch.testing.assert_close(block.entropy(), normal.entropy(), **EXACT)
    for _ in range(3):
        noise = torch.randn(block.dimension, dtype=F64)
        deviation = block.transform(noise)
        assert bool((deviation[~varies] == 0).all())
        torch.testing.assert_close(block.log_density(noise), normal.log_prob(deviation[varies]), **EXACT)


def test_a_block_of_an_unknown_site_is_refused():
    with pytest.raises(bnn.InputError, match="which is no latent site of the model"):
        make_block(BlockSpec("diag", ("v",)), {"w": W}, torch.ones(1))


NETS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)), (2,)),
    "images": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)), (1, 4, 4)),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, (2, 3), 2, (1, 0)), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3)),
        (2, 2, 1),
    ),
    "embedding": (lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(4, 3)), None),
    "no last layer": (lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh()), (2,)),
    **{name: (OTHERS[name][0], OTHERS[name][1][1:]) for name in ("layer norm", "lstm", "transformer")},
}
NUM = 12


def problem(name):
    make, shape = NETS[name]
    with seeded(3):
        net = make().double().eval()
        x = torch.randint(0, 5, (NUM, 2)) if shape is None else torch.randn(NUM, *shape, dtype=F64)
        y = torch.randint(0, 3, (NUM,))
    return net, x, y


def posterior_of(name, **settings):
    net, x, y = problem(name)
    model = bnn.BNN(net, likelihood="categorical", prior=bnn.priors.Normal(1.0))
    data = bnn.Data(x, y, standardize=False)
    return Laplace(**settings).around(model, data, progress=False, device="cpu"), net, x


def explicit_jacobian(posterior, net, x):
    """(N, C, D) by PyTorch alone."""
    points = posterior.guide.points_by_name()
    sizes = [part.numel() for part in points.values()]

    def outputs(flat):
        parts = flat.split(sizes)
        values = {name: part.view(points[name].shape) for name, part in zip(points, parts, strict=True)}
        return functional_call(net, values, (x,))

    return jacobian(outputs, torch.cat([part.detach().reshape(-1) for part in points.values()]))


BATCHED_BADLY = ["prelu", "cdist", "embedding bag", "weight norm", "packed", "padded", "rrelu in place"]


def linearised(posterior, net, x, draws):
    """Deviations of draws (S, D), and f + J deviation (S, N, C)."""
    points = posterior.guide.points_by_name()
    flat = torch.cat([(draws[site] - points[site]).flatten(1) for site in points], 1).detach()
    return flat, net(x) + torch.einsum("ncd,sd->snc", explicit_jacobian(posterior, net, x), flat)


SETTINGS = {
    "kron": {},
    "kron, bias apart": {"joint_bias": False},
    "diag": {"structure": "diag"},
    "full": {"structure": "full"},
    "low_rank": {"structure": "low_rank", "rank": 4},
    "subnetwork": {"structure": "full", "subnetwork": 9},
}


LAWS = [(name, structure) for name in ("mlp", "images", "transposed", "embedding") for structure in SETTINGS]
LAWS += [("layer norm", "kron"), ("lstm", "kron"), ("lstm", "low_rank"), ("transformer", "kron")]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "structure"), LAWS)
def test_law_of_the_outputs_is_that_of_the_explicit_jacobian(name, structure):
    posterior, net, x = posterior_of(name, **SETTINGS[structure])
    jac = explicit_jacobian(posterior, net, x[:5]).flatten(0, 1)
    expected = (jac @ block_covariance(posterior.guide) @ jac.T).view(5, 3, 5, 3)
    law, joint = functional(posterior, x[:5]), functional(posterior, x[:5], joint=True)
    torch.testing.assert_close(law.mean, net(x[:5]).detach(), **EXACT)
    torch.testing.assert_close(joint.covariance, expected.detach(), **EXACT)
    own = torch.stack([expected[n, :, n] for n in range(5)]).detach()
    torch.testing.assert_close(law.covariance, own, **EXACT)
    torch.testing.assert_close(law.variance, own.diagonal(dim1=1, dim2=2), **EXACT)
    torch.testing.assert_close(joint.variance, law.variance, **EXACT)
    for link in ("probit", "laplace_bridge"):
        torch.testing.assert_close(joint.class_probs(link), law.class_probs(link), **EXACT)


@pytest.mark.parametrize("name", NETS)
def test_linearised_outputs_of_draws_are_f_plus_jacobian_times_deviation(name):
    posterior, net, x = posterior_of(name)
    draws = posterior.draw(6, seed=1)
    logits = linearised(posterior, net, x, draws)[1].log_softmax(-1).detach()
    for prediction in (posterior.predict(x, draws=draws), posterior.predict(x, num_draws=6, seed=1)):
        torch.testing.assert_close(prediction.distribution.logits, logits, **EXACT)
    plain = posterior.predict(x, draws=draws, linearized=False).distribution.logits
    assert not torch.allclose(plain, logits, rtol=1e-2)


@pytest.mark.filterwarnings("ignore")  # of torch, on what it batches badly
@pytest.mark.parametrize("name", BATCHED_BADLY)
def test_fits_of_networks_that_torch_batches_badly_predict_by_their_jacobian(name):
    net, x = hard_to_batch(name, NUM)
    y = torch.stack([torch.linspace(-1, 1, NUM), torch.linspace(1, 0, NUM)], 1).double()
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=likelihoods.Gaussian(0.3))
    data = bnn.Data(x, y, standardize=False)
    posterior = model.fit(data, guide=Laplace(structure="full"), steps=3, seed=0, progress=False, device="cpu")
    points = {site: value.detach() for site, value in posterior.guide.points_by_name().items()}
    jac = looped_jacobian(net, points, x)
    rows = jac.flatten(0, 1)
    precision = torch.eye(rows.shape[1], dtype=F64) + rows.T @ rows / 0.3**2
    torch.testing.assert_close(block_covariance(posterior.guide), torch.linalg.inv(precision), rtol=1e-7, atol=1e-9)
    draws = posterior.draw(6, seed=1)
    change = torch.cat([(draws[site] - points[site]).flatten(1) for site in points], 1)
    expected = functional_call(net, points, (x,)) + torch.einsum("ncd,sd->snc", jac, change)
    torch.testing.assert_close(posterior.predict(x, draws=draws).draw_means, expected.detach(), **EXACT)


@pytest.mark.parametrize("structure", [name for name in SETTINGS if name != "subnetwork"])
@pytest.mark.parametrize("name", ["mlp", "images", "embedding", "lstm", "transformer"])
def test_draws_of_the_last_layer_run_the_rest_once(name, structure, monkeypatch):
    """The reference is the jacobian of all weights, most of which do not move."""
    posterior, net, x = posterior_of(name, sites="last_layer", **SETTINGS[structure])
    draws = posterior.draw(6, seed=1)
    flat, expected = linearised(posterior, net, x, draws)
    assert 0 < int((flat != 0).any(0).sum()) < flat.shape[1]
    monkeypatch.setattr("pyrobnn.posterior.output_draws.Tangent._by_jvp", None)  # not called
    prediction = posterior.predict(x, draws=draws)
    torch.testing.assert_close(prediction.distribution.logits, expected.log_softmax(-1).detach(), **EXACT)


BY_OUTPUTS = [*LAWS, ("mlp", "last_layer"), ("mlp", "last_layer, diag"), ("lstm", "last_layer")]
LAST = {"last_layer": {"sites": "last_layer"}, "last_layer, diag": {"sites": "last_layer", "structure": "diag"}}


def made_by_outputs(monkeypatch):
    """Return a list that gets, for each prediction, whether draws of the outputs made it."""
    made, real = [], posterior_module.output_draws

    def noted(*args, **kwargs):
        made.append((found := real(*args, **kwargs)) is not None)
        return found

    monkeypatch.setattr(posterior_module, "output_draws", noted)
    return made


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "structure"), BY_OUTPUTS)
@pytest.mark.parametrize("num_draws", [40, 6])
def test_draws_of_the_outputs_are_those_of_the_same_draws_of_the_weights(name, structure, num_draws, monkeypatch):
    """Of 36 outputs, fewer than 40 draws and more than 6."""
    posterior, _, x = posterior_of(name, **(SETTINGS | LAST)[structure])
    made = made_by_outputs(monkeypatch)
    monkeypatch.setattr("pyrobnn.posterior.posterior.draws_at_once", lambda *_: 5)
    expected = posterior.predict(x, draws=posterior.draw(num_draws, seed=1)).distribution.logits
    found = posterior.predict(x, num_draws=num_draws, seed=1).distribution.logits
    torch.testing.assert_close(found, expected, **EXACT)
    is_slow = "full" in structure or structure in ("subnetwork", "low_rank") or name in ("layer norm", "transformer")
    assert made == [num_draws == 40 or (not is_slow and (name != "lstm" or "last" in structure))]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "structure"), BY_OUTPUTS)
def test_outputs_that_are_drawn_without_weights_have_their_joint_covariance(name, structure, monkeypatch):
    posterior, _, x = posterior_of(name, **(SETTINGS | LAST)[structure])
    made, num = made_by_outputs(monkeypatch), 20_000
    monkeypatch.setattr("pyrobnn.posterior.output_draws._MOST_NOISE", 0)
    outputs = []
    monkeypatch.setattr(posterior, "_likelihood", lambda f, others: outputs.append(f) or Normal(f[..., 0], 1.0))
    posterior.predict(x, num_draws=num, seed=2)
    assert made == [True]
    law = functional(posterior, x, joint=True)
    deviations, size = (outputs[0] - law.mean).flatten(1), law.mean.numel()
    found, expected = deviations.T @ deviations / num, law.covariance.view(size, size)
    variances = expected.diagonal()
    errors = ((expected.square() + variances[:, None] * variances) / num).sqrt()
    assert float(((found - expected) / errors).abs().max()) < 4.5  # of 666 entries
    assert float((deviations.mean(0) / (variances / num).sqrt()).abs().max()) < ERRORS


def test_outputs_that_are_drawn_without_weights_are_the_same_again_and_independent_of_other_inputs(monkeypatch):
    monkeypatch.setattr("pyrobnn.posterior.output_draws._MOST_NOISE", 0)
    posterior, _, x = posterior_of("mlp")
    parts = (slice(6), slice(6), slice(6, 12))
    first, again, second = (posterior.predict(x[part], num_draws=4000, seed=2) for part in parts)
    assert torch.equal(first.distribution.logits, again.distribution.logits)
    pairs = [(one.distribution.logits - one.distribution.logits.mean(0)).flatten(1) for one in (first, second)]
    correlation = torch.corrcoef(torch.cat(pairs, 1).T)[:18, 18:]
    assert float(correlation.abs().max()) < 4.5 / 4000**0.5  # of 324 entries


@pytest.mark.parametrize("structure", ["kron", "kron, bias apart", "diag"])
def test_a_last_layer_is_described_in_axes_that_its_inputs_share(structure, monkeypatch):
    """As by the matrices of all inputs, in parts of 5 of which the last has one."""
    monkeypatch.setattr("pyrobnn.posterior.output_covariance._MOST_INPUTS", 5)
    posterior, _, x = posterior_of("mlp", sites="last_layer", **SETTINGS[structure])
    law, joint = functional(posterior, x[:11]), functional(posterior, x[:11], joint=True)
    own = torch.stack([joint.covariance[n, :, n] for n in range(11)])
    torch.testing.assert_close(law.covariance, own, **EXACT)
    for link in ("probit", "laplace_bridge"):
        torch.testing.assert_close(law.class_probs(link), FunctionalNormal(law.mean, own).class_probs(link), **EXACT)
    draws = law.sample(20_000, seed=3) - law.mean
    found = torch.einsum("snc,snd->ncd", draws, draws) / 20_000
    variances = own.diagonal(dim1=1, dim2=2)
    errors = ((own.square() + variances[:, :, None] * variances[:, None]) / 20_000).sqrt()
    assert float(((found - own) / errors).abs().max()) < ERRORS
    assert law.variance.shape == (11, 3)


@pytest.mark.parametrize("sites", ["last_layer", "2.weight"])
@pytest.mark.parametrize("structure", ["kron", "kron, bias apart", "diag", "full"])
@pytest.mark.parametrize("weighted", [False, True])
def test_information_about_labels_needs_no_columns_in_a_last_layer(structure, sites, weighted, monkeypatch):
    """As with a column for each class."""
    net, x, y = problem("mlp")
    model = bnn.BNN(net, likelihood="categorical", prior=bnn.priors.Normal(1.0))
    data = bnn.Data(x, y, weights=torch.linspace(0.5, 2, NUM) if weighted else None, standardize=False)
    setting = Laplace(sites=sites, **SETTINGS[structure])
    expected = setting.around(model, data, progress=False)
    columns = []
    monkeypatch.setattr("pyrobnn.curvature.outer_products.GGN.information", lambda *_: columns.append(1))
    found = setting.around(model, data, progress=False)
    assert columns
    torch.testing.assert_close(block_covariance(found.guide), block_covariance(expected.guide), **EXACT)


def regression_posterior(**settings):
    with seeded(5):
        net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2)).double()
        x, y = torch.randn(15, 2, dtype=F64), torch.randn(15, 2, dtype=F64)
    model = bnn.BNN(net, likelihood=likelihoods.Gaussian(0.5), prior=bnn.priors.Normal(1.0))
    return Laplace(**settings).around(model, bnn.Data(x, y, standardize=False), progress=False, device="cpu"), x


def test_samples_of_the_law_have_its_covariance():
    """5000 draws, seed 4, of all inputs together."""
    posterior, x = regression_posterior()
    law = functional(posterior, x[:3], joint=True)
    num = 5000
    drawn = (law.sample(num, seed=4) - law.mean).flatten(1)
    expected = law.covariance.reshape(6, 6)
    found = drawn.T @ drawn / num
    error = ((torch.outer(expected.diagonal(), expected.diagonal()) + expected.square()) / num).sqrt()
    assert float(((found - expected) / error).abs().max()) < ERRORS
    assert float((drawn.mean(0) / (expected.diagonal() / num).sqrt()).abs().max()) < ERRORS
    apart = functional(posterior, x[:3]).sample(num, seed=4)
    assert apart.shape == (num, 3, 2)


def test_many_inputs_are_the_same_in_parts(monkeypatch):
    posterior, x = regression_posterior()
    whole, joint = functional(posterior, x), functional(posterior, x, joint=True)
    monkeypatch.setattr("pyrobnn.posterior.output_covariance.examples_at_once", lambda numbers: 4)
    torch.testing.assert_close(functional(posterior, x, joint=True).covariance, joint.covariance, **EXACT)
    torch.testing.assert_close(functional(posterior, x.repeat(3, 1)).covariance[30:], whole.covariance, **EXACT)


def law(mean, covariance):
    return FunctionalNormal(torch.tensor(mean, dtype=F64), torch.tensor(covariance, dtype=F64))


THREE = law([[0.5, -1.0, 0.2], [2.0, 0.0, -0.5]], [[[1.0, 0.3, 0.0], [0.3, 0.5, 0.1], [0.0, 0.1, 2.0]]] * 2)


def hermite(size):
    nodes, weights = np.polynomial.hermite_e.hermegauss(size)
    return torch.tensor(nodes), torch.tensor(weights / weights.sum())


def by_quadrature(normal):
    """E[softmax(f)] by a product of Gauss-Hermite rules with 40 nodes an output."""
    nodes, weights = hermite(40)
    grid = torch.cartesian_prod(nodes, nodes, nodes)
    weight = torch.cartesian_prod(weights, weights, weights).prod(1)
    roots = torch.linalg.cholesky(normal.covariance)
    f = normal.mean[:, None] + grid @ roots.mT
    return torch.einsum("g,ngc->nc", weight, f.softmax(-1))


def test_monte_carlo_link_is_the_integral():
    """1000 draws in mirrored pairs, whose errors are at most those of 500 independent draws."""
    exact = by_quadrature(THREE)
    found = THREE.class_probs("mc", seed=3)
    drawn = THREE.sample(1000, seed=3).softmax(-1)
    assert float(((found - exact).abs() / (drawn.std(0) / math.sqrt(500))).max()) < ERRORS


def test_probit_link_is_its_formula_and_near_the_integral():
    variance = THREE.covariance.diagonal(dim1=1, dim2=2)
    scaled = THREE.mean / (1 + math.pi / 8 * variance).sqrt()
    torch.testing.assert_close(THREE.class_probs(), scaled.softmax(-1), **EXACT)
    assert float((THREE.class_probs() - by_quadrature(THREE)).abs().max()) < 0.05


@pytest.mark.parametrize("constant", [0.0, 0.3])
def test_laplace_bridge_inverts_the_laplace_approximation_of_a_dirichlet(constant):
    """Mode and covariance in the outputs by hand (MacKay 1998), with any variance where softmax does not change."""
    alpha = torch.tensor([[0.7, 2.0, 5.0], [1.0, 1.0, 30.0]], dtype=F64)
    mean = alpha.log() - alpha.log().mean(1, keepdim=True)
    inverse = 1 / alpha
    covariance = torch.diag_embed(inverse) - (inverse[:, :, None] + inverse[:, None, :]) / 3
    covariance = covariance + inverse.sum(1)[:, None, None] / 9 + constant
    expected = alpha / alpha.sum(1, keepdim=True)
    for shift in (0.0, 7.0):
        found = FunctionalNormal(mean + shift, covariance).class_probs("laplace_bridge")
        torch.testing.assert_close(found, expected, **EXACT)
    sure = FunctionalNormal(torch.tensor([[60.0, -60.0, 0.0]]), torch.eye(3)[None])  # and stays finite
    torch.testing.assert_close(sure.class_probs("laplace_bridge"), torch.tensor([[1.0, 0.0, 0.0]]))


@pytest.mark.parametrize("link", ["probit", "mc"])
def test_a_single_output_has_two_classes(link):
    """The error of the probit link is below 0.02; of 1000 draws 4 / (2 sqrt(1000))."""
    normal = law([[0.7], [-2.0]], [[[1.5]], [[0.3]]])
    nodes, weights = hermite(60)
    f = normal.mean + normal.variance.sqrt() * nodes
    exact = (torch.sigmoid(f) * weights).sum(1)
    found = normal.class_probs(link, seed=1)
    assert found.shape == (2, 2)
    assert float((found[:, 1] - exact).abs().max()) < {"probit": 0.02, "mc": 4 * 0.5 / math.sqrt(1000)}[link]
    torch.testing.assert_close(found.sum(1), torch.ones(2, dtype=F64), **EXACT)


def test_links_refuse():
    with pytest.raises(bnn.InputError, match="`link` must be one of probit, laplace_bridge, mc"):
        THREE.class_probs("softmax")
    with pytest.raises(bnn.InputError, match="The Laplace bridge needs one output per class"):
        law([[0.0]], [[[1.0]]]).class_probs("laplace_bridge")


def test_only_laplace_guides_have_a_law_of_the_outputs():
    x = torch.linspace(-1, 1, 8)[:, None]
    model = bnn.BNN(bnn.MLP(1, [3], 1), prior=bnn.priors.Normal(1.0))
    posterior = model.fit(x, x[:, 0], seed=0, steps=2, progress=False, device="cpu")
    with pytest.raises(bnn.InputError, match="has a closed form for Laplace guides alone"):
        functional(posterior, x)
    linear = posterior.predict(x, num_draws=5, linearized=True).distribution.loc
    assert not torch.allclose(linear, posterior.predict(x, num_draws=5).distribution.loc)


def test_linearised_prediction_at_the_mean_is_one_pass_and_refuses_draws_that_lack_a_site():
    posterior, x = regression_posterior()
    found = posterior.predict(x, at_mean=True).distribution.base_dist.loc[0].detach()
    torch.testing.assert_close(found, functional(posterior, x).mean, **EXACT)
    draws = posterior.draw(2)
    del draws["0.bias"]
    with pytest.raises(bnn.InputError, match="must hold every site"):
        posterior.predict(x, draws=draws)

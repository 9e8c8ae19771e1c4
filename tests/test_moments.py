"""Predictions by moments: against draws of the weights, quadrature, dense layers and closed forms.

float64. Comparisons with draws are z-tests at 4 standard errors with the seeds given.
"""

import math

import pytest
import torch
from pyro.distributions import LogNormal
from torch import nn

import pyrobnn as bnn
from pyrobnn._torch.inputs import Inputs
from pyrobnn._torch.layers import ENTRYWISE
from pyrobnn._torch.vectorize import DrawMap
from pyrobnn.posterior import moments
from pyrobnn.posterior.moments import Moments, Weights, integrated, layer_moments, output_moments, rectified
from pyrobnn.posterior.normal_outputs import FunctionalNormal

F64 = torch.float64
ERRORS = 4.0
G = torch.Generator().manual_seed(0)
X = torch.randn(8, 3, generator=G, dtype=F64)
IMAGES = torch.randn(5, 2, 6, 6, generator=G, dtype=F64)
Y = X[:, 0].sin()
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
WIDE = bnn.guides.MeanField(init_rho=-1.0)


def fitted(net, guide=WIDE, *, x=X, y=Y, likelihood=None, steps=3, **settings):
    torch.manual_seed(1)
    net = net.build() if isinstance(net, bnn.MLP) else net
    model = bnn.BNN(net.double(), likelihood=likelihood or bnn.likelihoods.Gaussian(0.5), **settings)
    return model.fit(bnn.Data(x, y), guide=guide, steps=steps, seed=0, progress=False)


def net_of(*hidden, outputs=1, activation="relu"):
    return bnn.MLP(3, list(hidden), outputs, activation=activation)


def moments_of(posterior, x, *, linearized=False):
    with torch.no_grad():
        return output_moments(posterior.bnn, posterior.guide, posterior.inputs(x), linearized=linearized)


def drawn(posterior, x, num_draws):
    """Outputs of the network under draws of its weights, (S, N, C)."""
    inputs = posterior.inputs(x)
    draws = posterior.draw(num_draws, seed=5)
    with torch.no_grad():
        return DrawMap(posterior.bnn.outputs, inputs, posterior.bnn.net)(
            {n: draws[n] for n in posterior.bnn.site_names}
        )


def assert_moments_of_draws(normal, f, *, error=0.0):
    """Mean, variances and covariances are those of draws, within 4 standard errors and a share of the deviation."""
    std = f.std(0)
    assert ((normal.mean - f.mean(0)).abs() <= ERRORS * std / math.sqrt(len(f)) + error * std).all()
    centred = f - f.mean(0)
    products = centred[..., :, None] * centred[..., None, :]
    margin = ERRORS * products.std(0) / math.sqrt(len(f)) + 2 * error * std[..., :, None] * std[..., None, :]
    assert ((normal.covariance - products.mean(0)).abs() <= margin).all()


# Activations

MEANS = torch.tensor([-3.0, -0.4, 0.0, 0.7, 2.5, 30.0], dtype=F64)
STDS = torch.tensor([0.3, 1.0, 2.0], dtype=F64)


def by_fine_steps(function, mean, std):
    """Mean, variance and best slope by a fine trapezoidal rule over 9 standard deviations on each side."""
    z = torch.linspace(-9, 9, 40_001, dtype=F64)
    weights = torch.softmax(-0.5 * z * z, 0)
    values = function(mean + std * z)
    centre = weights @ values
    return centre, weights @ (values - centre).square(), weights @ ((values - centre) * z) / std


@pytest.mark.parametrize("below", [0.0, 0.2, 1.0])
def test_closed_forms_of_rectifiers_are_their_integrals(below):
    for mean in MEANS:
        for std in STDS:
            expected = by_fine_steps(lambda a: torch.where(a > 0, a, below * a), mean, std)
            found = rectified(below, mean, std.square())
            torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("module", [kind() for kind in ENTRYWISE if kind not in (nn.ReLU, nn.LeakyReLU)], ids=repr)
def test_integrals_of_smooth_activations(module):
    module.eval()
    for mean in MEANS:
        for std in STDS:
            expected = torch.stack(by_fine_steps(module, mean, std))
            torch.testing.assert_close(
                torch.stack(integrated(module, mean, std.square())), expected, rtol=1e-5, atol=5e-4
            )


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_known_input_of_an_activation_stays_known(dtype):
    mean = torch.tensor([-2.0, 0.0, 3.0], dtype=dtype)
    for mean_and_variance in (rectified(0.1, mean, 0 * mean)[:2], integrated(nn.LeakyReLU(0.1), mean, 0 * mean)[:2]):
        expected = nn.functional.leaky_relu(mean, 0.1), 0 * mean
        torch.testing.assert_close(mean_and_variance, expected, rtol=1e-6, atol=1e-12)


def test_single_precision_keeps_the_variance_of_a_far_input():
    _, variance, slope = rectified(0.0, torch.tensor([100.0, -100.0]), torch.tensor([1e-4, 1e-4]))
    torch.testing.assert_close(variance, torch.tensor([1e-4, 0.0]))
    torch.testing.assert_close(slope, torch.tensor([1.0, 0.0]))


# Networks of independent weights


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "gelu", "silu", "elu", "softplus"])
def test_one_hidden_layer_is_exact(activation):
    posterior = fitted(net_of(6, outputs=2, activation=activation), y=torch.stack([Y, -Y], 1))
    assert_moments_of_draws(moments_of(posterior, X), drawn(posterior, X, 40_000))


def test_no_hidden_layer_is_exact():
    posterior = fitted(net_of())
    (weight, spread), (bias, spread_of_bias) = posterior.guide.moments().values()
    found = moments_of(posterior, X)
    torch.testing.assert_close(found.mean, X @ weight.T + bias)
    torch.testing.assert_close(found.variance, X.square() @ spread.square().T + spread_of_bias.square())


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_three_hidden_layers_are_within_a_tenth(activation):
    posterior = fitted(net_of(20, 20, 20, activation=activation), bnn.guides.MeanField(init_rho=-2.0))
    f, found = drawn(posterior, X, 50_000), moments_of(posterior, X)
    assert ((found.mean - f.mean(0)).abs() / f.std(0)).max() < 0.1
    assert (found.variance.sqrt() / f.std(0) - 1).abs().max() < 0.1


def test_two_linear_layers_in_a_row_are_exact():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Dropout(0.3), nn.Linear(4, 2))
    posterior = fitted(net, y=torch.stack([Y, -Y], 1))
    assert_moments_of_draws(moments_of(posterior, X), drawn(posterior, X, 40_000))


def test_weights_without_a_prior_are_known():
    posterior = fitted(net_of(6, 5), prior={"0.*": None, "2.*": "normal", "4.*": None})
    assert_moments_of_draws(moments_of(posterior, X), drawn(posterior, X, 40_000))


def test_pruned_weights_are_zero():
    posterior = bnn.prune(fitted(net_of(6)), 0.5)
    assert_moments_of_draws(moments_of(posterior, X), drawn(posterior, X, 40_000))


def test_parts_of_the_inputs_make_no_difference(monkeypatch):
    posterior = fitted(net_of(6, 5))
    expected = moments_of(posterior, X)
    monkeypatch.setattr("pyrobnn.posterior.moments._AT_ONCE", 3 * 6**2)
    found = moments_of(posterior, X)
    torch.testing.assert_close((found.mean, found.covariance), (expected.mean, expected.covariance))


# Convolutions


def independent(module, layer, generator=None):
    """Means of the weights of a layer as they are, and variances at random."""
    mean = {f"{layer}.{name}": value.detach() for name, value in module.named_parameters()}
    return mean, {name: torch.rand(value.shape, dtype=F64, generator=generator) for name, value in mean.items()}


def test_a_convolution_is_the_dense_layer_of_its_patches():
    """At one position the moments are those of a linear layer, for uncertain inputs too."""
    torch.manual_seed(0)
    conv, dense = nn.Conv2d(2, 3, 6).double(), nn.Linear(72, 3).double()
    mean, variance = independent(conv, "2")
    shapes = {"1.weight": (3, 72), "1.bias": (3,)}
    as_dense = [
        {n: part[n.replace("1.", "2.")].reshape(shape) for n, shape in shapes.items()} for part in (mean, variance)
    ]
    first = nn.Conv2d(2, 2, 1).double()
    other = independent(first, "0")
    nets = (
        nn.Sequential(first, nn.ReLU(), conv, nn.Flatten()).eval(),
        nn.Sequential(first, nn.Sequential(nn.ReLU()), nn.Flatten(), dense).eval(),
    )
    found = layer_moments(nets[0], Weights(mean | other[0], variance | other[1], []), IMAGES)
    as_dense = [{n.replace("1.", "3."): value for n, value in part.items()} for part in as_dense]
    expected = layer_moments(nets[1], Weights(as_dense[0] | other[0], as_dense[1] | other[1], []), IMAGES)
    torch.testing.assert_close((found.mean, found.variance), (expected.mean, expected.variance))


@pytest.mark.parametrize(
    "conv",
    [nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.Conv2d(2, 4, 2, dilation=2, groups=2, bias=False)],
    ids=["stride", "groups"],
)
def test_a_convolution_is_exact_at_each_position(conv):
    size = conv(torch.zeros(1, 2, 6, 6)).shape[-1]
    posterior = fitted(nn.Sequential(conv, nn.Flatten(), nn.Linear(4 * size**2, 1)), x=IMAGES, y=Y[:5])
    net = posterior.bnn.net
    weights = posterior.guide.independent_moments()
    means, variances = ({n: p[i] ** (1 + i) for n, p in weights.items()} for i in (0, 1))
    found = layer_moments(net[:2], Weights(means, variances, []), IMAGES)
    draws = posterior.draw(20_000, seed=1)
    f = torch.func.vmap(lambda w: torch.func.functional_call(net[:2], w, (IMAGES,)))(
        {name: value for name, value in draws.items() if name.startswith("0.")}
    )
    std = f.std(0)
    assert ((found.mean - f.mean(0)).abs() <= ERRORS * std / math.sqrt(len(f))).all()
    assert (found.variance.sqrt() / std - 1).abs().max() < ERRORS / math.sqrt(2 * len(f))


def normal_images():
    return Moments(IMAGES, torch.rand(IMAGES.shape, dtype=F64, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize(
    ("pool", "error"),
    [
        (nn.AvgPool2d(2), 0.0),
        (nn.AvgPool2d((3, 2), stride=1), 0.0),
        (nn.AvgPool2d(2, divisor_override=3), 0.0),
        (nn.MaxPool2d((1, 2)), 0.0),
        (nn.MaxPool2d(3, stride=1), 0.15),
    ],
    ids=repr,
)
def test_pooling_of_independent_normal_entries(pool, error):
    """The average and the larger of two are exact, the largest of nine is within 15 per cent of a deviation."""
    images = normal_images()
    found = moments._layer("1", pool.eval(), Weights({}, {}, []))(images)
    noise = torch.randn(20_000, *IMAGES.shape, dtype=F64, generator=torch.Generator().manual_seed(4))
    f = pool((images.mean + images.variance.sqrt() * noise).flatten(0, 1)).unflatten(0, (-1, len(IMAGES)))
    std, squares = f.std(0), (f - f.mean(0)).square()
    assert ((found.mean - f.mean(0)).abs() <= (ERRORS / math.sqrt(len(f)) + error) * std).all()
    margin = ERRORS / math.sqrt(len(f)) * squares.std(0) + 2 * error * squares.mean(0)
    assert ((found.variance - squares.mean(0)).abs() <= margin).all()


def test_a_small_convolutional_network_is_within_a_fifth():
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(4, 2)
    )
    posterior = fitted(net, bnn.guides.MeanField(init_rho=-2.5), x=IMAGES, y=torch.stack([Y, -Y], 1)[:5])
    f, found = drawn(posterior, IMAGES, 20_000), moments_of(posterior, IMAGES)
    assert ((found.mean - f.mean(0)).abs() / f.std(0)).max() < 0.1
    assert (found.variance.sqrt() / f.std(0) - 1).abs().max() < 0.2


# Laplace approximations

STRUCTURES = ("kron", "diag", "full", "low_rank")


@pytest.mark.parametrize("structure", STRUCTURES)
def test_linearised_moments_are_those_of_functional(structure):
    guide = bnn.guides.Laplace(structure=structure)
    posterior = fitted(net_of(5, outputs=2), guide, y=torch.stack([Y, -Y], 1), prior=bnn.priors.Normal(1.0))
    outputs = bnn.functional(posterior, X)
    points = posterior.predict(X, moments=True).distribution.base_dist.loc
    torch.testing.assert_close(points.mean(0), outputs.mean)
    centred = points - outputs.mean
    torch.testing.assert_close(torch.einsum("sni,snj->nij", centred, centred) / len(points), outputs.covariance)


@pytest.mark.parametrize("joint_bias", [True, False])
@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_one_hidden_layer_of_a_sampled_laplace_approximation(structure, joint_bias):
    """Correlations of a Kronecker block are exact; hidden units that it correlates are within 3 per cent."""
    guide = bnn.guides.Laplace(structure=structure, joint_bias=joint_bias, linearized=False)
    posterior = fitted(
        net_of(5, outputs=2, activation="tanh"), guide, y=torch.stack([Y, -Y], 1), prior=bnn.priors.Normal(0.7)
    )
    assert_moments_of_draws(moments_of(posterior, X), drawn(posterior, X, 40_000), error=0.03)


def test_a_kronecker_block_over_uncertain_inputs_is_exact():
    """Two linear layers in a row, whose blocks are independent of each other."""
    guide = bnn.guides.Laplace(structure="kron", linearized=False)
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    posterior = fitted(net, guide, y=torch.stack([Y, -Y], 1), prior=bnn.priors.Normal(0.7))
    assert_moments_of_draws(moments_of(posterior, X), drawn(posterior, X, 40_000))


# Predictions


@pytest.mark.parametrize("num", [1, 2, 10, 32])
def test_points_have_the_mean_and_the_covariance(num):
    root = torch.randn(4, num, num, dtype=F64, generator=torch.Generator().manual_seed(1))
    normal = FunctionalNormal(torch.randn(4, num, dtype=F64), root @ root.mT)
    points = normal.points()
    torch.testing.assert_close(points.mean(0), normal.mean)
    centred = points - normal.mean
    torch.testing.assert_close(torch.einsum("sni,snj->nij", centred, centred) / len(points), normal.covariance)


def test_points_of_a_single_output_are_quantiles():
    points = FunctionalNormal(torch.ones(1, 1, dtype=F64), torch.full((1, 1, 1), 4.0, dtype=F64)).points()
    levels = (torch.arange(128, dtype=F64) + 0.5) / 128
    expected = 1 + 2 * torch.special.ndtri(levels)
    torch.testing.assert_close(points[:, 0, 0].sort().values, expected, rtol=0.01, atol=0.01)


def test_a_regression_is_the_normal_with_both_variances():
    posterior = fitted(net_of(6))
    normal, prediction = moments_of(posterior, X), posterior.predict(X, moments=True)
    noise = prediction.aleatoric_std
    units = posterior.y_scaler
    torch.testing.assert_close(prediction.mean, units.inverse(normal.mean[:, 0]))
    torch.testing.assert_close(prediction.epistemic_std, units.inverse_scale(normal.variance[:, 0].sqrt()))
    whole = torch.distributions.Normal(prediction.mean, prediction.std)
    torch.testing.assert_close(prediction.std.square(), noise.square() + prediction.epistemic_variance)
    torch.testing.assert_close(prediction.quantile(0.9), whole.icdf(torch.tensor(0.9)), rtol=0, atol=1e-2)
    torch.testing.assert_close(prediction.log_prob(Y), whole.log_prob(Y), rtol=0, atol=1e-2)
    assert prediction.num_draws == 128
    torch.testing.assert_close(posterior.predict(X, moments=True, seed=3).mean, prediction.mean, rtol=0, atol=0)


@pytest.mark.parametrize("likelihood", ["bernoulli", "categorical", bnn.likelihoods.Ordinal(3), "poisson"], ids=str)
def test_labels_and_counts_are_those_of_draws(likelihood):
    """For normal outputs, as of no hidden layer, up to the error of 128 points."""
    y = (LABELS > 0).long() if likelihood == "bernoulli" else LABELS
    posterior = fitted(net_of(outputs=3 if likelihood == "categorical" else 1), y=y, likelihood=likelihood)
    found, expected = posterior.predict(X, moments=True), posterior.predict(X, num_draws=40_000)
    if found.is_classification:
        torch.testing.assert_close(found.class_probs, expected.class_probs, rtol=0, atol=6e-3)
        torch.testing.assert_close(found.mutual_information, expected.mutual_information, rtol=0, atol=1e-2)
    else:
        torch.testing.assert_close(found.mean, expected.mean, rtol=0.03, atol=0)


def test_noise_that_is_inferred_or_depends_on_the_inputs():
    prior = bnn.likelihoods.Gaussian({"type": "half_normal", "scale": 1.0})
    for likelihood, outputs in ((prior, 1), (bnn.likelihoods.Gaussian("heteroscedastic"), 2)):
        posterior = fitted(net_of(outputs=outputs), bnn.guides.MeanField(init_rho=-2.0), likelihood=likelihood)
        found, expected = posterior.predict(X, moments=True), posterior.predict(X, num_draws=50_000)
        torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=5e-3)
        torch.testing.assert_close(found.std, expected.std, rtol=0.02, atol=0)


def test_a_mixture_joins_the_points_of_its_members():
    mixture = bnn.Mixture([fitted(net_of(4)), fitted(net_of(4), steps=6)])
    found = mixture.predict(X, moments=True)
    parts = [member.predict(X, moments=True) for member in mixture.members]
    torch.testing.assert_close(found.mean, torch.stack([part.mean for part in parts]).mean(0))
    assert found.num_draws == 256


def test_a_loader_gives_the_same_moments():
    posterior = fitted(net_of(4))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=3)
    expected = posterior.predict(X, moments=True)
    torch.testing.assert_close(posterior.predict(loader, moments=True).std, expected.std)


def test_random_numbers_of_the_caller_are_left_alone():
    posterior = fitted(net_of(4))
    before = torch.random.get_rng_state()
    posterior.predict(X, moments=True)
    assert torch.equal(torch.random.get_rng_state(), before)


# Refusals


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked():
    layer = nn.Linear(3, 1)
    layer.register_forward_hook(lambda module, args, output: 2 * output)
    return nn.Sequential(layer)


def tied():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(3, 1))


IMAGE_NETS = (
    nn.Sequential(nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(32, 1)),
    nn.Sequential(nn.Conv2d(2, 2, 3), nn.MaxPool2d(2, padding=1), nn.Flatten(), nn.Linear(18, 1)),
    nn.Sequential(nn.Linear(6, 1), nn.Flatten(), nn.Linear(12, 1)),
)
REFUSED = {
    "a layer": (lambda: fitted(nn.Sequential(Doubled(3, 1))), "is none of these"),
    "a hook": (lambda: fitted(hooked()), "is none of these"),
    "normalisation": (lambda: fitted(nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 1))), "is none of these"),
    "padding": (lambda: fitted(IMAGE_NETS[1], x=IMAGES, y=Y[:5]), "pooling without padding"),
    "tied weights": (lambda: fitted(tied()), "independent of those of other layers"),
    "an axis": (lambda: fitted(IMAGE_NETS[2], x=IMAGES, y=Y[:5]), "linear layers on rows"),
    "correlations": (lambda: fitted(net_of(4), "low_rank"), "has another distribution"),
    "positive weights": (lambda: fitted(net_of(4), prior=LogNormal(0.0, 1.0)), "has another distribution"),
    "sampled full": (
        lambda: fitted(net_of(4), bnn.guides.Laplace(structure="full", linearized=False)),
        "independent of those of other layers",
    ),
    "sampled full layer": (
        lambda: fitted(net_of(4), bnn.guides.Laplace(structure="full", sites="last_layer", linearized=False)),
        "correlated as a Kronecker product",
    ),
    "sampled convolution": (
        lambda: fitted(IMAGE_NETS[0], bnn.guides.Laplace(linearized=False), x=IMAGES, y=Y[:5]),
        "of each other in a convolution",
    ),
    "outputs": (lambda: fitted(net_of(outputs=33), y=LABELS, likelihood="categorical"), "at most 32 outputs, got 33"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_to_leave_moments_out(case):
    make, message = REFUSED[case]
    posterior = make()
    with pytest.raises(bnn.InputError, match=message) as error:
        posterior.predict(posterior.example[0].numpy(), moments=True)
    assert "Leave `moments` out" in str(error.value)


def test_refusals_of_arguments():
    posterior = fitted(net_of(4))
    with pytest.raises(bnn.InputError, match="Moments of a linearised network need a Laplace guide"):
        posterior.predict(X, moments=True, linearized=True)
    for given in ({"at_mean": True}, {"draws": posterior.draw(2)}):
        with pytest.raises(bnn.InputError, match="Moments stand in for draws"):
            posterior.predict(X, moments=True, **given)


def test_refusals_of_inputs_and_outputs():
    weights = Weights({}, {}, [])
    with pytest.raises(bnn.InputError, match="networks of one input, got several"):
        layer_moments(nn.Identity(), weights, Inputs({"x": X}))
    with pytest.raises(bnn.InputError, match="a row of outputs for each input"):
        layer_moments(nn.Identity().eval(), weights, IMAGES)

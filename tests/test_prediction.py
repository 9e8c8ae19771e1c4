"""Predictions as exact mixtures: scores, moments, quantiles, classes."""

import functools
import itertools
import math
import warnings
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch
from helpers import Net
from scipy import stats

import pyrobnn as bnn
from pyrobnn import Prediction
from pyrobnn._core.remedies import current_spelling
from pyrobnn._torch.vectorize import DrawMap, run_stacked, stack_linear
from pyrobnn.distributions import counts
from pyrobnn.estimators.regressor import _centres


def two_components(scale=0.1):
    return Prediction(dist.Normal(torch.tensor([[-1.0], [1.0]], dtype=torch.float64), scale))


def scattered(num_draws=7, num_inputs=5, columns=None):
    generator = torch.Generator().manual_seed(3)
    shape = (num_draws, num_inputs) if columns is None else (num_draws, num_inputs, columns)
    loc = torch.randn(shape, generator=generator, dtype=torch.float64)
    scale = 0.2 + torch.rand(shape, generator=generator, dtype=torch.float64)
    return dist.Normal(loc, scale).to_event(0 if columns is None else 1)


def test_two_components_score_as_a_mixture_not_as_an_average():
    expected = -math.log(2) + stats.norm.logpdf(1, 1, 0.1)
    assert two_components().log_prob([1.0]).item() == pytest.approx(expected, rel=1e-12)
    assert expected == pytest.approx(0.6905, abs=1e-4)
    assert two_components().log_prob([[1.0]]).item() == two_components().log_prob([1.0]).item()
    assert [bound.item() for bound in two_components().interval(0.5)] == pytest.approx([-1.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("columns", [None, 3])
def test_variance_is_that_of_samples(columns):
    prediction = Prediction(scattered(columns=columns))
    samples = prediction.sample(40_000, seed=0)
    stderr = prediction.std / math.sqrt(40_000)
    assert ((samples.mean(0) - prediction.mean).abs() <= 4 * stderr).all()
    torch.testing.assert_close(samples.var(0), prediction.variance, rtol=0.05, atol=0)


@pytest.mark.parametrize("level", [1e-15, 1e-12, 1 - 1e-12])
def test_quantiles_as_far_out_as_levels_have_digits_are_those_of_scipy(level):
    normal = Prediction(dist.Normal(torch.zeros(2, 1, dtype=torch.float64), 1.0)).quantile(level)
    laplace = Prediction(dist.Laplace(torch.zeros(2, 1), 1.0)).quantile(level)
    np.testing.assert_allclose(float(normal), stats.norm.ppf(level), rtol=1e-4)
    np.testing.assert_allclose(float(laplace), stats.laplace.ppf(level), rtol=1e-4)


@pytest.mark.parametrize("far", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("family", [dist.Normal, dist.Laplace, dist.Cauchy])
def test_intervals_where_a_network_overflows_end_and_are_as_infinite(family, far):
    prediction = Prediction(family(torch.tensor([[far, 0.0], [far, 1.0]]), 1.0, validate_args=False))
    lower, upper = prediction.interval(0.9)
    np.testing.assert_array_equal([float(lower[0]), float(upper[0])], [far, far])
    assert -math.inf < float(lower[1]) < float(upper[1]) < math.inf


def test_samples_share_a_draw_across_inputs():
    loc = torch.tensor([[-5.0, -5.0], [5.0, 5.0]])
    samples = Prediction(dist.Normal(loc, 0.01)).sample(100, seed=0)
    assert torch.equal(samples[:, 0] > 0, samples[:, 1] > 0)
    assert 0.3 < (samples[:, 0] > 0).float().mean() < 0.7
    in_order = Prediction(dist.Normal(loc, 0.01)).sample(seed=0)
    torch.testing.assert_close(in_order, loc, atol=0.1, rtol=0)


def test_classes_have_probabilities_entropy_and_mutual_information():
    probs = torch.tensor([[[0.8, 0.1, 0.1]], [[0.2, 0.5, 0.3]]], dtype=torch.float64)
    prediction = Prediction(dist.Categorical(probs=probs))
    mean = [0.5, 0.3, 0.2]
    torch.testing.assert_close(prediction.class_probs[0], torch.tensor(mean, dtype=torch.float64))
    assert prediction.label.tolist() == [0]
    assert prediction.entropy.item() == pytest.approx(stats.entropy(mean))
    conditional = (stats.entropy([0.8, 0.1, 0.1]) + stats.entropy([0.2, 0.5, 0.3])) / 2
    assert prediction.mutual_information.item() == pytest.approx(stats.entropy(mean) - conditional)
    assert prediction.log_prob([1]).item() == pytest.approx(math.log(0.3))
    torch.testing.assert_close(prediction.variance, prediction.mean * (1 - prediction.mean))
    assert prediction.epistemic_variance[0, 0].item() == pytest.approx(0.09)


def test_binary_targets_have_two_classes():
    probs = torch.tensor([[0.9, 0.2], [0.5, 0.4]], dtype=torch.float64)
    prediction, both = Prediction(dist.Bernoulli(probs=probs)), Prediction(dist.Bernoulli(probs[:, None]).to_event(1))
    torch.testing.assert_close(prediction.mean, torch.tensor([0.7, 0.3], dtype=torch.float64))
    torch.testing.assert_close(prediction.class_probs[1], torch.tensor([0.7, 0.3], dtype=torch.float64))
    assert prediction.label.tolist() == [1, 0]
    assert prediction.log_prob([1, 0]).exp().tolist() == pytest.approx([0.7, 0.7])
    assert prediction.entropy.tolist() == pytest.approx([stats.entropy([0.7, 0.3])] * 2)
    assert both.class_probs.shape == (1, 2, 2)
    joint = [(p * 0.2 + 0.5 * 0.4) / 2 for p in (0.9, 0.1)] + [(p * 0.8 + 0.5 * 0.6) / 2 for p in (0.9, 0.1)]
    assert both.entropy.item() == pytest.approx(stats.entropy(joint))
    assert both.log_prob([[1, 0]]).item() == pytest.approx(math.log((0.9 * 0.8 + 0.5 * 0.6) / 2))


def outcomes(probs):
    """The probabilities of all joint outcomes under each draw, from those of classes (S, N, K, C), by hand."""
    num_draws, num_inputs, columns, classes = probs.shape
    found = torch.empty(num_draws, num_inputs, classes**columns, dtype=probs.dtype)
    for place, labels in enumerate(itertools.product(range(classes), repeat=columns)):
        found[..., place] = math.prod(probs[:, :, column, label] for column, label in enumerate(labels))
    return found


JOINT = {
    "binary": (3, 2, lambda probs: dist.Bernoulli(probs[..., 1])),
    "many binary": (9, 2, lambda probs: dist.Bernoulli(logits=probs[..., 1].logit())),
    "classes": (3, 4, dist.Categorical),
}


@pytest.mark.parametrize("name", JOINT)
def test_several_columns_have_the_entropy_of_their_joint_outcomes(name):
    columns, classes, make = JOINT[name]
    generator = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(6, 3, columns, classes, generator=generator, dtype=torch.float64)).softmax(-1)
    prediction = Prediction(make(probs).to_event(1))
    joint = outcomes(probs)
    entropy, given = stats.entropy(joint.mean(0), axis=-1), stats.entropy(joint, axis=-1).mean(0)
    np.testing.assert_allclose(prediction.entropy.numpy(), entropy, rtol=1e-10)
    np.testing.assert_allclose(prediction.mutual_information.numpy(), entropy - given, rtol=1e-8)


@pytest.mark.parametrize("columns", [1, 4, 10])
def test_columns_that_one_latent_flips_tell_no_more_than_it(columns):
    """Two draws that say all 1 or all 0: the outcome tells which, log 2, however many columns there are."""
    probs = torch.tensor([1e-9, 1 - 1e-9], dtype=torch.float64)[:, None, None].expand(2, 3, columns)
    distribution = dist.Bernoulli(probs).to_event(1) if columns > 1 else dist.Bernoulli(probs[..., 0])
    prediction = Prediction(distribution)
    np.testing.assert_allclose(prediction.mutual_information.numpy(), math.log(2), rtol=1e-5)
    np.testing.assert_allclose(prediction.entropy.numpy(), math.log(2), rtol=1e-5)


@functools.cache
def fitted():
    data = bnn.datasets.sinusoid()
    model = bnn.BNN(bnn.MLP(1, [8], 1), likelihood=bnn.likelihoods.Gaussian(scale=1.0), prior=bnn.priors.Normal(1.0))
    return model.fit(data, steps=5, lr=0.02, seed=0, engine="eager", progress=False), data


def one_by_one(model, draws, x):
    """Outputs of the network for each draw by itself."""
    singles = (dict(zip(draws, values, strict=True)) for values in zip(*draws.values(), strict=True))
    return torch.stack([model.outputs(single, x) for single in singles])


def test_prediction_at_the_mean_is_one_pass_with_the_mean_weights():
    posterior, data = fitted()
    weights = posterior.mean()
    prediction = posterior.predict(data.x, at_mean=True)
    assert prediction.num_draws == 1
    torch.testing.assert_close(prediction.mean, posterior.bnn.outputs(weights, data.x)[:, 0])
    assert prediction.epistemic_std.max() == 0


def test_prediction_uses_the_draws_that_draw_returns():
    posterior, data = fitted()
    direct = posterior.predict(data.x, num_draws=20, seed=5)
    given = posterior.predict(data.x, draws=posterior.draw(20, seed=5))
    torch.testing.assert_close(direct.mean, given.mean, rtol=0, atol=0)
    draws = posterior.draw(20, seed=5)
    torch.testing.assert_close(direct.draw_means, one_by_one(posterior.bnn, draws, data.x)[..., 0])
    assert torch.equal(posterior.predict(data.x).mean, posterior.predict(data.x).mean)
    assert not torch.equal(direct.mean, posterior.predict(data.x, num_draws=20, seed=6).mean)


def test_chunks_do_not_change_predictions(monkeypatch):
    posterior, data = fitted()
    draws = posterior.draw(20)
    whole = posterior.predict(data.x, draws=draws)
    monkeypatch.setattr("pyrobnn._torch.vectorize._FLOATS_ON_ACCELERATOR", 37)
    monkeypatch.setattr("pyrobnn._torch.vectorize._ACTIVATION_FLOATS_ON_CPU", 37)
    chunked = posterior.predict(data.x, draws=draws)
    torch.testing.assert_close(chunked.draw_means, whole.draw_means)
    streamed = posterior.predict(data.x, num_draws=20)
    torch.testing.assert_close(streamed.draw_means, posterior.predict(data.x, draws=posterior.draw(20)).draw_means)


def residual():
    """Not a plain sequence of layers, so that it goes through vmap."""
    run = lambda net, x: net.last((h := net.first(x)) + h.tanh())  # noqa: E731
    return Net(run, first=torch.nn.Linear(3, 5), last=torch.nn.Linear(5, 2))


def frozen_middle():
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 5), torch.nn.Linear(5, 2))
    net[2].requires_grad_(requires_grad=False)
    return net


def tied():
    layer = torch.nn.Linear(3, 3)
    return torch.nn.Sequential(layer, torch.nn.Tanh(), layer, torch.nn.Linear(3, 2))


def hooked():
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    net[1].register_forward_hook(lambda module, inputs, output: output + 1)
    return net


SEQUENCES = {
    "relu": lambda: bnn.MLP(3, [7, 4], 2).build(),
    "softplus without biases": lambda: bnn.MLP(3, [7], 2, activation="softplus", bias=False).build(),
    "linear": lambda: torch.nn.Linear(3, 2),
    "nested, dropout": lambda: torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Sigmoid()), torch.nn.Dropout(), torch.nn.Linear(5, 2)
    ),
    "frozen layer": frozen_middle,
}
OTHERS = {
    "residual": residual,
    "tied": tied,
    "hooked": hooked,
    "normalised": lambda: torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 2)),
    "activation first": lambda: torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(3, 2)),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("moving", ["all", "last", "none"])
@pytest.mark.parametrize("budget", [1, 100, 2**20])
@pytest.mark.parametrize("name", [*SEQUENCES, *OTHERS])
def test_draws_together_give_the_outputs_of_single_draws(name, budget, moving, monkeypatch):
    """Odd numbers of draws and inputs, chunks that do not divide them, weights that are the same in all draws."""
    monkeypatch.setattr("pyrobnn._torch.vectorize._ACTIVATION_FLOATS_ON_CPU", budget)
    net = {**SEQUENCES, **OTHERS}[name]().double()
    model = bnn.BNN(net, likelihood=bnn.likelihoods.Gaussian(scale=1.0), prior=bnn.priors.Normal(1.0)).eval()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(13, 3, generator=generator, dtype=torch.float64)
    sites = list(model.initial_values)
    moves = {"all": sites, "last": sites[-1:], "none": []}[moving]
    draws = {
        site: torch.randn(11 if site in moves else 1, *value.shape, generator=generator, dtype=torch.float64).expand(
            11, *value.shape
        )
        for site, value in model.initial_values.items()
    }
    layers = stack_linear(model.net, draws)
    assert (layers is not None) == (name in SEQUENCES)
    before = x.clone()
    outputs = DrawMap(model.outputs, x, model.net)(draws) if layers is None else run_stacked(layers, x)
    torch.testing.assert_close(outputs, one_by_one(model, draws, x), rtol=1e-12, atol=1e-12)
    assert torch.equal(x, before)


@pytest.mark.filterwarnings("error")
def test_a_block_of_draws_is_compared_with_draws_of_its_own(monkeypatch):
    """A last block of one draw is asked for by itself."""
    monkeypatch.setattr("pyrobnn.posterior.posterior.draws_at_once", lambda *_: 5)
    net = torch.nn.Sequential(torch.nn.Conv1d(1, 4, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(16, 2))
    x, y = torch.randn(20, 1, 6), torch.randn(20, 2)
    posterior = bnn.guides.Laplace().around(net, bnn.Data(x, y, standardize=False), progress=False)
    draws = posterior.draw(6, seed=1)
    outputs = posterior.predict(x, num_draws=6, seed=1, linearized=False).draw_means
    torch.testing.assert_close(outputs, one_by_one(posterior.bnn, draws, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("linearized", [False, True])
def test_a_body_at_its_point_runs_once_for_all_draws(linearized):
    """A convolution before a Bayesian last layer sees each input once, not once a draw."""
    rows = []

    class Counting(torch.nn.Conv1d):
        def forward(self, x):
            rows.append(x.shape[0])
            return super().forward(x)

    net = torch.nn.Sequential(Counting(1, 4, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(16, 2))
    x, y = torch.randn(20, 1, 6), torch.randn(20, 2)
    data = bnn.Data(x, y, standardize=False)
    posterior = bnn.guides.Laplace(structure="full", sites="last_layer").around(net, data, progress=False)
    draws = posterior.draw(100, seed=1)
    rows.clear()
    outputs = posterior.predict(x, num_draws=100, seed=1, linearized=linearized).draw_means
    assert sum(rows) <= len(x) + 2
    torch.testing.assert_close(outputs, one_by_one(posterior.bnn, draws, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spread", [1.0, 30.0, 1e4])
def test_class_probabilities_of_logits_are_their_softmax(spread):
    logits = spread * torch.randn(20, 3, 4, generator=torch.Generator().manual_seed(0))
    prediction, exact = Prediction(dist.Categorical(logits=logits)), logits.double().softmax(-1)
    for found in (prediction, Prediction(dist.Categorical(probs=exact.float()))):
        torch.testing.assert_close(found.class_probs.double(), exact.mean(0), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.class_probs.double().sum(-1), torch.ones(3).double(), rtol=0, atol=1e-7)
        expected = (exact * (1 - exact)).mean(0)
        torch.testing.assert_close(found.aleatoric_variance.double(), expected, rtol=1e-5, atol=1e-5)


def test_columns_of_a_frame_that_are_missing_are_refused():
    frame = pd.DataFrame(torch.randn(20, 3).numpy(), columns=["a", "b", "c"])
    model = bnn.BNN(bnn.MLP(3, [4], 1), likelihood=bnn.likelihoods.Gaussian(scale=1.0), prior=bnn.priors.Normal(1.0))
    posterior = model.fit(frame, frame["a"], steps=2, seed=0, engine="eager", progress=False)
    with pytest.raises(bnn.InputError, match="must have the columns of the training inputs; 'a' is missing"):
        posterior.predict(frame.rename(columns={"a": "z"}))


@pytest.mark.parametrize(("spread", "is_few"), [(1.0, False), (1.6, True)])
def test_a_mean_of_counts_that_few_draws_make_up_is_told(spread, is_few):
    """Rates exp(spread z) have deviations of sqrt(exp(spread^2) - 1) times their mean: 1.3, and 3.5."""
    normals = dist.Normal(0.0, 1.0).icdf((torch.arange(4000) + 0.5) / 4000)
    rates = torch.stack([(spread * normals).exp(), torch.ones(4000)], 1)
    for count in (dist.Poisson(rates), dist.GammaPoisson(2.0, 2.0 / rates)):
        prediction = bnn.Prediction(count)
        assert prediction.rests_on_few_draws.tolist() == [is_few, False]
        where = r"at 1 of 2 inputs \(row 0\): a few draws predict far larger targets"
        with pytest.warns(bnn.FewDrawsWarning, match=where) if is_few else nullcontext():
            mean = prediction.mean
        torch.testing.assert_close(mean, rates.mean(0))
    real = bnn.Prediction(dist.Normal(rates.log(), 1.0))
    assert not real.rests_on_few_draws.any()
    assert real.mean.shape == (2,)


NORMALS = dist.Normal(0.0, 1.0).icdf((torch.arange(500, dtype=torch.float64) + 0.5) / 500)
ONE_FAR = torch.where(torch.arange(500) == 3, 1e9, NORMALS)
FEW_DRAWS = {
    "log-normal": lambda f: dist.LogNormal(3 * f, 0.1),
    "gamma": lambda f: dist.Gamma(2.0, 2.0 / (3 * f).exp()),
    "zero-inflated": lambda f: counts.ZeroInflated(counts.Poisson(3 * f), -1 + 0 * f),
    "two columns": lambda f: dist.LogNormal(torch.stack([f, 3 * f], -1), 0.1).to_event(1),
    "one draw that diverged": lambda f: dist.Normal(torch.where(f == 0, 0, ONE_FAR[:, None]), 1.0),
    "one draw that overflowed": lambda f: dist.LogNormal(torch.where(f == 0, 0, ONE_FAR[:, None]), 1.0),
    "mixture": lambda f: dist.MixtureSameFamily(
        dist.Categorical(torch.ones(500, 2, 2)),
        dist.Normal(torch.where(f == 0, 0, ONE_FAR[:, None])[..., None].expand(500, 2, 2), 1.0),
    ),
}


@pytest.mark.parametrize("name", FEW_DRAWS)
def test_means_and_deviations_of_few_draws_are_told_once_and_estimators_take_medians(name):
    """Medians over draws at normal quantiles are those of the middle draws: 1 in logs, 0 else, and of counts 0 or 1."""
    at = torch.stack([NORMALS, torch.zeros(500).double()], 1)
    for read in ("mean", "std", "epistemic_std", "variance", "aleatoric_std"):
        prediction = bnn.Prediction(FEW_DRAWS[name](at))
        if name.startswith("one") and read == "aleatoric_std":
            continue
        where = r"less than a fifth of the 500 draws at 1 of 2 inputs \(row 0\)"
        with pytest.warns(bnn.FewDrawsWarning, match=where) as told:
            getattr(prediction, read)
        with warnings.catch_warnings(action="error"):
            prediction.mean, prediction.std, prediction.epistemic_std  # noqa: B018
        assert len(told) == 1
    with warnings.catch_warnings(action="ignore"):
        prediction = bnn.Prediction(FEW_DRAWS[name](at))
        mean, std = _centres(prediction)
        kept, spread = prediction.mean[1], prediction.std[1]
    assert bool(mean.isfinite().all() & std.isfinite().all())
    assert bool((mean[0] >= -0.1).all() & (mean[0] < 1.1).all())
    assert torch.equal(mean[1], kept)
    assert torch.equal(std[1], spread)


def test_quantiles_beyond_the_draws_are_told_where_few_draws_are_far():
    prediction = bnn.Prediction(FEW_DRAWS["log-normal"](NORMALS[:, None]))
    with warnings.catch_warnings(action="error"):
        prediction.interval(0.95)
    with pytest.warns(bnn.FewDrawsWarning, match="The quantile rests on"):
        prediction.interval(0.999)
    with warnings.catch_warnings(action="error"):
        bnn.Prediction(dist.Normal(NORMALS[:, None], 0.1)).interval(0.999)
        bnn.Prediction(dist.LogNormal(NORMALS[:, None], 0.1)).interval(0.999)
        bnn.Prediction(dist.Normal(NORMALS[:5, None], 0.1)).mean  # noqa: B018


def test_a_table_has_a_row_for_each_input():
    draws = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    prediction = bnn.Prediction(dist.Normal(draws, 0.5))
    frame = prediction.to_frame()
    assert frame.shape == (4, 6)
    np.testing.assert_allclose(frame["mean"], draws.mean(0), rtol=1e-6)
    np.testing.assert_allclose(frame["upper_95"], prediction.quantile(0.975))
    probs = torch.rand(50, 4, 3, generator=torch.Generator().manual_seed(1))
    prediction = bnn.Prediction(dist.Categorical(probs=probs / probs.sum(-1, keepdim=True)))
    frame = prediction.to_frame(["red", "green", "blue"])
    assert list(frame) == ["class", "prob_red", "prob_green", "prob_blue", "entropy", "mutual_information"]
    assert frame["class"].tolist() == [["red", "green", "blue"][number] for number in prediction.label]
    np.testing.assert_allclose(frame.filter(like="prob_").sum(axis=1), 1, rtol=1e-6)
    assert prediction.to_frame()["class"].isin(["0", "1", "2"]).all()


def test_a_table_of_positive_targets_begins_with_the_median():
    """Log medians f ~ N(0, 2^2) over draws, noise of 1: log targets are N(0, 5), whatever the mean is."""
    f = 2 * dist.Normal(0.0, 1.0).icdf((torch.arange(4000, dtype=torch.float64) + 0.5) / 4000)
    token = current_spelling.set("command")
    try:
        with pytest.warns(bnn.FewDrawsWarning, match=r"\(row 2\).*take the median"):
            frame = bnn.Prediction(dist.LogNormal(torch.stack([0 * f, f], 1), 1.0)).to_frame()
    finally:
        current_spelling.reset(token)
    assert list(frame)[:2] == ["median", "mean"]
    np.testing.assert_allclose(frame["median"], 1, rtol=1e-3)
    np.testing.assert_allclose(frame["upper_95"], np.exp(1.959964 * np.sqrt([1, 5])), rtol=1e-3)
    assert frame["mean"][1] > 10
    counts = bnn.BNN(bnn.MLP(1, [2], 1), likelihood="poisson").likelihood(f[:, None, None] / 4)
    assert "median" in bnn.Prediction(counts).to_frame()


def test_tables_of_several_targets_and_names_that_do_not_fit_are_refused():
    several = bnn.Prediction(dist.Normal(torch.zeros(2, 3, 2), 1.0).to_event(1))
    with pytest.raises(bnn.InputError, match="A table has one target column, got predictions of \\(2,\\) targets"):
        several.to_frame()
    with pytest.raises(bnn.InputError, match="must name 2 classes, got 1 names"):
        bnn.Prediction(dist.Bernoulli(torch.full((2, 3), 0.5))).to_frame(["no"])

"""Plots: the numbers that the artists hold, not only that a picture appears."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch
from helpers import edges, labelled
from matplotlib import pyplot as plt
from matplotlib.collections import LineCollection, PolyCollection
from scipy import stats

import pyrobnn as bnn
from pyrobnn import plots
from pyrobnn.inference import History
from pyrobnn.plots._style import close
from pyrobnn.plots.regression import LEVELS, _errors_of_line, coverage


@pytest.fixture(scope="module")
def data():
    return bnn.datasets.sinusoid(16)


def fitted(data, guide="mean_field", outputs=1, **arguments):
    model = bnn.BNN(
        bnn.MLP(data.x.shape[1], [4], outputs),
        likelihood=bnn.likelihoods.Gaussian(scale=1.0),
        prior=bnn.priors.Normal(1.0),
    )
    return bnn.fit(model, data, bnn.SVI(guide=guide, steps=30), seed=0, engine="eager", progress=False, **arguments)


@pytest.fixture(scope="module")
def posterior(data):
    return fitted(data, validation=data)


def normal_prediction(num=400, scale=1.0):
    return bnn.Prediction(dist.Normal(torch.zeros(3, num), torch.full((3, num), scale)))


def normal_quantiles(num):
    """Targets that a standard normal prediction covers exactly as it should."""
    return torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(num) + 0.5) / num)


# the fit


def history(log_likelihood, kl, steps=(), scores=()):
    return History(np.asarray(log_likelihood, float), np.asarray(kl, float), list(steps), list(scores))


def test_elbo_draws_the_terms_and_the_validation_score(posterior):
    record = posterior.history
    figure = plots.elbo(record)
    bound, parts, validation = figure.axes
    np.testing.assert_allclose(bound.lines[0].get_ydata(), record.log_likelihood - record.kl)
    np.testing.assert_allclose(parts.lines[0].get_ydata(), record.log_likelihood)
    np.testing.assert_allclose(parts.lines[3].get_ydata(), -record.kl)
    np.testing.assert_allclose(validation.lines[0].get_ydata(), record.validation_scores)
    assert "nats" in bound.get_ylabel()


# regression


def test_fit_1d_draws_mean_and_bands_of_two_sd(posterior, data):
    x = torch.linspace(-1, 1, 21)[:, None]
    figure = plots.fit_1d(posterior, data, x.flip(0), bnn.datasets.sinusoid_curve, num_draws=60)
    (axis,) = figure.axes
    prediction = posterior.predict(x, num_draws=60)
    mean = prediction.mean.numpy()
    np.testing.assert_allclose(labelled(axis, "mean").get_ydata(), mean, rtol=1e-5)
    for label, std in [("epistemic, ±2 sd", prediction.epistemic_std), ("predictive interval, ±2 sd", prediction.std)]:
        low, high = edges(labelled(axis, label), x[:, 0].numpy())
        np.testing.assert_allclose(low, mean - 2 * std.numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(high, mean + 2 * std.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(labelled(axis, "truth").get_ydata(), bnn.datasets.sinusoid_curve(x)[:, 0], atol=1e-6)
    np.testing.assert_allclose(labelled(axis, "data").get_ydata(), data.y)
    assert plots.fit_1d(posterior, data, num_draws=10).axes[0].get_xlim() == pytest.approx((-0.75, 0.75))


def test_coverage_panel_is_the_share_inside_the_interval_of_each_level():
    y = normal_quantiles(400)
    prediction = normal_prediction()
    axis = plots.observed_vs_predicted(prediction, y).axes[1]
    bounds = [prediction.interval(float(level)) for level in LEVELS]
    expected = [float(((low <= y) & (y <= high)).double().mean()) for low, high in bounds]
    np.testing.assert_allclose(labelled(axis, "observed").get_xdata(), LEVELS)
    np.testing.assert_allclose(labelled(axis, "observed").get_ydata(), expected, atol=1e-9)
    np.testing.assert_allclose(expected, LEVELS, atol=0.006)
    band = next(artist for artist in axis.get_children() if isinstance(artist, PolyCollection))
    low, high = edges(band, LEVELS)
    assert ((low <= expected) & (expected <= high)).all()
    sure = plots.observed_vs_predicted(normal_prediction(scale=0.2), y).axes[1]
    assert labelled(sure, "observed").get_ydata()[-1] == pytest.approx(0.305, abs=0.01)


def test_the_band_of_coverage_holds_the_whole_line_in_nineteen_of_twenty_cases():
    """Of 2,000 calibrated lines, within three standard errors; a band for each level alone holds far fewer."""
    lines = np.array([coverage(np.random.default_rng(seed).uniform(size=50)) for seed in range(2000)])
    error = np.sqrt(LEVELS * (1 - LEVELS) / 50)
    held = (np.abs(lines - LEVELS) <= _errors_of_line(50) * error).all(1).mean()
    assert held == pytest.approx(0.95, abs=0.02)
    assert (np.abs(lines - LEVELS) <= 2 * error).all(1).mean() < 0.85


def test_intervals_that_miss_are_told_apart():
    y = torch.tensor([0.0, 1.0, 5.0])
    figure = plots.observed_vs_predicted(normal_prediction(3), y)
    axis = figure.axes[0]
    assert labelled(axis, "interval holds y (2)").get_xdata().tolist() == [0.0, 1.0]
    assert labelled(axis, "interval misses y (1)").get_xdata().tolist() == [5.0]
    bars = [artist for artist in axis.get_children() if isinstance(artist, LineCollection)]
    assert len(bars) == 2
    ends = np.concatenate([bar.get_segments() for bar in bars])[:, :, 1]
    np.testing.assert_allclose(np.abs(ends), 1.959964, atol=1e-4)


# classification


def categorical(probs):
    return bnn.Prediction(dist.Categorical(probs=torch.as_tensor(probs)[None]))


def test_reliability_shows_accuracy_by_confidence_with_counts():
    probs = [[0.92, 0.08]] * 4 + [[0.35, 0.65]] * 2
    figure = plots.reliability(categorical(probs), torch.tensor([0, 0, 0, 1, 1, 0]))
    diagram, histogram = figure.axes
    dots = labelled(diagram, "observed")
    np.testing.assert_allclose(dots.get_xdata(), [0.65, 0.92], rtol=1e-6)
    np.testing.assert_allclose(dots.get_ydata(), [0.5, 0.75])
    assert [text.get_text() for text in diagram.texts] == ["2", "4"]
    assert {text.get_position()[1] for text in diagram.texts} == {0.01}
    assert "ECE 0.163" in diagram.get_title(loc="left")
    ends = np.array(labelled(diagram, "95 % if calibrated").get_segments())[:, :, 1]
    np.testing.assert_allclose(ends, [[0.0, 1.0], [0.5, 1.0]])  # all of 2 at 0.65; 2 to 4 of 4 at 0.92
    correct, wrong = (sum(bar.get_height() for bar in bars) for bars in histogram.containers)
    assert (correct, wrong) == (4, 2)


def test_reliability_of_binary_targets_counts_the_confidence_in_either_class():
    prediction = bnn.Prediction(dist.Bernoulli(torch.tensor([[0.1, 0.9, 0.3]])))
    dots = labelled(plots.reliability(prediction, torch.tensor([0, 1, 1])).axes[0], "observed")
    np.testing.assert_allclose(dots.get_xdata(), [0.7, 0.9], rtol=1e-6)
    np.testing.assert_allclose(dots.get_ydata(), [0.0, 1.0])


def test_the_bars_of_reliability_hold_as_many_right_labels_as_are_due():
    """In 400 simulated sets of 100 labels the dot of a bin is outside its bar in at most 5 % (two tails of 2.5 %)."""
    probs, generator = torch.full((100,), 0.72), torch.Generator().manual_seed(0)
    prediction = bnn.Prediction(dist.Bernoulli(probs[None]))
    bars = plots.reliability(prediction, torch.zeros(100)).axes[0]
    ((low, high),) = np.array(labelled(bars, "95 % if calibrated").get_segments())[:, :, 1]
    right = (torch.rand(400, 100, generator=generator) < probs).double().mean(1).numpy()
    assert 0 < np.mean((right < low - 1e-9) | (right > high + 1e-9)) < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 400)
    assert low == pytest.approx(stats.binom.ppf(0.025, 100, 0.72) / 100)


# where the errors are


def scattered(num=300):
    """Real targets whose noise the prediction knows, and labels drawn from predicted probabilities."""
    rng = np.random.default_rng(0)
    std = rng.random(num) + 0.2
    real = bnn.Prediction(dist.Normal(torch.zeros(2, num).double(), torch.from_numpy(std)))
    probs = rng.dirichlet([1, 1, 1], size=num)
    return real, std * rng.normal(size=num), categorical(probs), np.array([rng.choice(3, p=row) for row in probs])


def test_sparsification_and_selective_risk_draw_the_curves_of_the_metrics():
    real, y, labelled_probs, labels = scattered()
    cases = [(real, y, "standard deviation", "standard deviation"), (labelled_probs, labels, "entropy", "confidence")]
    for prediction, targets, by, risk_by in cases:
        curves = bnn.metrics.sparsification(prediction, targets)
        (axis,) = plots.sparsification(prediction, targets).axes
        np.testing.assert_allclose(labelled(axis, f"by {by}").get_ydata(), curves.error[15:])
        np.testing.assert_allclose(labelled(axis, f"by {by}").get_xdata(), 1 - curves.coverage[15:])
        np.testing.assert_allclose(labelled(axis, "by error: the best order").get_ydata(), curves.oracle[15:])
        assert f"AUSE {bnn.score(prediction, targets)['ause'].value:.3f}" in axis.get_title(loc="left")
        risks = bnn.metrics.selective_risk(prediction, targets)
        (axis,) = plots.selective_risk(prediction, targets).axes
        np.testing.assert_allclose(labelled(axis, f"by {risk_by}").get_ydata(), risks.error[15:])
        np.testing.assert_allclose(labelled(axis, "in random order").get_ydata(), risks.random)


@pytest.mark.parametrize(("num", "left_out"), [(8, 2), (100, 10), (300, 15)])
def test_curves_of_errors_leave_out_the_shares_of_a_few_examples(num, left_out):
    """A first example of a large error would else reach 6 times the error of all."""
    prediction = bnn.Prediction(dist.Normal(torch.zeros(2, num), torch.linspace(1, 2, num)))
    y = torch.cat([torch.tensor([6.0]), torch.ones(num - 1)])
    for drawn in (plots.sparsification, plots.selective_risk):
        assert len(labelled(drawn(prediction, y).axes[0], "by standard deviation").get_xdata()) == num - left_out


def test_transforms_are_flat_for_a_calibrated_prediction():
    figure = plots.pit(normal_prediction(), normal_quantiles(400))
    density, difference = figure.axes
    np.testing.assert_allclose([bar.get_height() for bar in density.patches], 1.0, atol=1e-6)
    assert "uniform with p = 1" in density.get_title(loc="left")
    assert np.abs(labelled(difference, "observed").get_ydata()).max() < 0.005


def test_transforms_of_too_narrow_predictions_are_like_a_u():
    density, difference = plots.pit(normal_prediction(scale=0.3), normal_quantiles(400), layout="column").axes
    heights = [bar.get_height() for bar in density.patches]
    assert min(heights[0], heights[-1]) > 3 * max(heights[5:-5])
    assert labelled(difference, "observed").get_ydata().max() > 0.2
    assert plots.pit(bnn.Prediction(dist.Normal(torch.zeros(1, 30, 2), 1.0).to_event(1)), torch.zeros(30, 2)).axes


def test_ood_shows_both_groups_and_the_roc():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(10, 200, 3, generator=generator)
    inside, outside = (bnn.Prediction(dist.Categorical(logits=logits * spread)) for spread in (0.5, 2.0))
    figure = plots.ood(inside, outside)
    histogram, roc = figure.axes
    assert [text.get_text() for text in histogram.get_legend().get_texts()] == ["inside (200)", "outside (200)"]
    area = np.trapezoid(labelled(roc, "by uncertainty").get_ydata(), labelled(roc, "by uncertainty").get_xdata())
    found = bnn.score_ood(inside, outside)
    assert area == pytest.approx(found["auroc_mutual_information"].value, abs=1e-6)
    rate = found["fpr_95_mutual_information"].value
    assert labelled(roc, f"{rate:.0%} false at 95 % true").get_xdata()[0] == pytest.approx(rate)
    assert "mutual information" in histogram.get_xlabel()
    assert "epistemic" in plots.ood(normal_prediction(), normal_prediction()).axes[0].get_xlabel()


# weights


def test_weights_from_moments_count_each_weight_once(posterior):
    figure = plots.weights(posterior)
    means, ratio = figure.axes
    labels = [text.get_text() for text in means.get_legend().get_texts()]
    assert labels == ["layer 0 (8)", "layer 2 (5)"]
    assert sum(bar.get_height() for bar in ratio.patches) == posterior.bnn.num_weights
    moments = posterior.guide.moments().values()
    below = sum(int((mean.abs() < scale).sum()) for mean, scale in moments) / posterior.bnn.num_weights
    assert f"{100 * below:.0f} % of the weights below 1" in ratio.get_title(loc="left")


@pytest.mark.parametrize("backend", ["TkAgg", "agg", "module://matplotlib_inline.backend_inline", "nbagg"])
def test_pyplot_keeps_pictures_only_where_it_opens_windows_and_in_the_main_thread(backend, monkeypatch):
    monkeypatch.setattr(plt, "get_backend", lambda: backend)
    record = history(np.full(40, -3.0), np.ones(40))
    figure = plots.elbo(record)
    assert [plt.figure(number) for number in plt.get_fignums()] == [figure] * (backend == "TkAgg")
    close(figure)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(plots.elbo, record).result()
    assert not plt.get_fignums()


NORMAL = normal_prediction(3)
TORN = bnn.Prediction(dist.Categorical(probs=torch.tensor([[[0.9, 0.1], [1.0, 0.0], [0.5, 0.5]]])))
SMALL = torch.rand(3, 4, 4)
REFUSED = {
    "got x .* and \\(5, 2\\)": lambda posterior, data: plots.fit_1d(posterior, data, torch.zeros(5, 2)),
    "`observed_vs_predicted` needs real targets": lambda posterior, data: plots.observed_vs_predicted(TORN, [0, 1, 0]),
    "`x` and `y` must have the same": lambda posterior, data: plots.observed_vs_predicted(NORMAL, torch.zeros(4)),
    "same number of rows": lambda posterior, data: plots.predictive_check(NORMAL, torch.zeros(5)),
    "`reliability` needs classes": lambda posterior, data: plots.reliability(NORMAL, torch.zeros(3)),
    "a single measure, got by='all'": lambda posterior, data: plots.ood(NORMAL, NORMAL, by="all"),
    "posteriors by name, got none": lambda posterior, data: plots.compare_guides({}, data),
    "`compare_guides` draws one input": lambda posterior, data: plots.compare_guides(
        {"a": posterior}, (SMALL[0], [0] * 4)
    ),
    "draws two inputs, got x of shape": plots.decision_surface,
    "got a table of 0 rows": lambda posterior, data: plots.importance(pd.DataFrame()),
    "got 'entropi'.*entropy": lambda posterior, data: plots.images(SMALL, TORN, by="entropi"),
    "a single class each": lambda posterior, data: plots.images(SMALL, NORMAL),
    "must hold the 3 images": lambda posterior, data: plots.images(torch.rand(4, 4, 4), TORN),
    "got shape \\(3, 5\\)": lambda posterior, data: plots.images(torch.rand(3, 5), TORN),
    "takes the posterior of a fit by steps": lambda posterior, data: plots.elbo(None),
    "its history with a step or more": lambda posterior, data: plots.elbo(history([], [])),
}


@pytest.mark.parametrize("message", REFUSED)
def test_plots_refuse_what_they_cannot_draw(message, posterior, data):
    with pytest.raises(bnn.InputError, match=message):
        REFUSED[message](posterior, data)

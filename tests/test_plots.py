"""Plots: the numbers that the artists hold, not only that a picture appears."""

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

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
from pyrobnn.plots.predictive import _densities, _envelope
from pyrobnn.plots.regression import LEVELS, _errors_of_line, coverage
from pyrobnn.tables.schema import Input

FIT = {"seed": 0, "engine": "eager", "progress": False}


def classifier(num_outputs):
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long() + ((x[:, 1] > 0) & (x[:, 0] > 0)).long() * (num_outputs > 1)
    likelihood = "categorical" if num_outputs > 1 else "bernoulli"
    model = bnn.BNN(bnn.MLP(2, [4], num_outputs), likelihood=likelihood, prior=bnn.priors.Normal(1.0))
    return model.fit(x, y, steps=60, lr=0.05, **FIT), bnn.Data(x, y)


@pytest.fixture(scope="module")
def data():
    return bnn.datasets.sinusoid(16)


@pytest.fixture(scope="module")
def posterior(data):
    known = bnn.likelihoods.Gaussian(scale=1.0)
    model = bnn.BNN(bnn.MLP(1, [4], 1), likelihood=known, prior=bnn.priors.Normal(1.0))
    return bnn.fit(model, data, bnn.SVI(steps=30), validation=data, **FIT)


def normal_prediction(num=400, scale=1.0, num_draws=3):
    return bnn.Prediction(dist.Normal(torch.zeros(num_draws, num), scale))


def normal_quantiles(num):
    """Targets that a standard normal prediction covers exactly as it should."""
    return torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(num) + 0.5) / num)


def test_elbo_draws_the_terms_and_the_validation_score(posterior):
    record = posterior.history
    figure = plots.elbo(record)
    bound, parts, validation = figure.axes
    np.testing.assert_allclose(bound.lines[0].get_ydata(), record.log_likelihood - record.kl)
    np.testing.assert_allclose(parts.lines[0].get_ydata(), record.log_likelihood)
    np.testing.assert_allclose(parts.lines[3].get_ydata(), -record.kl)
    np.testing.assert_allclose(validation.lines[0].get_ydata(), record.validation_scores)
    assert "nats" in bound.get_ylabel()


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


def categorical(probs):
    return bnn.Prediction(dist.Categorical(probs=torch.as_tensor(probs)[None]))


def test_reliability_shows_accuracy_by_confidence_in_either_class_with_counts():
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


def test_transforms_are_flat_for_a_calibrated_prediction_and_like_a_u_for_one_that_is_too_narrow():
    figure = plots.pit(normal_prediction(), normal_quantiles(400))
    density, difference = figure.axes
    np.testing.assert_allclose([bar.get_height() for bar in density.patches], 1.0, atol=1e-6)
    assert "uniform with p = 1" in density.get_title(loc="left")
    assert np.abs(labelled(difference, "observed").get_ydata()).max() < 0.005
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
    record = History(np.full(40, -3.0), np.ones(40), [], [])
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
    "got BNN: pass the result of `bnn.fit`": lambda posterior, data: plots.fit_1d(posterior.bnn, data),
    "got BNNRegressor: .* estimator its `.posterior_`": lambda _, data: plots.effects(bnn.BNNRegressor(), data),
    "posteriors by name, got none": lambda posterior, data: plots.compare_guides({}, data),
    "`compare_guides` draws one input": lambda fit, data: plots.compare_guides({"a": fit}, (SMALL[0], [0] * 4)),
    "draws two inputs, got x of shape": plots.decision_surface,
    "`effects` draws the columns of a table, got x of shape": lambda posterior, _: plots.effects(
        posterior, bnn.Data(torch.zeros(2, 1, 2), [0, 1])
    ),
    "Predictions under draws from the prior overflow: take a prior": lambda *_: plots.prior_predictive(
        bnn.BNN(bnn.MLP(1, [], 1), prior=bnn.priors.Normal(1e38)), torch.full((3, 1), 100.0)
    ),
    "got a table of 0 rows": lambda posterior, data: plots.importance(pd.DataFrame()),
    "got 'entropi'.*entropy": lambda posterior, data: plots.images(SMALL, TORN, by="entropi"),
    "a single class each": lambda posterior, data: plots.images(SMALL, NORMAL),
    "must hold the 3 images": lambda posterior, data: plots.images(torch.rand(4, 4, 4), TORN),
    "got shape \\(3, 5\\)": lambda posterior, data: plots.images(torch.rand(3, 5), TORN),
    "takes the posterior of a fit by steps": lambda posterior, data: plots.elbo(None),
    "its history with a step or more": lambda posterior, data: plots.elbo(History(np.array([]), np.array([]), [], [])),
}


@pytest.mark.parametrize("message", REFUSED)
def test_plots_refuse_what_they_cannot_draw(message, posterior, data):
    with pytest.raises(bnn.InputError, match=message):
        REFUSED[message](posterior, data)


@pytest.fixture(scope="module")
def line():
    """A linear model with weight and bias from N(0, 1), so that f(x) ~ N(0, 1 + x^2) before there are data."""
    data = bnn.datasets.sinusoid(12)
    noise = bnn.likelihoods.Gaussian(scale={"type": "half_normal", "scale": 3.0})
    model = bnn.BNN(bnn.MLP(1, [], 1), likelihood=noise, prior=bnn.priors.Normal(1.0))
    return model.fit(data, steps=100, lr=0.05, **FIT), data


@pytest.fixture(scope="module")
def two():
    return classifier(1)


@pytest.fixture(scope="module")
def three():
    return classifier(3)


PICTURES = {
    "compare_methods": lambda line, two, three: plots.compare_methods(
        bnn.compare_methods(line[0].bnn, line[1], {"map": bnn.SVI(guide="map", steps=3)}, held_out=line[1], seeds=[0])
    ),
    "compare_guides": lambda line, two, three: plots.compare_guides({"one": line[0], "same": line[0]}, line[1]),
    "confusion": lambda line, two, three: plots.confusion(three[0].predict(three[1].x), three[1].y),
    "decision_surface": lambda line, two, three: plots.decision_surface(*three, num_draws=20, layout="column"),
    "effects": lambda line, two, three: plots.effects(*three, num_draws=20),
    "elbo": lambda line, two, three: plots.elbo(line[0].history),
    "fit_1d": lambda line, two, three: plots.fit_1d(bnn.Mixture([line[0], line[0]]), line[1], num_draws=20),
    "images": lambda line, two, three: plots.images(torch.rand(40, 5, 5), three[0].predict(three[1].x, num_draws=20)),
    "importance": lambda line, two, three: plots.importance(bnn.metrics.permutation_importance(*two, num_draws=20)),
    "observed_vs_predicted": lambda line, *_: plots.observed_vs_predicted(line[0].predict(line[1].x), line[1].y),
    "ood": lambda line, two, three: plots.ood(line[0].predict(line[1].x), line[0].predict(9 * line[1].x)),
    "pit": lambda line, two, three: plots.pit(line[0].predict(line[1].x), line[1].y),
    "predictive_check": lambda line, two, three: plots.predictive_check(line[0].predict(line[1].x), line[1].y),
    "prior_predictive": lambda line, two, three: plots.prior_predictive(line[0].bnn, line[1].x, num_draws=50),
    "reliability": lambda line, two, three: plots.reliability(three[0].predict(three[1].x), three[1].y),
    "selective_risk": lambda line, two, three: plots.selective_risk(three[0].predict(three[1].x), three[1].y),
    "sparsification": lambda line, two, three: plots.sparsification(three[0].predict(three[1].x), three[1].y),
    "weights": lambda line, two, three: plots.weights(three[0]),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", plots.__all__)
def test_every_plot_writes_a_picture_and_leaves_no_state(name, line, two, three):
    figure = PICTURES[name](line, two, three)
    picture = figure._repr_png_()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5000
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def table(num=160):
    """A numeric column, one with three values, and a category in two columns of 0 and 1."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, num)
    x = np.stack([rng.normal(size=num), rng.integers(0, 3, num), kind, 1 - kind], 1)
    return bnn.Data(x, x @ [2.0, -1.0, 0.5, 0.0], feature_names=["size", "rooms", "kind=flat", "kind=house"])


def means_by_draw(posterior, data, places, values):
    """Means over the examples that are drawn, with some columns set: (40,)."""
    examples = data.x.numpy()[np.linspace(0, 159, 100).round().astype(int)]
    examples[:, places] = values
    return posterior.predict(examples, num_draws=40).draw_means.mean(1).numpy()


def test_effects_of_a_linear_model_are_lines_with_its_slopes():
    """The mean over examples of w x + b, with one column set to v, is w_j v + b + the means of the other terms."""
    data = table()
    model = bnn.BNN(bnn.MLP(4, [], 1), likelihood=bnn.likelihoods.Gaussian(1.0), prior=bnn.priors.Normal(1.0))
    posterior = model.fit(data, guide="mean_field", steps=100, lr=0.05, **FIT)
    groups = {"size": [0], "rooms": [1], "kind": [2, 3]}
    layout = [Input(name, name, name) for name in ("size", "rooms")]
    layout += [Input(f"kind={one}", "kind", f"kind: {one}", category=one) for one in ("flat", "house")]
    figure = plots.effects(posterior, data, groups=groups, layout=layout, num_draws=40)
    assert [axis.get_xlabel() for axis in figure.axes] == ["size", "rooms", "kind"]
    shown = {"size": None, "rooms": np.array([[0], [1], [2]]), "kind": np.array([[1, 0], [0, 1]])}
    for axis, (name, places) in zip(figure.axes, groups.items(), strict=True):
        mean, spread = labelled(axis, "mean"), labelled(axis, "epistemic, ±2 sd")
        values = mean.get_xdata()[:, None] if shown[name] is None else shown[name]
        drawn = np.stack([means_by_draw(posterior, data, places, value) for value in values], 1)
        np.testing.assert_allclose(mean.get_ydata(), drawn.mean(0), rtol=1e-4, atol=1e-4)
        if shown[name] is None:
            low, high = edges(spread, values[:, 0])
            slope = np.polyfit(values[:, 0], mean.get_ydata(), 1)[0]
            assert slope == pytest.approx(float(posterior.draw(40)["0.weight"][:, 0, 0].mean()), rel=1e-3)
        else:
            low, high = np.array(spread.get_segments())[:, :, 1].T
        np.testing.assert_allclose(high - low, 4 * drawn.std(0), rtol=1e-3)
    assert [label.get_text() for label in figure.axes[2].get_xticklabels()] == ["flat", "house"]
    assert len({axis.get_ylim() for axis in figure.axes}) == 1


def test_effects_of_many_categories_name_their_column_and_show_the_most_frequent_apart_from_each_other():
    patient = np.repeat(np.arange(30), [3] * 22 + [4] * 8)
    data = bnn.Data(np.eye(30)[patient], patient / 30)
    layout = [Input(f"p_{one}", "p", f"p: {one}", category=f"Room{one:03d}") for one in range(30)]
    posterior = bnn.BNN(bnn.MLP(30, [], 1)).fit(data, guide="map", steps=2, **FIT)
    figure = plots.effects(posterior, data, groups={"p": [*range(30)]}, layout=layout, num_draws=2)
    assert [one.get_text() for one in figure.axes[0].get_xticklabels()] == [f"Room{one:03d}" for one in range(22, 30)]
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_xticklabels()[0].get_rotation()) == ("p, 8 of 30", 60)


def test_effects_of_classes_are_probabilities_of_the_second(two):
    posterior, data = two
    figure = plots.effects(posterior, data, num_draws=20)
    axis = figure.axes[0]
    assert figure.get_supylabel() == "P(class 1)"
    up = labelled(axis, "mean").get_ydata()
    assert up[0] < up[-1]  # class 1 where x0 is above 0
    low, high = edges(labelled(axis, "epistemic, ±2 sd"), labelled(axis, "mean").get_xdata())
    assert 0 <= low.min() <= high.max() <= 1


def gappy_dates(num=160):
    """A rent with many zeros, an age that is mostly missing with its mark, and days with the phase of their year."""
    rng = np.random.default_rng(0)
    rain = np.where(rng.random(num) < 0.8, 0.0, rng.uniform(1, 23, num))
    gap = rng.random(num) < 0.6
    age = np.where(gap, 40.0, rng.uniform(20, 60, num))
    days = rng.integers(0, 730, num)
    year = 2 * np.pi * days / 365.25
    x = np.stack([rain, age, days, np.sin(year), np.cos(year), gap], 1)
    y = 0.2 * rain + x[:, 1] / 10 + 3 * gap + np.sin(year)
    names = ["rain", "age", "listed (days)", "listed (sin of year)", "listed (cos of year)", "missingindicator_age"]
    return bnn.Data(x, y, standardize=True, feature_names=names)


def test_effects_of_gaps_and_dates_keep_to_what_occurs():
    """A linear model: the mean over the examples of w x + b, with the parts of a column as they occur together."""
    data = gappy_dates()
    posterior = bnn.BNN(bnn.MLP(6, [], 1)).fit(data, guide="mean_field", steps=100, lr=0.05, **FIT)
    columns = ["rain", "age", *["listed"] * 3, "age"]
    layout = [Input(name, column, name) for name, column in zip(data.feature_names, columns, strict=True)]
    layout[2:] = [layout[2]._replace(start="2022-03-01"), *layout[3:5], layout[5]._replace(is_mark=True)]
    groups = {"rain": [0], "age": [1, 5], "listed": [2, 3, 4]}
    figure = plots.effects(posterior, data, groups=groups, num_draws=40, layout=layout)
    x = data.x.numpy()

    rain, age, listed = figure.axes
    assert [axis.get_xlabel() for axis in figure.axes] == ["rain", "age", "listed"]
    wet = labelled(rain, "mean").get_xdata()
    assert wet[0] == 0
    assert wet[-1] >= 0.95 * x[:, 0].max()

    curve = labelled(age, "mean")
    known = x[x[:, 5] == 0, 1]
    assert known.min() <= curve.get_xdata().min() < 25
    assert 55 < curve.get_xdata().max() <= known.max()
    for value, mean in list(zip(curve.get_xdata(), curve.get_ydata(), strict=True))[::4]:
        assert mean == pytest.approx(means_by_draw(posterior, data, [1, 5], [value, 0.0]).mean(), rel=1e-4)
    dot = age.lines[-1]
    assert dot.get_ydata()[0] == pytest.approx(means_by_draw(posterior, data, [1, 5], [40.0, 1.0]).mean(), rel=1e-4)
    assert [label.get_text() for label in age.get_xticklabels(minor=True)] == ["missing"]
    assert dot.get_xdata()[0] > max(age.get_xticks())

    mean = labelled(listed, "mean")
    days = (mean.get_xdata() - np.datetime64("2022-03-01")) / np.timedelta64(1, "D")
    spans = np.array_split(np.unique(x[:, 2]), 15)
    for day, drawn, span in list(zip(days, mean.get_ydata(), spans, strict=True))[::3]:
        together = x[np.isin(x[:, 2], span), 2:5]
        assert day == pytest.approx(together[:, 0].mean(), abs=1e-4)
        in_turn = together[np.arange(100) % len(together)]
        assert drawn == pytest.approx(means_by_draw(posterior, data, [2, 3, 4], in_turn.mean(0)).mean(), rel=1e-4)


@pytest.mark.parametrize("ends", [(2000, 2010), (2019, 2021), (0.02, 0.98), (1200, 9800), (1e5, 9e5)])
def test_words_and_numbers_below_a_panel_are_whole_and_apart_in_a_picture_four_inches_wide(ends):
    x = np.linspace(*ends, 121).round(2)[:, None]
    names = ["year_of_the_construction", "area_in_square_kilometre"]
    pair = bnn.Data(np.hstack([x, x[::-1]]), x[:, 0], standardize=True, feature_names=names)
    columns = pd.DataFrame({"importance": x[:2, 0], "stderr": 0.0}, index=names)
    fits = [bnn.BNN(bnn.MLP(num, [], 1)).fit(pair.x[:, :num], pair.y, guide="map", steps=2, **FIT) for num in (1, 2)]
    narrow = plots.fit_1d(fits[0], (x, x[:, 0])), plots.effects(fits[1], pair), plots.importance(columns)
    for figure, width in (*((one, 4) for one in narrow), (plots.decision_surface(fits[1], pair), 12)):
        figure.set_size_inches(width, 4)
        figure.draw_without_rendering()
        for axis in figure.axes:
            low, high = axis.get_xlim()
            shown = [one.get_window_extent() for one in axis.get_xticklabels() if low <= one.get_position()[0] <= high]
            gaps = [right.x0 - left.x1 for left, right in pairwise(shown)]
            assert min(gaps, default=9) >= 5 * figure.dpi / 72  # points
            assert axis.xaxis.label.get_window_extent().x1 <= figure.bbox.x1


def test_shares_of_a_frequent_class_end_at_one():
    often = bnn.Prediction(dist.Categorical(probs=torch.tensor([0.95, 0.05]).expand(40, 60, 2)))
    assert plots.predictive_check(often, [0] * 60).axes[0].get_yticks().max() == 1


def moments(curve):
    """Mean and standard deviation of a density drawn as a line."""
    x, density = curve.get_xdata(), curve.get_ydata()
    mass = np.trapezoid(density, x)
    mean = np.trapezoid(x * density, x) / mass
    return mean, np.sqrt(np.trapezoid((x - mean) ** 2 * density, x) / mass)


def test_prior_predictive_of_one_input_shows_functions_and_bands(line):
    """The band of functions is that of N(0, 1 + x^2): four standard errors of a 5 % quantile of 250 draws are 0.54."""
    model, x = line[0].bnn, torch.linspace(-2, 2, 9)[:, None]
    axis = plots.prior_predictive(model, x.flip(0), num_draws=250, seed=3).axes[0]
    drawn = model.sample_prior_predictive(x, num_draws=250, seed=3).draw_means.numpy()
    low, high = edges(labelled(axis, "90 % of functions"), x[:, 0].numpy())
    np.testing.assert_allclose([low, high], np.quantile(drawn, [0.05, 0.95], axis=0), rtol=1e-4)
    sd = np.sqrt(1 + x[:, 0].numpy() ** 2)
    np.testing.assert_allclose([low / sd, high / sd], [np.full(9, -1.645), np.full(9, 1.645)], atol=0.54)
    below, above = edges(labelled(axis, "90 % predictive interval"), x[:, 0].numpy())
    assert (above - below > high - low).all()
    np.testing.assert_allclose(labelled(axis, "single functions").get_ydata(), drawn[0], rtol=1e-4, atol=1e-5)
    assert axis.get_ylim()[0] < below.min()
    shown = plots.prior_predictive(model, line[1], num_draws=20).axes[0]
    np.testing.assert_allclose(labelled(shown, "data").get_ydata(), line[1].y)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_prior_predictive_of_classes_shows_confidence_and_agreement(num_outputs, two, three):
    posterior, data = two if num_outputs == 1 else three
    confidence, agreement = plots.prior_predictive(posterior.bnn, data, num_draws=60, seed=2).axes
    probs = posterior.bnn.sample_prior_predictive(data, num_draws=60, seed=2).draw_means
    probs = torch.stack([1 - probs, probs], -1) if num_outputs == 1 else probs
    assert f"mean {float(probs.amax(-1).mean()):.2f}" in [line.get_label() for line in confidence.lines]
    modes = probs.argmax(-1).mode(1).values
    shares = (probs.argmax(-1) == modes[:, None]).double().mean(1)
    assert f"mean {float(shares.mean()):.2f}" in [line.get_label() for line in agreement.lines]
    assert sum(bar.get_height() for bar in agreement.patches) == pytest.approx(1)


def curve_and_band(prediction, y):
    """Points, the observed curve, and the ends of the band there."""
    (axis,) = plots.predictive_check(prediction, y).axes
    x, observed = labelled(axis, "observed").get_data()
    (found,) = [artist for artist in axis.get_children() if isinstance(artist, PolyCollection)]
    assert found.get_label() == "95 % of simulated sets"
    low, high = edges(found, x[1:-1:10])
    return axis, x, observed, (x[1:-1:10], low, high)


def test_predictive_check_shows_the_observed_density_over_all_of_its_range():
    y = normal_quantiles(200)
    axis, x, observed, (_, low, high) = curve_and_band(normal_prediction(200, 2.0, 60), y)
    assert moments(labelled(axis, "observed")) == (pytest.approx(0, abs=0.01), pytest.approx(1, abs=0.08))
    assert np.trapezoid(observed, x) == pytest.approx(1, abs=1e-3)
    assert max(observed[0], observed[-1]) < 1e-4
    assert x[0] < -5 < 5 < x[-1]  # where the simulated targets, of twice the spread, have been
    assert (low >= 0).all()
    assert observed.max() > 1.3 * high.max()  # too wide a fit is seen at once
    _, x, observed, _ = curve_and_band(normal_prediction(200, 0.1, 60), y)
    assert x[0] < float(y.min()) < float(y.max()) < x[-1]
    assert max(observed[0], observed[-1]) < 1e-3


def test_the_band_of_predictive_check_holds_as_many_whole_curves_as_it_says():
    """Of 60 observed sets of the simulated distribution 3 leave it on average; 3.5 standard errors are 6 more."""
    generator, outside = torch.Generator().manual_seed(0), 0
    simulated = torch.randn(200, 40, generator=generator)
    for y in torch.randn(60, 40, generator=generator):
        _, curves = _densities(torch.cat([y[None], simulated]).double().numpy())
        low, high = _envelope(curves[1:])
        inside = ((low <= curves) & (curves <= high)).all(1)
        assert inside[1:].mean() == pytest.approx(0.95, abs=0.006)
        outside += not inside[0]
    assert outside <= 9


def test_predictive_check_of_counts_shows_the_distribution_function():
    y = torch.tensor([0, 0, 1, 3, 5])
    axis, x, share, (points, low, high) = curve_and_band(bnn.Prediction(dist.Poisson(torch.full((40, 5), 2.0))), y)
    assert [share[x >= value][0] for value in (0, 1, 3, 5)] == pytest.approx([0.4, 0.6, 0.8, 1.0])
    assert (share[0], share[-1]) == (0, 1)
    assert (low <= stats.poisson.cdf(points, 2.0)).all()
    assert (high >= stats.poisson.cdf(points, 2.0)).all()
    assert high.max() <= 1
    assert axis.get_ylabel() == "cumulative share"


def test_predictive_check_of_classes_shows_binomial_intervals():
    """Quantiles of 4000 simulated shares of 100 labels against the binomial distribution, a label either way."""
    y = torch.arange(100) % 2
    (axis,) = plots.predictive_check(bnn.Prediction(dist.Bernoulli(torch.full((4000, 100), 0.3))), y).axes
    ends = np.array(labelled(axis, "simulated, 95 %").get_segments())[:, :, 1]
    expected = [stats.binom.ppf([0.025, 0.975], 100, p) / 100 for p in (0.7, 0.3)]
    np.testing.assert_allclose(ends, expected, atol=0.0101)
    assert labelled(axis, "observed").get_ydata().tolist() == [0.5, 0.5]
    legend, figure = axis.get_legend().get_window_extent(), axis.figure.bbox
    assert legend.width < axis.get_window_extent().width < figure.width


def test_boundaries_and_levels_are_where_the_prediction_says(two, three):
    for posterior, data in (two, three):
        figure = plots.decision_surface(posterior, data, num_draws=50)
        surface, entropy, information = figure.axes[:3]
        assert "Entropy" in entropy.get_title(loc="left")
        draws = posterior.draw(50)
        *_, boundary = [artist for artist in surface.collections if len(artist.get_paths()) == 1]
        points = boundary.get_paths()[0].vertices
        probs = posterior.predict(torch.tensor(points).float(), draws=draws).class_probs.sort(-1).values
        assert float((probs[:, -1] - probs[:, -2]).abs().max()) < 0.05
        (regions,) = information.collections
        low, high = regions.levels[5:7]
        x, y = regions.get_paths()[5].vertices.T
        inner = (x > x.min()) & (x < x.max()) & (y > y.min()) & (y < y.max())
        inputs = torch.tensor(np.stack([x, y], 1)[inner]).float()
        values = posterior.predict(inputs, draws=draws).mutual_information
        assert float((values - low).abs().minimum((values - high).abs()).max()) < 0.02
        names = [line.get_label() for line in surface.lines]
        assert names == [f"class {k}" for k in range(len(data.y.unique()))]
        assert sum(len(line.get_xdata()) for line in surface.lines) == len(data)


def uncertain():
    """Probabilities of two draws for three images: sure, torn between draws, torn in each draw."""
    probs = torch.tensor([[[0.9, 0.1], [1.0, 0.0], [0.52, 0.48]], [[0.8, 0.2], [0.1, 0.9], [0.52, 0.48]]])
    return bnn.Prediction(dist.Categorical(probs=probs))


@pytest.mark.parametrize(
    ("by", "order", "values"),
    [
        ("confidence", [2, 1, 0], ["confidence 0.52", "confidence 0.55", "confidence 0.85"]),
        ("entropy", [2, 1, 0], ["entropy 0.69", "entropy 0.69", "entropy 0.42"]),
        ("mutual_information", [1, 0, 2], ["mutual inf. 0.53", "mutual inf. 0.01", "mutual inf. 0.00"]),
    ],
)
def test_images_are_in_the_order_of_their_uncertainty(by, order, values):
    pixels = torch.arange(3.0)[:, None, None].expand(3, 4, 4)
    axes = plots.images(bnn.Data(pixels, [0, 1, 0]), uncertain(), by=by, class_names=["cat", "dog"]).axes
    shown = [int(axis.images[0].get_array()[0, 0]) for axis in axes]
    assert shown == order
    assert [axis.get_title().split("\n")[1] for axis in axes] == values
    titles = dict(zip(shown, [axis.get_title().split("\n")[0] for axis in axes], strict=True))
    assert titles == {0: "cat → cat", 1: "dog → cat", 2: "cat → cat"}
    assert [axis.spines["top"].get_visible() for axis in axes] == [row == 1 for row in shown]

"""Nothing that is said about targets depends on their unit or on how far from zero they are: y -> a y + c."""

import functools
import math

import numpy as np
import pytest
import torch

import pyrobnn as bnn
from pyrobnn import likelihoods as lik
from pyrobnn.distributions.units import Moments, Scaler
from pyrobnn.metrics import pit, score

NUM, F64 = 64, torch.float64
G = torch.Generator().manual_seed(0)
X = torch.randn(NUM, 2, generator=G, dtype=F64)
Y = ((X[:, 0].sin() + 0.5 * X[:, 1] + 0.3 * torch.randn(NUM, generator=G, dtype=F64)) * 64).round() / 64
TWO = torch.stack([Y, Y.flip(0) / 8], 1)
"""Few binary digits and 64 rows: sums, means and y + c below are exact, and standardised targets are the same bits."""
UNITS = {"far": (1.0, 1e9), "far below": (2.0**-10, -1e9), "large": (2.0**40, 0.0), "pressure": (1024.0, 1e8)}
LIKELIHOODS = {
    "gaussian": lambda unit: lik.Gaussian(),
    "gaussian, known": lambda unit: lik.Gaussian(0.5 * unit),
    "gaussian, heteroscedastic": lambda unit: lik.Gaussian("heteroscedastic"),
    "gaussian, prior": lambda unit: lik.Gaussian(lik.noise.HalfNormal(0.5 * unit)),
    "laplace": lambda unit: lik.Laplace(),
    "student_t": lambda unit: lik.StudentT(df=5.0),
    "mixture_density": lambda unit: lik.MixtureDensity(2),
}
IN_UNITS = ("crps", "rmse", "mae", "median_error", "width", "interval_score", "energy_score")


def data(unit, shift, y=Y):
    return bnn.Data(X, unit * y + shift, standardize=True)


@functools.cache
def fitted(name, unit=1.0, shift=0.0, columns=1):
    likelihood = LIKELIHOODS[name](unit)
    outputs = likelihood.num_outputs(_y(columns))
    model = bnn.BNN(bnn.MLP(2, [5], outputs), likelihood=likelihood, prior=bnn.priors.Normal(1.0))
    method = bnn.SVI(steps=30, lr=0.03)
    return bnn.fit(model, data(unit, shift, _y(columns)), method, seed=0, engine="eager", progress=False)


def _y(columns):
    return Y if columns == 1 else TWO


def rounding(unit, shift):
    """What float64 leaves of numbers near c, a few times over."""
    return 8 * np.finfo(float).eps * max(abs(shift), unit)


def same(found, expected, unit, shift, *, power=1):
    """Compare numbers in units of a^power y: in float64 but for rounding near c."""
    assert found.dtype == F64
    torch.testing.assert_close(found / unit**power, expected.double(), rtol=1e-12, atol=rounding(unit, shift) / unit)


@pytest.mark.one_in(6, 2)
@pytest.mark.parametrize("where", UNITS)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_predictions_follow_the_targets(name, where):
    unit, shift = UNITS[where]
    there, here = (fitted(name, *units).predict(X, num_draws=40) for units in ((unit, shift), (1.0, 0.0)))
    y = unit * Y + shift
    located = (
        lambda p: p.mean,
        lambda p: p.draw_means,
        lambda p: p.sample(60, seed=1),
        lambda p: p.quantile([0.1, 0.7]),
    )
    for read in (*located, lambda p: torch.stack(p.interval(0.9))):
        same(read(there) - shift, read(here), unit, shift)
    for name_of in ("std", "epistemic_std", "aleatoric_std"):
        same(getattr(there, name_of), getattr(here, name_of), unit, 0.0)
    for name_of in ("variance", "epistemic_variance", "aleatoric_variance"):
        same(getattr(there, name_of), getattr(here, name_of), unit, 0.0, power=2)
    same(there.log_prob(y) + math.log(unit), here.log_prob(Y), 1.0, 0.0)
    torch.testing.assert_close(there.cdf(y), here.cdf(Y))
    torch.testing.assert_close(pit(there, y), pit(here, Y))


SCORED = [*((name, where, 1) for name in LIKELIHOODS for where in ("far", "pressure")), ("gaussian", "far below", 2)]


@pytest.mark.one_in(6, 2)
@pytest.mark.parametrize(("name", "where", "columns"), SCORED)
def test_scores_follow_the_targets(name, where, columns):
    unit, shift = UNITS[where]
    y = _y(columns)
    there = score(fitted(name, unit, shift, columns).predict(X, num_draws=10), unit * y + shift)
    here = score(fitted(name, columns=columns).predict(X, num_draws=10), y)
    assert list(there) == list(here)
    for key, entry in there.items():
        factor = unit if key.startswith(IN_UNITS) else 1.0
        moved = columns * math.log(unit) if key == "log_likelihood" else 0.0
        # quadrature and bootstrap repeat themselves but for the rounding of y + c
        tolerance = 1e-9 + 50 * rounding(unit, shift) / unit
        assert entry.value / factor + moved == pytest.approx(here[key].value, rel=1e-9, abs=tolerance), key
        assert entry.stderr / factor == pytest.approx(here[key].stderr, rel=1e-6, abs=tolerance), key


@pytest.mark.slow
def test_audits_and_findings_follow_the_targets():
    unit, shift = UNITS["pressure"]
    there, here = fitted("gaussian", unit, shift), fitted("gaussian")
    reports = [bnn.elbo_report(p, d, num_draws=20) for p, d in ((there, data(unit, shift)), (here, data(1.0, 0.0)))]
    assert reports[0].elbo.stderr == pytest.approx(reports[1].elbo.stderr, rel=1e-9)
    assert reports[0].elbo.mean + NUM * math.log(unit) == pytest.approx(reports[1].elbo.mean, rel=1e-9)
    found = [
        bnn.diagnose(p, d, d, num_draws=40, false_alarm_rate=0.1)
        for p, d in ((there, data(unit, shift)), (here, data(1.0, 0.0)))
    ]
    for one, other in zip(*(diagnosis.findings for diagnosis in found), strict=True):
        assert (one.name, one.kind) == (other.name, other.kind)
        assert one.p == (None if other.p is None else pytest.approx(other.p, rel=1e-6))


def test_draws_of_targets_in_a_datatree_keep_their_digits():
    unit, shift = UNITS["far"]
    trees = [bnn.to_datatree(fitted("gaussian", *one), data(*one), num_draws=20) for one in ((unit, shift), (1.0, 0.0))]
    for name in ("y", "mu"):
        there, here = (tree["posterior_predictive"][name].values for tree in trees)
        np.testing.assert_allclose(there - shift, here, atol=rounding(unit, shift))
    there, here = (tree["log_likelihood"]["y"].values for tree in trees)
    np.testing.assert_allclose(there, here, rtol=1e-12)


@pytest.mark.parametrize("weights", [None, np.linspace(0.5, 2.0, NUM)], ids=["once", "weighted"])
def test_estimators_follow_the_targets(weights):
    """Weights make means of y + c inexact, by some 1e-7 of the standard deviation."""
    means, stds, lower, r2 = [], [], [], []
    for shift in (1e9, 0.0):
        estimator = bnn.BNNRegressor(
            net=bnn.MLP(2, [5], 1), guide="mean_field", steps=10, random_state=0, num_draws=50, engine="eager"
        )
        estimator.fit(X.numpy(), Y.numpy() + shift, sample_weight=weights)
        mean, std = estimator.predict(X.numpy(), return_std=True)
        means.append(mean - shift)
        stds.append(std)
        lower.append(estimator.predict_interval(X.numpy())[0] - shift)
        r2.append(estimator.score(X.numpy(), Y.numpy() + shift))
    tolerance = rounding(1.0, 1e9) if weights is None else 1e-4
    for there, here in (means, stds, lower, r2):
        np.testing.assert_allclose(there, here, atol=tolerance)


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1.0, 1e200, 1e300])
def test_numbers_of_any_size_are_standardised(size):
    values = torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=F64)
    for scaler in (Scaler.fit(values * size), _in_parts(values * size)):
        standard = scaler.transform(values * size)
        torch.testing.assert_close(standard.mean(0), torch.zeros(3, dtype=F64), atol=1e-14, rtol=0)
        torch.testing.assert_close(standard.std(0, correction=0), torch.ones(3, dtype=F64))


def _in_parts(values):
    return functools.reduce(Moments.merged, map(Moments.of, values.split(7))).scaler()


def test_mean_and_deviation_have_all_their_digits_far_from_zero_also_with_weights():
    """Against sums of fractions, which are exact; np.longdouble holds y + c without rounding."""
    values = torch.randn(1000, generator=torch.Generator().manual_seed(2), dtype=F64) * 1e-3 + 1e9
    exact = values.numpy().astype(np.longdouble)
    mean = exact.mean()
    deviation = np.sqrt(((exact - mean) ** 2).mean())
    for scaler, digits in ((Scaler.fit(values), 1e-10), (_in_parts(values), 1e-3)):
        assert float(scaler.loc) == pytest.approx(float(mean), abs=2 * np.spacing(1e9))
        assert float(scaler.scale) == pytest.approx(float(deviation), rel=digits)
    times = torch.arange(1000) % 3 + 1
    weighted, repeated = Scaler.fit(values, times.double()), Scaler.fit(values.repeat_interleave(times, 0))
    torch.testing.assert_close(weighted.loc, repeated.loc, rtol=1e-15, atol=0)
    torch.testing.assert_close(weighted.scale, repeated.scale, rtol=1e-9, atol=0)
    constant = torch.tensor([[0.1, 0.0, row] for row in range(30)], dtype=F64)
    constant[::2, 0] = 0.3 - 0.2  # the same but for rounding
    assert Scaler.fit(constant).scale.tolist()[:2] == [1.0, 1.0]  # only centred


@pytest.mark.one_in(3)
@pytest.mark.parametrize("num_rows", [1, 2, 30])
def test_constant_targets_are_predicted_in_their_unit(num_rows):
    """Whatever the unit is, the share of the target by which a prediction is uncertain is the same."""
    x = X[:num_rows]
    stds = []
    for size in (1.0, 256.0):
        model = bnn.BNN(bnn.MLP(2, [4], 1), prior=bnn.priors.Normal(1.0))
        data = bnn.Data(x, torch.full((num_rows,), 5 * size), standardize=True)
        with pytest.warns(bnn.PoorFitWarning):
            fitted = bnn.fit(model, data, bnn.EvidenceFramework(starts=1), seed=0, progress=False)
        stds.append(fitted.predict(X[:5]).std / size)
    torch.testing.assert_close(stds[0], stds[1], rtol=1e-5, atol=0)


def test_targets_that_the_network_cannot_tell_apart_are_refused():
    model, method = bnn.BNN(bnn.MLP(2, [5], 1), prior=bnn.priors.Normal(1.0)), bnn.SVI(steps=2)
    for name, x, y in (("y", X, Y + 1e8), ("x", X + 1e8, Y), ("y", X, ((Y + 1e8) * 100).long())):
        with pytest.raises(bnn.InputError, match=f"`{name}`.* varies by .* in float32.*standardise"):
            bnn.fit(model, bnn.Data(x, y), method, seed=0, engine="eager", progress=False)
    double = bnn.BNN(bnn.MLP(2, [5], 1, dtype="float64"), prior=bnn.priors.Normal(1.0))
    bnn.fit(double, bnn.Data(X, Y + 1e8), method, seed=0, engine="eager", progress=False)
    bnn.fit(model, bnn.Data(X, Y + 100.0), method, seed=0, engine="eager", progress=False)

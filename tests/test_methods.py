"""The table of methods on one data set, against `fit`, `score` and `compare_scores`."""

import numpy as np
import pytest

import pyrobnn as bnn

X = np.random.default_rng(0).normal(size=(80, 2))
TRAIN, TEST = bnn.Data(X, X[:, 0] + 0.3 * np.sin(50 * X[:, 1])).split(0.5, seed=0)
MODEL = bnn.BNN(bnn.MLP(2, [], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.3))
METHODS = {
    "Laplace": bnn.SVI(guide="laplace", steps=60, lr=0.05),
    "short": bnn.SVI(guide="mean_field", steps=3, lr=0.01),
    "odd": "nut",
}


@pytest.fixture(scope="module")
def compared():
    return bnn.compare_methods(MODEL, TRAIN, METHODS, held_out=TEST, seeds=(0, 1), progress=False)


@pytest.mark.slow
def test_each_fit_has_the_scores_of_fit_and_differences_are_paired(compared):
    for seed in (0, 1):
        fits = [bnn.fit(MODEL, TRAIN, METHODS[name], seed=seed, progress=False) for name in ("short", "Laplace")]
        short, laplace = (fit.predict(TEST.x) for fit in fits)
        row = compared.fits.set_index(["method", "seed"]).loc["short", seed]
        for name, one in bnn.score(short, TEST.y, levels=[0.95]).items():
            if name in row:
                assert (row[name], row[f"{name}_stderr"]) == (one.value, one.stderr)
        paired = bnn.compare_scores(short, laplace, TEST.y).loc["log_likelihood"]
        told = row[["difference", "difference_stderr"]].astype(float)
        np.testing.assert_allclose(told, paired[["difference", "stderr"]].astype(float), rtol=1e-5)
    of = compared.fits[compared.fits["method"] == "short"]
    row = compared.table.loc["short"]
    for name in ("log_likelihood", "rmse", "coverage_95", "difference"):
        over_seeds = abs(of[name].iloc[0] - of[name].iloc[1]) / 2  # the standard error of two
        expected = np.sqrt(of[f"{name}_stderr"].mean() ** 2 + over_seeds**2)
        np.testing.assert_allclose((row[name], row[f"{name}_stderr"]), (of[name].mean(), expected))


@pytest.mark.slow
def test_what_has_not_converged_is_no_better_than_a_constant_or_fails_is_marked(compared):
    table = compared.table
    assert list(table.index) == ["Laplace", "short", "odd"]
    assert table["warning"]["Laplace"] == ""
    assert [table["converged"][name] for name in ("short", "odd")] == [False, None]
    first, *rest = table["warning"]["short"].split("; ")
    assert first == "The fit has not converged (2 of 2 seeds)"
    assert "The fit predicts no better than a constant, which ignores the inputs (1 of 2 seeds)" in rest
    assert table["warning"]["odd"].startswith("InputError: Unknown method 'nut'")
    assert "! odd: InputError" in str(compared)
    shown = bnn.plots.compare_methods(compared).axes
    assert [axis.get_title(loc="left") for axis in shown] == ["log_likelihood", "rmse", "coverage_95"]
    assert [label.get_text() for label in shown[0].get_yticklabels()] == ["Laplace", "! short", "! odd"]


def test_methods_that_cannot_be_compared_are_refused():
    with pytest.raises(bnn.InputError, match="must not be empty"):
        bnn.compare_methods(MODEL, TRAIN, {}, held_out=TEST)
    with pytest.raises(bnn.InputError, match="Unknown method 'nut'"):
        bnn.compare_methods(MODEL, TRAIN, {"odd": "nut"}, held_out=TEST, progress=False)

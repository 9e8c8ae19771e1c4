"""Ranks of inputs, and waves of them: scikit-learn's among the training rows, seen by the network alone."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers import refused
from sklearn.preprocessing import QuantileTransformer

import pyrobnn as bnn
from pyrobnn.runs.spec import RunSpec

RNG = np.random.default_rng(0)
X = np.c_[RNG.normal(size=600) ** 3, RNG.normal(size=600) * 1e6, RNG.integers(0, 4, 600), RNG.integers(0, 2, 600)]
X = np.c_[X, np.full(600, 7.0)]
Y = np.sin(X[:, 0]) + X[:, 2] + 0.1 * RNG.normal(size=600)
SETTINGS = {"seed": 0, "engine": "eager", "progress": False}


def data(inputs="waves", **more):
    return bnn.Data(X, Y, standardize=True, inputs=inputs, **more)


def fitted(train, method=None):
    model = bnn.BNN(bnn.MLP(train.num_inputs, [4], 1), prior=bnn.priors.Normal(1.0))
    return bnn.fit(model, train, method or bnn.SVI(steps=30), **SETTINGS)


@pytest.mark.parametrize("rows", [11, 600])
def test_they_are_those_of_scikit_learn_at_training_and_new_rows(rows):
    train = data()[:rows]
    new = torch.tensor(np.r_[X, 2 * X[::-1] + 0.1])
    found = train.x_scaler.transform(new)
    plain, ranks, waves = found.split([5, 3, 18], 1)
    assert torch.equal(plain, bnn.Data(X[:rows], Y[:rows], standardize=True).x_scaler.transform(new))
    sklearn = QuantileTransformer(n_quantiles=min(500, rows)).fit(X[:rows, :3]).transform(new[:, :3].numpy())
    np.testing.assert_allclose(ranks[:, :2].numpy(), 2 * sklearn[:, :2] - 1, atol=1e-9)
    known = new[:, 2].round() == new[:, 2]  # between two values that are tied scikit-learn's ranks jump
    np.testing.assert_allclose(ranks[known, 2].numpy(), 2 * sklearn[known.numpy(), 2] - 1, atol=2 / min(499, rows - 1))
    turns = np.exp(1j * np.pi * (ranks.numpy() + 1)[..., None] / 2 * [1, 2, 4]).reshape(len(new), 9)
    np.testing.assert_allclose(waves.numpy(), np.c_[turns.imag, turns.real], atol=1e-12)
    assert train.num_inputs == found.shape[1]
    assert bnn.Data(X[:, 3:], Y, inputs="ranks").x_scaler.is_identity


def test_rows_of_some_weight_count_so_often_and_many_rows_are_sampled():
    weights = RNG.integers(1, 4, 600)
    copies = bnn.Data(np.repeat(X, weights, 0), np.repeat(Y, weights), standardize=True, inputs="ranks")
    ours, theirs = data("ranks", weights=weights).x_scaler, copies.x_scaler
    torch.testing.assert_close(ours.quantiles, theirs.quantiles, rtol=1e-12, atol=0)
    many = bnn.Data(np.linspace(0, 1, 100_001)[:, None], np.zeros(100_001), inputs="ranks").x_scaler
    torch.testing.assert_close(many.quantiles[0], torch.linspace(0, 1, 500, dtype=torch.float64), rtol=0, atol=0.01)


def test_gradients_are_those_of_the_lines_between_quantiles():
    x = torch.tensor(X[:9], requires_grad=True)
    assert torch.autograd.gradcheck(data().x_scaler.transform, x + torch.tensor([1e-3, 1.0, 0.1, 0, 0]), eps=1e-7)
    data().x_scaler.transform(x).sum().backward()
    assert x.grad.isfinite().all()


def test_posteriors_take_raw_columns_also_loaded_and_exported(tmp_path):
    fits = [fitted(data()), fitted(data(), bnn.Ensemble(bnn.SVI(steps=5), members=2))]
    for number, posterior in enumerate(fits):
        posterior.save(tmp_path / str(number))
        mean = posterior.predict(X[:9], num_draws=4, seed=1).mean
        assert torch.equal(bnn.load(tmp_path / str(number)).predict(X[:9], num_draws=4, seed=1).mean, mean)
        predictor = posterior.predictor(4, seed=1)
        torch.testing.assert_close(predictor(torch.tensor(X[:9]))[0].double(), mean, rtol=1e-5, atol=1e-5)
        single = predictor.float()(torch.tensor(X[:9]).float())[0]
        torch.testing.assert_close(single.double(), mean, rtol=1e-3, atol=1e-3)
    with refused(r"must have shape \(N, 5\), got \(9, 4\)"):
        fits[0].predict(X[:9, :4])
    more = bnn.Data(X[:9] + 1, Y[:9], standardize=True)
    later = bnn.fit(bnn.update_prior(fits[0]), more, bnn.SVI(steps=5), **SETTINGS)
    assert torch.equal(later.x_scaler.quantiles, fits[0].x_scaler.quantiles)
    others = fitted(data()[:300])
    with refused("the same units"):
        bnn.Mixture([fits[0], others])


def test_parts_of_the_data_are_as_wide():
    train = data()
    parts = [train[X[:, 2] < 2], *train.split(0.2), train[:1]]
    assert [part.num_inputs for part in parts] == [26] * 4
    assert all(part.x_scaler.transform(part.x).isfinite().all() for part in parts)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data("rank"), r"`inputs` must be plain, or ranks or waves of a table x \(N, D\), got 'rank' of"),
        (lambda: bnn.Data({"a": X}, Y, inputs="ranks"), "got 'ranks' of a "),
        (lambda: bnn.Data(X[:, None], Y, inputs="waves"), r"got 'waves' of \(600, 1, 5\)"),
        (
            lambda: bnn.fit(bnn.BNN(bnn.MLP(5, [4], 1)), data("ranks"), bnn.SVI(steps=5)),
            r"inputs of shape \(N, 8\), with those that `inputs` adds",
        ),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with refused(message):
        call()


def test_a_spec_may_ask_for_them():
    spec = RunSpec.from_dict({"data": {"name": "diabetes", "inputs": "ranks"}, "fit": {"type": "svi", "steps": 5}})
    prepared = dataclasses.replace(spec, net=bnn.MLP(hidden=(3,))).prepare()
    assert (prepared.train.num_inputs, prepared.spec.net.in_features) == (19, 19)


def test_validation_is_seen_in_the_units_of_the_training_data():
    model, method = bnn.BNN(bnn.MLP(8, [4], 1)), bnn.SVI(steps=20, eval_every=10)
    fit = bnn.fit(model, data("ranks"), method, validation=(X[:50], Y[:50]), **SETTINGS)
    assert fit.history.validation_steps == [10, 20]

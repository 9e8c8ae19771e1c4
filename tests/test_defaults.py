"""What is taken where nobody chose: the table of rules, and candidates that rows held out judge."""

import dataclasses

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

import pyrobnn as bnn
from pyrobnn.inference import defaults
from pyrobnn.inference.defaults import RULES, Choice, choose, explain, settled
from pyrobnn.inference.method import Run
from pyrobnn.inference.parts import Facts, Given, Parts, are_counts
from pyrobnn.runs.spec import RunSpec

F64 = torch.float64
RUN = Run(seed=0, progress=False)
L = bnn.likelihoods


def facts(task, **given):
    """Facts of data of some sizes, with a target for each row, and of what is given."""
    of_data = {field.name for field in dataclasses.fields(Facts)} & given.keys()
    parts = Given(**{name: given[name] for name in given.keys() - of_data})
    return Facts(task=task, given=parts, **{name: given[name] for name in of_data})


@pytest.mark.parametrize(
    ("task", "given", "rule"),
    [
        ("regression", {"num_data": 500}, "numbers"),
        ("regression", {"num_data": 501}, "many rows"),
        ("regression", {"num_data": 500, "num_weights": 100_000}, "many rows"),
        ("regression", {"num_data": 30, "num_inputs": 16, "optimises": True}, "few numbers"),
        ("regression", {"num_data": 32, "num_inputs": 16, "optimises": True}, "numbers"),
        ("regression", {"num_data": 30, "num_inputs": 16, "are_counts": True}, "numbers"),
        (
            "regression",
            {"num_data": 30, "num_inputs": 16, "likelihood": L.Gaussian("learned"), "optimises": True},
            "numbers",
        ),
        ("classification", {}, "labels"),
        ("classification", {"num_data": 1000, "num_inputs": 60, "num_classes": 3}, "labels"),
        ("classification", {"num_data": 1001}, "many rows"),
        ("classification", {"num_data": 100, "num_weights": 20_001}, "many rows"),
        ("classification", {"num_data": 1000, "num_weights": 10_001}, "many rows"),
        ("classification", {"num_data": 100, "optimises": True}, "many rows"),
        ("classification", {"num_data": 100, "num_inputs": 4, "learns_on": True}, "trained guide"),
        ("classification", {"num_data": 100, "num_inputs": 4, "prior": bnn.priors.Laplace()}, "labels"),
        ("classification", {"num_data": 1150, "num_inputs": 4, "prior": bnn.priors.Laplace()}, "trained guide"),
        ("classification", {"num_data": 100, "num_inputs": 4, "settings": {"steps": 9}}, "labels"),
        ("classification", {"num_data": 100, "num_inputs": 4, "settings": {"steps": 9, "lr": 0.1}}, "trained guide"),
        ("classification", {"num_data": 1001, "learns_on": True}, "trained guide"),
        ("classification", {"num_data": 150, "guide": bnn.guides.FullRank()}, "trained guide"),
        ("regression", {"num_data": 150, "guide": bnn.guides.FullRank()}, "trained guide"),
        ("regression", {"num_data": 501, "guide": bnn.guides.FullRank()}, "trained guide"),
        ("regression", {"num_data": 150, "guide": bnn.guides.Laplace(curvature="fisher")}, "trained guide"),
        ("regression", {"num_data": 150, "prior": bnn.priors.Normal(0.3)}, "trained guide"),
        ("regression", {"num_data": 150, "prior": bnn.priors.Normal()}, "numbers"),
        ("regression", {"num_data": 150, "likelihood": L.StudentT(scale="heteroscedastic")}, "many rows"),
        ("regression", {"num_data": 150, "method": bnn.SVI()}, "given method"),
        ("regression", {"num_data": 5000, "shares_weights": True}, "shared weights"),
    ],
)
def test_the_first_rule_that_holds_counts(task, given, rule):
    assert choose(facts(task, **given)).rule.name == rule


@pytest.mark.parametrize(
    "given",
    [
        {"net": bnn.MLP(hidden=(7,))},
        {"prior": bnn.priors.Laplace(0.5)},
        {"prior": bnn.priors.Normal("fan_in")},
        {"prior": bnn.priors.Normal(loc=1.0)},
        {"likelihood": L.Gaussian(0.3)},
        {"guide": bnn.guides.Map()},
        {"settings": {"lr": 0.03}},
        {"inputs": "plain"},
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [60, 400, 3000])
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_what_is_given_is_in_every_candidate(given, rows, task):
    for parts in choose(facts(task, num_data=rows, num_inputs=3, **given)).candidates:
        inner = parts.method.offer().inner or parts.method
        for name, value in given.items():
            if name == "settings":
                assert inner.lr == value["lr"]
            else:
                found = inner.guide if name == "guide" else getattr(parts, name)
                expected = dataclasses.replace(value, out_features=found.out_features) if name == "net" else value
                assert found == expected


def test_steps_alone_bound_every_default_method():
    bound = {"settings": {"steps": 30}}
    (few,) = choose(facts("classification", num_data=50, num_inputs=2, **bound)).candidates
    assert (few.method.warmup, few.method.num_draws) == (15, 15)
    for each in choose(facts("regression", num_data=5000, num_inputs=2, **bound)).candidates:
        for method in (each.method.offer().inner or each.method, each.trial or each.method):
            assert getattr(method, "steps", None) == 30 or method.iterations == 3
    for sizes in ({"num_data": 50}, {"num_data": 400}, {"num_data": 5000}, {"num_data": 5000, "learns_on": True}):
        free, bounded = (
            choose(facts("regression", **sizes, **given)).candidates for given in ({}, {"settings": {"steps": 10**6}})
        )
        for one, other in zip(free, bounded, strict=True):
            assert other.method == one.method  # a bound that is far away changes nothing
    with pytest.raises(bnn.InputError, match="`steps` must be a whole number, at least 1, got 0"):
        bnn.BNNRegressor(steps=0).fit([[0.0], [1.0]], [0.0, 1.0])


@pytest.mark.slow
@pytest.mark.measured
@pytest.mark.parametrize("guide", ["mean_field", "laplace"])
def test_a_guide_by_its_name_is_the_same_everywhere_and_steps_only_bound_it(guide):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 2)), 3 + 10 * rng.normal(size=40)
    parts = {"prior": "normal", "likelihood": "gaussian"}
    estimator = bnn.BNNRegressor(bnn.MLP(2, [5], 1), guide=guide, steps=20, random_state=0, **parts).fit(x, y)
    model, data = bnn.BNN(bnn.MLP(2, [5], 1), **parts), bnn.Data(x, y, standardize=True)
    same = {"seed": estimator.posterior_.seed, "progress": False}
    fits = [
        estimator.posterior_,
        bnn.fit(model, data, bnn.SVI(guide=guide, steps=20), **same),
        model.fit(data, guide=guide, steps=20, **same),
    ]
    for posterior in fits[1:]:
        torch.testing.assert_close(posterior.predict(x).mean, fits[0].predict(x).mean)
    bounded = model.fit(data, guide=guide, max_steps=20, **same)
    assert str(bounded.bnn.settings["prior"]) == str(fits[1].bnn.settings["prior"]) != str(model.settings["prior"])
    assert (bounded.record.kl, bounded.record.noise) == (fits[1].record.kl, fits[1].record.noise)


def test_fit_estimator_and_spec_take_the_same_rule_and_say_it(tmp_path):
    data = bnn.datasets.sinusoid()
    said = explain(data)
    assert said.startswith("32 rows of numbers: up to 500")
    method = bnn.EvidenceFramework(starts=1, rounds=1, iterations=20)
    model = bnn.BNN(bnn.MLP(1, [5], 1))
    alone = bnn.fit(model, data, seed=0, progress=False)
    assert alone.record.choice.sentence == said
    assert bnn.load(alone.save(tmp_path / "kept")).record.choice == alone.record.choice
    assert bnn.fit(model, data, method, seed=0, progress=False).record.choice is None
    regressor = bnn.BNNRegressor(steps=30, random_state=0).fit(data.x, data.y)
    assert regressor.posterior_.record.choice.sentence == said
    assert not regressor.posterior_.record.choice.chose_length
    path, x = tmp_path / "table.csv", np.linspace(-1, 1, 550)
    np.savetxt(path, np.column_stack([x, x]), delimiter=",", header="a,y", comments="")
    prepared = RunSpec.from_dict({"data": {"path": str(path), "target": "y"}}).prepare()
    assert prepared.choice.sentence == explain(prepared.train)
    assert prepared.choice.sentence.startswith("440 rows of numbers: up to 500")  # the rows to fit to, as elsewhere
    assert prepared.choice.sentence in str(prepared.choice)  # as the report lists it


def test_without_a_method_data_must_be_in_memory():
    x = torch.randn(30, 2)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, 0]), 10)
    for data in (loader, bnn.Data(x[:4], x[:4, 0])):
        with pytest.raises(bnn.InputError, match="Without a method, one is chosen by data in memory"):
            bnn.fit(bnn.BNN(bnn.MLP(2, [3], 1)), data, seed=0, progress=False)


def candidates(*methods):
    """Linear models; an ensemble is tried by a single fit of 300 steps."""
    net, prior = bnn.MLP(hidden=(), dtype="float64"), bnn.priors.Normal(1.0)
    parts = []
    for method in methods:
        inner = method.offer().inner
        trial = inner and dataclasses.replace(inner, steps=300, patience=5, eval_every=30)
        parts.append(Parts(net=net, prior=prior, likelihood=L.Gaussian(), method=method, trial=trial))
    return Choice(RULES[-1], facts("regression"), parts)


LINE = bnn.Ensemble(bnn.SVI(guide="map", steps=40, lr=0.05, batch_size="all"), members=2)
NOTHING = bnn.Ensemble(bnn.SVI(guide="map", steps=10, lr=1e-9, batch_size="all"), members=2)
EXACT = bnn.EvidenceFramework(starts=1, rounds=2)


def linear(rows=60, seed=0, **more):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    return bnn.Data(x, x @ [1.0, -1.0] + 0.3 * rng.normal(size=rows), **more)


def test_the_best_on_rows_held_out_is_taken_with_its_length():
    """A constant cannot win where targets are linear; steps are 1.25 times the best number, or those given."""
    parts, record = settled(candidates(NOTHING, LINE), linear(), RUN)
    assert parts.trial is None
    assert parts.method.members == 2
    assert 40 <= parts.method.method.steps <= 1500
    first, second = record.candidates
    assert (record.chosen, record.lead[0]) == (1, pytest.approx(second.log_score - first.log_score))
    assert record.lead[0] > 0.5
    again, same = settled(candidates(NOTHING, LINE), linear(), RUN)
    assert (again, [one.log_score for one in same.candidates]) == (parts, [one.log_score for one in record.candidates])


@pytest.mark.filterwarnings("ignore::pyrobnn.PoorFitWarning")
def test_steps_that_were_given_bound_the_fit_that_was_chosen():
    x = np.linspace(-1, 1, 600)[:, None]
    fitted = bnn.BNNRegressor(random_state=0, steps=3, likelihood=L.StudentT(scale="heteroscedastic"))
    record = fitted.fit(x, x[:, 0]).posterior_.record
    assert record.choice.rule == "many rows"
    assert record.methods[1]["steps"] == 3


def test_a_lead_that_may_be_chance_is_said():
    """The evidence framework and an ensemble of the same linear model; a constant is far behind it."""
    _, record = settled(candidates(EXACT, LINE), linear(), RUN)
    assert len(record.candidates) == 3  # the ensemble is judged with its length too
    assert "which may be chance." in str(record)
    parts, record = settled(candidates(EXACT, NOTHING), linear(), RUN)
    assert parts.method == EXACT
    assert record.lead[0] == pytest.approx(record.candidates[0].log_score - record.candidates[2].log_score)
    assert str(record).endswith("nats a row ahead.")


def test_candidates_that_fail_are_never_taken():
    bad = dataclasses.replace(LINE, method=dataclasses.replace(LINE.method, lr=1e30))
    _, record = settled(candidates(bad, NOTHING), linear(), RUN)
    assert record.candidates[0].log_score == -np.inf
    assert record.candidates[record.chosen].log_score == record.candidates[1].log_score
    assert str(settled(candidates(EXACT, bad), linear(), RUN)[1]).endswith(" was taken, alone with a finite score.")
    with pytest.raises(FloatingPointError, match="No fit kept to finite numbers"):
        settled(candidates(bad, dataclasses.replace(bad, members=3)), linear(), RUN)


def test_copies_of_a_row_are_held_out_together_and_count_once():
    """Imputed copies share a weight; none is in the training part while another is held out."""
    data = linear(50, weights=torch.full((50,), 0.2), groups=torch.arange(50) % 10)
    judge = defaults._Judge(data, RUN, Parts.model, by_mass=False)
    train, held = judge.split("ranks")
    assert len(held) == 10
    assert not {*train.groups.tolist()} & {*held.groups.tolist()}
    mean, error = judge.mean_and_error(torch.arange(10, dtype=F64))
    assert (mean, error) == pytest.approx((4.5, np.sqrt(8.25 * 2 / 1 / 2)))  # ten of weight 0.2 count as two


@pytest.mark.parametrize("scale", [0.01, 2.0])
def test_whole_numbers_are_scored_by_their_mass(scale):
    """A Gaussian that is a spike on 3 has the probability 1 of 3, not the density 40; far away it stays finite."""
    y = torch.tensor([3.0, 4.0, 5.0, 90.0], dtype=F64)

    class Predicted:
        def __init__(self, law):
            self.law = law

        def predict(self, x, **_):
            return bnn.Prediction(self.law)

    data, law = bnn.Data(y[:, None], y), stats.norm(3, scale)
    spike = dist.Normal(torch.full((1, 4), 3.0, dtype=F64), scale)
    judge = defaults._Judge(data, RUN, Parts.model, by_mass=True)
    scores = judge._scores(Predicted(spike), data)
    mass = law.cdf(y.numpy() + 0.5) - law.cdf(y.numpy() - 0.5)
    known = mass > 1e-9
    assert np.allclose(scores.numpy()[known], np.log(mass[known]), rtol=1e-6, atol=1e-12)
    assert bool((scores[~torch.tensor(known)] <= np.log(1e-9)).all())
    assert bool(scores.isfinite().all())
    rates = dist.Poisson(torch.full((1, 4), 3.0, dtype=F64))
    assert torch.allclose(judge._scores(Predicted(rates), data), rates.log_prob(y)[0])


@pytest.mark.parametrize(
    ("y", "weight", "expected"),
    [
        (np.arange(60) % 7, None, True),
        (np.arange(60.0) % 7, 0.01, True),
        (np.arange(60) % 7 - 1, None, False),
        (np.arange(60) % 7 + 0.5, None, False),
        (np.arange(60) % 7 + 500, None, False),
        (np.arange(60), None, False),
        (np.arange(60), 2.0, True),
    ],
)
def test_counts_are_whole_numbers_that_repeat(y, weight, expected):
    assert are_counts(bnn.Data(y[:, None], y, weights=weight and np.full(60, weight)), 60) == expected


def test_copies_of_a_row_and_weights_are_no_rows():
    """A fifth of 500 rows lack values: with five copies of each they take the room of 900, and are 500."""
    whole = np.random.default_rng(0).normal(size=500)
    rows = np.r_[np.arange(400), np.tile(np.arange(400, 500), 5)]
    data = bnn.Data(whole[rows, None], whole[rows], weights=np.r_[np.ones(400), np.full(500, 0.2)], groups=rows)
    patients = bnn.Data(whole[:, None], whole, groups=np.arange(500) // 100)
    assert Facts.of("regression", patients).num_data == 500
    found = Facts.of("regression", data)
    assert (found.num_data, found.num_rows, choose(found).rule.name) == (500, 900, "numbers")
    assert explain(bnn.Data(whole[:30, None], whole[:30], weights=np.full(30, 1e5))).startswith("30 rows of numbers:")
    weighted = bnn.Data(whole[:3, None], np.array([0.0, 5.0, 6.0]), weights=[6.0, 1.0, 1.0])  # variance 5.2, mean 1.4
    assert Facts.of("regression", weighted).are_dispersed
    assert not Facts.of("regression", bnn.Data(whole[:3, None], np.array([4.0, 5.0, 6.0]))).are_dispersed
    assert not facts("regression", num_data=500, num_rows=80_000, num_weights=1000).takes_evidence


def test_a_model_whose_data_have_ranks_is_judged_on_them(monkeypatch):
    data = bnn.Data(np.random.default_rng(0).normal(size=(600, 3)), np.arange(600.0), standardize=True, inputs="ranks")
    asked = []
    monkeypatch.setattr(defaults._Judge, "tried", lambda own, parts, _: asked.append(own.split(parts.inputs)) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bnn.fit(bnn.BNN(bnn.MLP(data.num_inputs, [5], 1)), data, seed=0, progress=False)
    assert [part.num_inputs for part in asked[0]] == [6, 6]

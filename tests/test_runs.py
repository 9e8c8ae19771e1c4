"""Runs: the folder, an interruption and the same call again, the fit to all rows, parts held out, and comparisons."""

import dataclasses
import json
import shutil
import tomllib

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import outcome

import pyrobnn as bnn
from pyrobnn import InputError
from pyrobnn.inference.training import loop
from pyrobnn.metrics import score
from pyrobnn.posterior.record import EvidenceRecord, LikelihoodRecord, StartRecord
from pyrobnn.report import render
from pyrobnn.runs import run as runs
from pyrobnn.runs.compared import Comparison, compare_runs
from pyrobnn.runs.folder import ALL_ROWS, CHECKPOINT, UNFINISHED, unfinished_folder
from pyrobnn.runs.predict import predict_table, rounded
from pyrobnn.runs.run import read_diagnosis, run
from pyrobnn.runs.spec import RunSpec

FIT = {"type": "svi", "steps": 3, "seed": 1, "device": "cpu", "engine": "eager"}
REGRESSION = {"data": {"name": "sinusoid"}, "net": {"hidden": [4]}, "fit": FIT, "predict": {"num_draws": 10}}
FIT_FILES = ["manifest.json", "posterior", "spec.toml"]
JUDGED = sorted([*FIT_FILES, "diagnosis.json", "held_out.csv", "metrics.json"])
FILES = sorted([*JUDGED, "figures", "posterior.nc", "report.html"])


def spec_of(**changes):
    return RunSpec.from_dict(REGRESSION | changes)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(60, 2)), columns=["a", "b"])
    frame["kind"] = np.where(frame["a"] > 0, "yes", "no")
    path = tmp_path_factory.mktemp("table") / "t.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(spec_of(), tmp_path_factory.mktemp("runs") / "a" / "whole", progress=False)


def test_the_folder_is_complete(whole):
    import xarray

    with xarray.open_datatree(whole.path / "posterior.nc", engine="h5netcdf") as tree:
        assert tree["posterior"].sizes["draw"] == 10
    assert names(whole.path) == FILES
    assert names(whole.path.parent) == ["whole"]
    pictures = list((whole.path / "figures").iterdir())
    assert pictures
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert "<html" in (whole.path / "report.html").read_text(encoding="utf-8")


def test_its_files_say_what_the_saved_posterior_says(whole):
    metrics, manifest = (json.loads((whole.path / f"{name}.json").read_text()) for name in ("metrics", "manifest"))
    prediction = bnn.load(whole.path / "posterior").predict(whole.evidence.held_out.x, num_draws=10)
    again = score(prediction, whole.evidence.held_out.y)
    assert again == whole.scores
    assert metrics["scores"]["rmse"] == vars(again["rmse"])
    assert (metrics["num_train"], metrics["num_test"], metrics["num_steps"], metrics["seed"]) == (32, 200, 3, 1)
    assert not any("second" in key or "time" in key for key in metrics)
    assert (manifest["data"]["name"], manifest["data"]["feature_names"]) == ("sinusoid", ["x0"])
    assert (manifest["seed"], manifest["device"], len(manifest["data"]["sha256"])) == (1, "cpu", 64)
    assert manifest["wall_seconds"] > 0
    held_out = pd.read_csv(whole.path / "held_out.csv")
    assert list(held_out) == ["row", "target", "mean", "std", "lower_95", "upper_95"]
    assert held_out["row"].tolist() == list(range(33, 233))
    np.testing.assert_allclose(held_out["target"], whole.evidence.held_out.y, atol=1e-3)
    np.testing.assert_allclose(held_out["mean"], prediction.mean, atol=1e-3)
    assert read_diagnosis(whole.path) == whole.diagnosis


def test_the_terminal_and_the_report_name_the_likelihood_that_the_evidence_chose(whole, monkeypatch):
    posterior, none = whole.evidence.posterior, [LikelihoodRecord("Gamma", 0.0, 0.0)] * 2
    found = EvidenceRecord([StartRecord(None, 0.0, 0.0)], 0, {}, likelihoods=none)
    monkeypatch.setattr(posterior, "record", dataclasses.replace(posterior.record, evidence=found))
    assert "\nLikelihood: Gamma, chosen by evidence.\nNext: " in whole.summary
    monkeypatch.setattr("pyrobnn.report.page._figures", lambda *_, **__: iter(()))
    page = render(whole.evidence, whole.diagnosis, whole.scores).html
    assert f"<th>likelihood, by evidence</th><td>{found}</td>" in page


WAS = {"name": "constant", "severity": "warning", "value": 0.01, "error": 0.02, "facts": {"rows": "24 rows"}}


@pytest.mark.parametrize("change", [{"value": None}, {"name": "of yesterday"}, {"severity": "doubt"}, {"facts": {}}])
def test_a_diagnosis_of_an_earlier_version_is_refused_in_words(change, whole, tmp_path):
    text = json.dumps({"findings": [WAS | change], "false_alarm_rate": 0.05})
    (shutil.copytree(whole.path, tmp_path / "old") / "diagnosis.json").write_text(text)
    with pytest.raises(InputError, match=r"is of an earlier version of pyrobnn: fit its spec again"):
        read_diagnosis(tmp_path / "old")


@pytest.mark.slow
@pytest.mark.measured
def test_the_resolved_spec_gives_the_same_run(whole, tmp_path, no_report):
    again = run(RunSpec.from_toml(whole.path / "spec.toml"), tmp_path / "again", progress=False)
    assert outcome(again.path) == outcome(whole.path)
    assert (again.path / "spec.toml").read_bytes() == (whole.path / "spec.toml").read_bytes()


def test_predictions_for_a_table_of_numbers(whole, tmp_path):
    (tmp_path / "new.csv").write_text("other,x0\n1,0.1\n2,-0.2\n", encoding="utf-8")
    frame = predict_table(whole.path, tmp_path / "new.csv")
    assert list(frame) == ["row", "mean", "std", "epistemic_std", "aleatoric_std", "lower_95", "upper_95"]
    expected = whole.evidence.posterior.predict([[0.1], [-0.2]], num_draws=10)
    assert frame["mean"].to_numpy() == pytest.approx(expected.mean.numpy())
    assert frame["upper_95"].to_numpy() == pytest.approx(expected.interval(0.95)[1].numpy())
    variance = frame["epistemic_std"] ** 2 + frame["aleatoric_std"] ** 2
    assert (frame["std"] ** 2).to_numpy() == pytest.approx(variance.to_numpy())


@pytest.mark.one_in(0, 2)
@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli"])
def test_predictions_for_a_table_with_classes_and_a_single_test_row(likelihood, table, tmp_path, no_report):
    data = {"path": str(table), "target": "kind", "validation": 0.2, "test": 0.1}
    fit = FIT | {"steps": 40, "lr": 0.2}
    result = run(spec_of(data=data, likelihood={"type": likelihood}, fit=fit), tmp_path / "r", progress=False)
    frame = predict_table(result.path, table)
    assert list(frame) == ["row", "class", "prob_no", "prob_yes", "entropy", "mutual_information", "outside"]
    assert (frame["class"] == pd.read_csv(table)["kind"]).mean() > 0.8
    assert list(pd.read_csv(result.path / "held_out.csv")) == ["row", "target", "class", "prob_no", "prob_yes"]
    metrics = json.loads((result.path / "metrics.json").read_text())
    assert (metrics["num_train"], metrics["num_validation"], metrics["num_test"]) == (43, 11, 6)
    pd.read_csv(table)[["a", "b"]].head(10).to_csv(tmp_path / "few.csv", index=False)
    data = {"path": str(tmp_path / "few.csv"), "target": "b", "test": 0.1}
    few = run(spec_of(data=data), tmp_path / "few", progress=False)
    metrics = json.loads((few.path / "metrics.json").read_text())
    assert (metrics["num_test"], metrics["scores"]["rmse"]["stderr"]) == (1, None)


SVI = {"type": "svi", "steps": 5}
POINTS = {"method": {"steps": 5}}
ELBO, MEMBERS = "How far the fit has moved from the prior (ELBO)", "The 2 members"
METHODS = {
    "svi": (SVI, ELBO, 1),
    "ensemble": ({"type": "ensemble", "members": 2} | POINTS, MEMBERS, 2),
    "swag": ({"type": "swag", "steps": 8, "every": 2, "rank": 2} | POINTS, ELBO, 1),
    "nuts": ({"type": "nuts", "num_draws": 6, "warmup": 4, "num_chains": 2, "max_tree_depth": 2}, None, 2),
    "sgld": (
        {"type": "sgld", "step_size": 1e-4, "num_draws": 5, "burn_in": 2, "thinning": 1, "num_chains": 2},
        None,
        2,
    ),
}


@pytest.mark.one_in(6)
@pytest.mark.usefixtures("quick_check")
@pytest.mark.parametrize(("fit", "heading", "chains"), METHODS.values(), ids=METHODS)
@pytest.mark.filterwarnings("ignore:.* draws diverged")
def test_methods_of_every_kind(fit, heading, chains, tmp_path):
    import xarray

    likelihood = {"type": "gaussian", "scale": 1.0}
    spec = spec_of(fit=fit | {"device": "cpu"}, likelihood=likelihood, predict={"num_draws": 12})
    result = run(spec, tmp_path / "run", progress=False)
    page = (result.path / "report.html").read_text(encoding="utf-8")
    assert [each for each in (ELBO, MEMBERS) if f"<h3>{each}</h3>" in page] == [heading] * (heading is not None)
    assert RunSpec.from_toml(result.path / "spec.toml").fit.method == spec.fit.method
    test = result.evidence.held_out
    assert score(bnn.load(result.path / "posterior").predict(test.x, num_draws=12), test.y) == result.scores
    with xarray.open_datatree(result.path / "posterior.nc", engine="h5netcdf") as tree:
        assert tree["posterior"].sizes["chain"] == chains


class Killed(BaseException):
    """An end without warning."""


def failing(error):
    def fail(*args, **kwargs):
        raise error

    return fail


def interrupted(monkeypatch, path, spec, **arguments):
    """Let the fit end without warning once it has written a checkpoint."""
    real = loop.Checkpoint.write

    def write(self, *state, finished):
        real(self, *state, finished=finished)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(runs, "CHECKPOINT_EVERY", 10)
        patch.setattr(loop.Checkpoint, "write", write)
        with pytest.raises(Killed) as caught:
            run(spec, path, progress=False, **arguments)
    place = unfinished_folder(path)
    keeps = f"{place} keeps what was done: the same command goes on, or `pyrobnn fit {place / UNFINISHED}`."
    assert caught.value.__notes__ == [keeps]
    assert names(place) == [CHECKPOINT, UNFINISHED]


LONGER = {"fit": {"type": "svi", "steps": 30, "engine": "eager", "batch_size": 16}}
ENSEMBLE = {"fit": {"type": "ensemble", "members": 2, "engine": "eager", "method": {"steps": 30}}}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [LONGER, ENSEMBLE], ids=["svi", "ensemble"])
def test_the_same_call_goes_on_to_the_same_bytes(changes, tmp_path, no_report, monkeypatch):
    """And so does the spec that is kept."""
    interrupted(monkeypatch, tmp_path / "run", spec_of(**changes))
    with pytest.raises(InputError, match="has no manifest.json, the run was interrupted: `pyrobnn fit .*unfinished"):
        predict_table(tmp_path / "run", tmp_path / "new.csv")
    shutil.copytree(unfinished_folder(tmp_path / "run"), unfinished_folder(tmp_path / "copy"))
    asked = RunSpec.from_toml(unfinished_folder(tmp_path / "copy") / UNFINISHED)
    results = [
        run(spec_of(**changes), tmp_path / "run", progress=False),
        run(asked, tmp_path / "copy", progress=False),
        run(spec_of(**changes), tmp_path / "straight", progress=False),
    ]
    assert len({str(outcome(result.path)) for result in results}) == 1
    assert names(results[0].path) == FILES


@pytest.mark.slow
def test_an_earlier_run_stays_until_the_new_one_is_complete(tmp_path, no_report, monkeypatch):
    """Through bad input, a fit that fails and an interruption, after which the same call goes on."""
    path, spec = tmp_path / "run", spec_of(**LONGER)
    run(spec_of(), path, progress=False)
    before = outcome(path)
    with pytest.raises(InputError, match="splits 0 to 19"):
        run(spec_of(data={"name": "diabetes", "split": 20}), path, progress=False, overwrite=True)
    with pytest.raises(InputError, match="exists already: choose another name, or replace it"):
        run(spec_of(data={"name": "no such data"}), path, progress=False)
    for error in (RuntimeError("no ink"), FloatingPointError("no ink")):
        with monkeypatch.context() as patch:
            patch.setattr("pyrobnn.runs.run.fit_in_silence", failing(error))
            for folder in (path, tmp_path / "other"):
                with pytest.raises(type(error), match="no ink"):
                    run(spec, folder, progress=False, overwrite=True)
    assert names(tmp_path) == ["run"]
    interrupted(monkeypatch, path, spec, overwrite=True)
    with monkeypatch.context() as patch:
        patch.setattr("pyrobnn.runs.run.score", failing(Killed()))
        with pytest.raises(Killed):
            run(spec, path, progress=False, overwrite=True)
    assert outcome(path) == before
    assert names(path) == FILES
    monkeypatch.setattr("pyrobnn.inference.training.loop.Stepper.advance", failing(AssertionError("trained again")))
    assert run(spec, path, progress=False, overwrite=True).evidence.posterior.record.num_steps == 30
    assert names(tmp_path) == ["run"]
    assert outcome(path) != before


@pytest.mark.slow
def test_another_run_does_not_trample_on_an_interrupted_one(tmp_path, no_report, monkeypatch):
    """Neither one of other settings nor one of other data."""
    file = tmp_path / "t.csv"
    file.write_text("a,y\n" + "\n".join(f"{i},{i * 0.5}" for i in range(40)))
    data = {"path": str(file), "target": "y"}
    spec = spec_of(data=data, **LONGER)
    interrupted(monkeypatch, tmp_path / "run", spec)
    before, place = file.read_text(), unfinished_folder(tmp_path / "run")
    for text, other in ((before, spec_of(data=data)), (before.replace(".5\n", ".25\n"), spec)):
        file.write_text(text)
        with pytest.raises(InputError, match="a run of other settings or data, which was interrupted: `pyrobnn fit"):
            run(other, tmp_path / "run", progress=False)
        assert names(place) == [CHECKPOINT, UNFINISHED]
    assert tomllib.loads((place / UNFINISHED).read_text())["fit"]["steps"] == 30
    assert run(other, tmp_path / "run", progress=False, overwrite=True).evidence.posterior.record.num_steps == 30
    assert not place.exists()


STAGES = {
    "pyrobnn.runs.run.save_posterior": [],
    "pyrobnn.runs.run.version": ["posterior", "spec.toml"],
    "pyrobnn.runs.run.score": FIT_FILES,
    "pyrobnn.runs.run.diagnosis_of": sorted({*JUDGED} - {"diagnosis.json"}),
    "pyrobnn.report.render": JUDGED,
    "pyrobnn.diagnostics.convert.to_datatree": sorted({*FILES} - {"posterior.nc"}),
}


@pytest.mark.one_in(6, 2)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_end_anywhere_keeps_the_fit_and_the_same_call_completes_it(stage, error, tmp_path, no_report, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(stage, failing(error("no ink")))
        with pytest.raises(error, match="no ink") as caught:
            run(spec_of(), tmp_path / "r", progress=False)
    assert "keeps what was done" in caught.value.__notes__[-1]
    place = unfinished_folder(tmp_path / "r")
    assert set(names(place)) - {CHECKPOINT} == {*STAGES[stage], UNFINISHED}
    if "manifest.json" in STAGES[stage]:
        (tmp_path / "new.csv").write_text("x0\n0.1\n", encoding="utf-8")
        assert len(predict_table(place, tmp_path / "new.csv")) == 1
    monkeypatch.setattr("pyrobnn.inference.training.loop.Stepper.advance", failing(AssertionError("trained again")))
    assert run(spec_of(), tmp_path / "r", progress=False).evidence.posterior.seed == 1
    assert names(tmp_path / "r") == FILES


# the fit to all rows, for predictions

NOISE = 0.5


@pytest.fixture
def linear(tmp_path):
    generator = np.random.default_rng(3)
    frame = pd.DataFrame(generator.normal(size=(40, 2)), columns=["a", "b"])
    frame["y"] = 2 * frame["a"] - frame["b"] + NOISE * generator.normal(size=40)
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def linear_spec(path, **changes):
    """A linear model with known noise: its Laplace approximation is the posterior."""
    return RunSpec.from_dict(
        {
            "data": {"path": str(path), "target": "y"},
            "net": {"hidden": [], "dtype": "float64"},
            "prior": {"type": "normal", "scale": 1.0},
            "likelihood": {"type": "gaussian", "scale": NOISE},
            "guide": {"type": "laplace", "structure": "full"},
            "fit": {"type": "svi", "steps": 800},
            "predict": {"num_draws": 400},
        }
        | changes
    )


def exact(frame, new):
    """Mean and standard deviation of the function of a Bayesian linear regression in standard units, at new rows."""
    x, y = frame[["a", "b"]].to_numpy(), frame["y"].to_numpy()
    centre, spread, scale = x.mean(0), x.std(0), y.std()
    inputs, at = (np.column_stack([(rows - centre) / spread, np.ones(len(rows))]) for rows in (x, new))
    noise = NOISE / scale
    covariance = np.linalg.inv(inputs.T @ inputs / noise**2 + np.eye(3))
    mean = covariance @ inputs.T @ ((y - y.mean()) / scale) / noise**2
    return y.mean() + scale * at @ mean, scale * np.sqrt(np.einsum("ni,ij,nj->n", at, covariance, at))


def test_new_rows_are_predicted_from_all_rows(linear, tmp_path):
    """Both fits have their closed form; means of 400 draws within five standard errors."""
    result = run(linear_spec(linear), tmp_path / "run", progress=False)
    frame, new = pd.read_csv(linear), np.array([[0.3, -1.0], [2.0, 1.0]])
    pd.DataFrame(new, columns=["a", "b"]).to_csv(tmp_path / "new.csv", index=False)
    found = predict_table(tmp_path / "run", tmp_path / "new.csv")
    assert -np.inf in [finding.value for finding in result.diagnosis.findings]  # k-hat, of an exact posterior
    assert read_diagnosis(result.path) == result.diagnosis
    mean, std = exact(frame, new)
    assert result.final.record.num_data == len(frame)
    assert (np.abs(found["mean"] - mean) < 5 * std / 20 + 1e-3).all()
    np.testing.assert_allclose(found["epistemic_std"], std, rtol=5 / np.sqrt(2 * 400))
    train = RunSpec.from_toml(tmp_path / "run" / "spec.toml").prepare().train
    rows = pd.DataFrame(train.x.numpy(), columns=["a", "b"]).assign(y=train.y.numpy())
    judged, judged_std = exact(rows, new)
    assert (np.abs(judged - mean) > std / 4).any()
    prediction = bnn.load(tmp_path / "run" / "posterior").predict(torch.tensor(new), num_draws=400)
    assert (np.abs(prediction.mean.numpy() - judged) < 5 * judged_std / 20 + 1e-3).all()
    scores = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))["scores"]
    posterior, test = bnn.load(tmp_path / "run" / "posterior"), result.evidence.held_out
    again = bnn.score(posterior.predict(test.x, num_draws=400), test.y)
    assert scores["rmse"]["value"] == pytest.approx(float(again["rmse"].value))
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert f"by a fit to {len(frame)} rows. The scores are of a fit to {len(train)}." in page


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_a_category_of_held_out_rows_is_known_then(linear, tmp_path):
    frame = pd.read_csv(linear)
    spec = linear_spec(linear)
    train = spec.prepare().train.x[:, 0].numpy()
    is_held_out = ~np.isin(np.round(frame["a"], 12), np.round(train, 12))
    frame["kind"] = np.where(is_held_out, "rare", np.where(frame["b"] > 0, "up", "down"))
    frame.loc[is_held_out, "a"] += 100.0
    frame.to_csv(linear, index=False)
    run(spec, tmp_path / "run", progress=False)
    frame[is_held_out].to_csv(tmp_path / "new.csv", index=False)
    assert predict_table(tmp_path / "run", tmp_path / "new.csv")["outside"].eq("").all()
    (tmp_path / "run" / "all_rows").rename(tmp_path / "other")
    assert predict_table(tmp_path / "run", tmp_path / "new.csv")["outside"].str.contains("kind").all()


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(("most", "groups"), [(39, None), (2000, "group")])
def test_large_tables_and_those_of_groups_have_one_fit(most, groups, linear, tmp_path, monkeypatch):
    """A fit to all groups is not judged on new ones."""
    monkeypatch.setattr(runs, "_MOST_ROWS_OF_A_SECOND_FIT", most)
    pd.read_csv(linear).assign(group=np.arange(40) % 8).to_csv(linear, index=False)
    data = {"path": str(linear), "target": "y", "drop": ["group"] if groups is None else []}
    spec = linear_spec(linear, data=data | {"groups": groups}, fit={"type": "svi", "steps": 3})
    result = run(spec, tmp_path / "run", progress=False)
    assert result.final is result.evidence.posterior
    assert not (result.path / ALL_ROWS).exists()


@pytest.mark.usefixtures("no_report")
def test_a_second_fit_that_went_wrong_is_not_kept(linear, tmp_path, monkeypatch):
    fit, lengths = runs._fit, []

    def wrong(prepared, checkpoint, *, progress):
        lengths.append(len(prepared.train))
        return fit(prepared, checkpoint, progress=progress) if len(lengths) == 1 else of_others

    frame = pd.read_csv(linear)
    frame.assign(y=-frame["y"]).to_csv(tmp_path / "negative.csv", index=False)
    of_others = fit(linear_spec(tmp_path / "negative.csv").prepare(), None, progress=False)
    monkeypatch.setattr(runs, "_fit", wrong)
    result = run(linear_spec(linear), tmp_path / "run", progress=False)
    assert lengths == [len(result.evidence.train), 40]
    assert result.final is result.evidence.posterior
    assert not (tmp_path / "run" / "all_rows").exists()


PATIENTS = np.repeat(np.arange(12), 10)


@pytest.fixture
def visits(tmp_path):
    generator = np.random.default_rng(0)
    level = generator.normal(size=12)[PATIENTS]
    frame = pd.DataFrame({"patient": PATIENTS, "a": level, "b": generator.normal(size=120), "w": 1 + PATIENTS % 5})
    frame.assign(y=level + 0.1 * generator.normal(size=120)).to_csv(tmp_path / "v.csv", index=False)
    return {"path": str(tmp_path / "v.csv"), "target": "y"}


def test_whole_groups_are_held_out_also_where_a_fit_is_chosen(visits):
    prepared = spec_of(data=visits | {"groups": "patient"}).prepare()
    train, test = (set(PATIENTS[rows]) for rows in prepared.dataset.rows(0))
    assert (len(train & test), len(test)) == (0, 2)
    assert prepared.train.feature_names == ("a", "b", "w")
    labels = prepared.train.groups.numpy()
    patients = PATIENTS[prepared.dataset.rows(0)[0]]
    assert [set(patients[labels == label]) for label in set(labels)] == [{n} for n in sorted(train)]
    assert "groups" in prepared.spec.to_toml()
    random = spec_of(data=visits).prepare().dataset.rows(0)
    assert set(PATIENTS[random[0]]) & set(PATIENTS[random[1]])


@pytest.mark.slow
def test_the_last_rows_are_held_out(visits, tmp_path, no_report):
    result = run(spec_of(data=visits | {"test_last": 0.2}), tmp_path / "r", progress=False)
    held_out = pd.read_csv(tmp_path / "r" / "held_out.csv")
    assert held_out["row"].tolist() == list(range(97, 121))
    np.testing.assert_allclose(held_out["target"], pd.read_csv(visits["path"])["y"][96:], atol=1e-3)
    assert (len(result.evidence.train), result.final.record.num_data) == (96, 120)
    again = RunSpec.from_toml(tmp_path / "r" / "spec.toml").prepare()
    assert torch.equal(again.test.y, result.evidence.held_out.y)


SPLITS = {
    "both": ({"test_last": 0.2, "groups": "patient"}, "holds the last rows out: leave out"),
    "all": ({"test_last": 1.5}, "`test_last` must be less than 1"),
    "a data set": (
        {"name": "wine", "groups": "patient", "path": None, "target": None, "missing": "raise"},
        "`groups` belongs to a `path`",
    ),
    "target": ({"groups": "y"}, "names the target 'y'"),
    "one group": ({"groups": "one"}, "All rows are of one group"),
    "no label": ({"groups": "gap"}, "`gap` has no label in place 2, but nan: give each"),
}


@pytest.mark.parametrize(("changes", "message"), SPLITS.values(), ids=SPLITS)
def test_a_split_that_cannot_be_is_refused(changes, message, visits):
    frame = pd.read_csv(visits["path"])
    frame.assign(one=1, gap=np.where(frame.index == 2, np.nan, 1)).to_csv(visits["path"], index=False)
    data = visits | {"missing": "impute"} | changes
    with pytest.raises(InputError, match=message):
        spec_of(data={key: value for key, value in data.items() if value is not None}).prepare()


@pytest.mark.slow
def test_intervals_below_zero_of_a_positive_target_are_said_once(visits, tmp_path, no_report):
    data = visits | {"target": "w"}
    frame = pd.read_csv(visits["path"])
    frame.assign(w=np.exp(3 * frame["b"])).to_csv(visits["path"], index=False)
    wide, kept = (
        run(spec_of(data=data, likelihood={"type": kind}), tmp_path / kind, progress=False)
        for kind in ("gaussian", "log_normal")
    )
    assert ["LogNormal keeps them positive" in line for line in wide.doubts] == [True]
    assert wide.summary.count("keeps them positive") == 1
    assert kept.doubts == []


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    spec = spec_of(fit=FIT | {"steps": 100, "lr": 0.1})
    with pytest.MonkeyPatch.context() as patch:
        import pyrobnn.report

        patch.setattr(pyrobnn.report, "render", lambda *args, **kwargs: pyrobnn.report.page.Rendered("page", {}))
        return run(spec, tmp_path_factory.mktemp("runs") / "b" / "whole", progress=False)


@pytest.mark.slow
def test_runs_are_compared_on_the_same_examples(whole, longer):
    found = compare_runs([whole.path, longer.path])
    first, second = map(str, (whole.path, longer.path))
    assert (found.best, set(found.scores)) == (second, {first, second})
    assert found.specs == {"fit.lr": {first: "0.02", second: "0.1"}, "fit.steps": {first: "3", second: "100"}}
    test = longer.evidence.held_out
    predictions = [bnn.load(one.path / "posterior").predict(test.x, num_draws=10) for one in (whole, longer)]
    gap = predictions[0].log_prob(test.y) - predictions[1].log_prob(test.y)
    row = found.differences[first].loc["log_likelihood"]
    assert row["difference"] == pytest.approx(float(gap.double().mean()))
    assert row["stderr"] == pytest.approx(float(gap.double().std()) / len(gap) ** 0.5)
    assert found.num_test == len(test)


def test_equally_good_runs_are_seldom_told_apart():
    """Of 300 pairs that are equally good on new rows, with 5 % positives of 300, 0.2 % should be."""
    generator, told = np.random.default_rng(0), []
    for _ in range(300):
        z = 1.3 * generator.normal(size=300) - 3.7
        y = generator.random(300) < 1 / (1 + np.exp(-z))
        probs = 1 / (1 + np.exp(-z - 0.4 * generator.normal(size=(2, 300))))
        first, second = np.where(y, np.log(probs), np.log1p(-probs))
        gap, error = (first - second).mean(), (first - second).std(ddof=1) / 300**0.5
        table = pd.DataFrame({"difference": [-abs(gap)], "stderr": [error]}, index=["log_likelihood"])
        told.append(Comparison("b", {}, {"a": table}, {}, 300).verdict)
    assert sum("is better" in one for one in told) <= 3


@pytest.mark.slow
def test_counts_and_classes_of_the_same_rows_are_compared_by_their_probabilities(tmp_path, no_report):
    generator = np.random.default_rng(0)
    a = generator.normal(size=150)
    y = np.minimum(generator.poisson(np.exp(0.5 * a)), 4)
    pd.DataFrame({"a": a, "y": y}).to_csv(tmp_path / "t.csv", index=False)
    data = {"path": str(tmp_path / "t.csv"), "target": "y"}
    kinds = {"counts": "poisson", "classes": "categorical", "numbers": "gaussian"}
    found = {
        name: run(spec_of(data=data, likelihood={"type": kind}), tmp_path / name, progress=False)
        for name, kind in kinds.items()
    }
    masses = {name: result.scores["log_likelihood"].value for name, result in found.items()}
    comparison = compare_runs([found["counts"].path, found["classes"].path])
    (table,) = comparison.differences.values()
    gap = abs(masses["counts"] - masses["classes"])
    assert table.loc["log_likelihood", "difference"] == pytest.approx(-gap)
    assert "By log score" in str(comparison)
    with pytest.raises(InputError, match="A density of numbers and probabilities of classes cannot be compared"):
        compare_runs([found["numbers"].path, found["classes"].path])


@pytest.mark.slow
def test_two_codings_of_the_same_rows_are_compared(linear, tmp_path, no_report):
    frame = pd.read_csv(linear)
    frame.assign(a=np.round(10 * frame["a"]), c=frame["b"] ** 2).to_csv(tmp_path / "other.csv", index=False)
    fit = {"type": "svi", "steps": 3}
    tables = [linear, tmp_path / "other.csv"]
    paths = [run(linear_spec(one, fit=fit), tmp_path / one.stem, progress=False).path for one in tables]
    assert compare_runs(paths).specs["data.path"] == dict(zip(map(str, paths), map(str, tables), strict=True))
    frame.assign(y=frame["y"] + 1).to_csv(tmp_path / "moved.csv", index=False)
    moved = run(linear_spec(tmp_path / "moved.csv", fit=fit), tmp_path / "moved", progress=False).path
    with pytest.raises(InputError, match="was scored on other examples than"):
        compare_runs([paths[0], moved])


@pytest.mark.slow
def test_what_cannot_be_compared_is_refused(whole, tmp_path, no_report):
    with pytest.raises(InputError, match="Pass two or more different run folders"):
        compare_runs([whole.path, whole.path])
    other = run(spec_of(data={"name": "diabetes"}), tmp_path / "other", progress=False)
    with pytest.raises(InputError, match="was scored on other examples than"):
        compare_runs([whole.path, other.path])
    changed = tmp_path / "changed"
    shutil.copytree(whole.path, changed)
    manifest = json.loads((changed / "manifest.json").read_text(encoding="utf-8"))
    manifest["data"]["sha256"] = "0" * 64
    (changed / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(InputError, match="have changed since its fit"):
        compare_runs([whole.path, changed])


def test_files_of_predictions_have_the_digits_that_mean_something():
    numbers = {"mean": [1 / 3, 1e9 + 1 / 3, 0.0, -2e-7], "std": [1 / 7, 2 / 3, np.inf, 1 / 7], "lower_95": [1e9] * 4}
    frame = pd.DataFrame({"name": [1 / 3] * 4, **numbers, "outside": ["", "a", "", ""]})
    text = rounded(frame).to_csv(index=False).splitlines()
    assert text[1:] == [
        "0.3333333333333333,0.33333,0.14286,1000000000.0,",
        "0.3333333333333333,1000000000.33333,0.66667,1000000000.0,a",
        "0.3333333333333333,0.0,inf,1000000000.0,",
        "0.3333333333333333,0.0,0.14286,1000000000.0,",
    ]
    classes = pd.DataFrame({"row": [1], "class": ["a"], "prob_a": [1 - 1e-9], "prob_b": [1e-58], "entropy": [-1e-17]})
    assert rounded(classes).to_csv(index=False).splitlines()[1] == "1,a,1.0,0.0,0.0"

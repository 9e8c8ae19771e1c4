import json
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import outcome

import pyrobnn as bnn
from pyrobnn import InputError
from pyrobnn.metrics import score
from pyrobnn.runs.compared import Comparison, compare_runs
from pyrobnn.runs.files import predict_table, rounded
from pyrobnn.runs.run import read_diagnosis, resume, run
from pyrobnn.runs.spec import RunSpec

FIT = {"type": "svi", "steps": 3, "seed": 1, "device": "cpu", "engine": "eager"}
REGRESSION = {"data": {"name": "sinusoid"}, "net": {"hidden": [4]}, "fit": FIT, "predict": {"num_draws": 10}}
FIT_FILES = ["diagnosis.json", "manifest.json", "metrics.json", "posterior", "spec.toml"]
FILES = sorted([*FIT_FILES, "figures", "posterior.nc", "report.html"])


def spec_of(**changes):
    return RunSpec.from_dict(REGRESSION | changes)


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
    assert sorted(path.name for path in whole.path.iterdir()) == FILES
    assert [path.name for path in whole.path.parent.iterdir()] == ["whole"]
    pictures = list((whole.path / "figures").iterdir())
    assert pictures
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert "<html" in (whole.path / "report.html").read_text(encoding="utf-8")


def test_the_metrics_are_those_of_the_saved_posterior(whole):
    metrics = json.loads((whole.path / "metrics.json").read_text())
    posterior = bnn.load(whole.path / "posterior")
    again = score(posterior.predict(whole.test.x, num_draws=10), whole.test.y)
    assert again == whole.scores
    assert metrics["scores"]["rmse"] == {
        "value": again["rmse"].value,
        "stderr": again["rmse"].stderr,
        "higher_is_better": False,
    }
    assert (metrics["num_train"], metrics["num_test"], metrics["num_steps"], metrics["seed"]) == (32, 200, 3, 1)
    assert not any("second" in key or "time" in key for key in metrics)


def test_the_manifest_says_what_it_was_made_with(whole):
    manifest = json.loads((whole.path / "manifest.json").read_text())
    assert manifest["packages"]["torch"] == torch.__version__.split("+")[0] or manifest["packages"]["torch"]
    assert manifest["data"]["name"] == "sinusoid"
    assert len(manifest["data"]["sha256"]) == 64
    assert manifest["data"]["feature_names"] == ["x0"]
    assert (manifest["seed"], manifest["device"]) == (1, "cpu")
    assert manifest["wall_seconds"] > 0


@pytest.mark.slow
def test_the_resolved_spec_gives_the_same_run(whole, tmp_path, no_report):
    again = run(RunSpec.from_toml(whole.path / "spec.toml"), tmp_path / "again", progress=False)
    assert outcome(again.path) == outcome(whole.path)
    assert (again.path / "spec.toml").read_bytes() == (whole.path / "spec.toml").read_bytes()


def test_predictions_for_a_table_of_numbers(whole, tmp_path):
    (tmp_path / "new.csv").write_text("other,x0\n1,0.1\n2,-0.2\n", encoding="utf-8")
    frame = predict_table(whole.path, tmp_path / "new.csv")
    assert list(frame) == ["row", "mean", "std", "epistemic_std", "aleatoric_std", "lower_95", "upper_95"]
    expected = whole.posterior.predict([[0.1], [-0.2]], num_draws=10)
    assert frame["mean"].to_numpy() == pytest.approx(expected.mean.numpy())
    assert frame["upper_95"].to_numpy() == pytest.approx(expected.interval(0.95)[1].numpy())
    assert (frame["std"] ** 2).to_numpy() == pytest.approx(
        (frame["epistemic_std"] ** 2 + frame["aleatoric_std"] ** 2).to_numpy()
    )


@pytest.mark.one_in(0, 2)
@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli"])
def test_predictions_for_a_table_with_classes_and_a_single_test_row(likelihood, table, tmp_path, no_report):
    data = {"path": str(table), "target": "kind", "validation": 0.2, "test": 0.1}
    fit = FIT | {"steps": 40, "lr": 0.2}
    result = run(spec_of(data=data, likelihood={"type": likelihood}, fit=fit), tmp_path / "r", progress=False)
    frame = predict_table(result.path, table)
    assert list(frame) == ["row", "class", "prob_no", "prob_yes", "entropy", "mutual_information", "outside"]
    truth = pd.read_csv(table)["kind"]
    assert (frame["class"] == truth).mean() > 0.8
    assert (frame["prob_no"] + frame["prob_yes"]).to_numpy() == pytest.approx(1.0)
    assert ((frame["prob_yes"] > 0.5) == (frame["class"] == "yes")).all()
    assert {"accuracy", "log_likelihood", "brier", "ece"} < set(result.scores)
    metrics = json.loads((result.path / "metrics.json").read_text())
    assert (metrics["num_train"], metrics["num_validation"], metrics["num_test"]) == (43, 11, 6)
    few = tmp_path / "few.csv"
    pd.read_csv(table)[["a", "b"]].head(10).to_csv(few, index=False)
    few = run(spec_of(data={"path": str(few), "target": "b", "test": 0.1}), tmp_path / "few", progress=False)
    metrics = json.loads((few.path / "metrics.json").read_text())
    assert (metrics["num_test"], metrics["scores"]["rmse"]["stderr"]) == (1, None)


def test_an_existing_folder_is_refused_before_training(whole):
    with pytest.raises(InputError, match="exists already: choose another name, or replace it"):
        run(spec_of(data={"name": "no such data"}), whole.path, progress=False)


def failing(error):
    def fail(*args, **kwargs):
        raise error

    return fail


ERRORS = [RuntimeError("no ink"), KeyboardInterrupt()]


@pytest.mark.parametrize("error", ERRORS)
def test_a_failing_fit_leaves_nothing(error, tmp_path, no_report, monkeypatch):
    monkeypatch.setattr("pyrobnn.runs.run.fit_in_silence", failing(error))
    with pytest.raises(type(error)):
        run(spec_of(), tmp_path / "r", progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.one_in(2)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("step", ["make_manifest", "save_posterior"])
def test_a_fit_that_cannot_be_written_is_kept(step, error, tmp_path, no_report, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(f"pyrobnn.runs.files.{step}", failing(error))
        with pytest.raises(type(error)) as caught:
            run(spec_of(), tmp_path / "r", progress=False)
    assert f"`pyrobnn fit --resume {tmp_path / 'r'}` goes on with the fit" in caught.value.__notes__[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["r.unfinished"]
    monkeypatch.setattr("pyrobnn.inference.training.loop.Stepper.advance", failing(AssertionError("trained again")))
    assert resume(tmp_path / "r", progress=False).posterior.seed == 1


VIEWS = {
    "pyrobnn.runs.run.score": ["manifest.json", "posterior", "spec.toml"],
    "pyrobnn.runs.run.diagnose": ["manifest.json", "metrics.json", "posterior", "spec.toml"],
    "pyrobnn.diagnostics.convert.to_datatree": sorted({*FILES} - {"posterior.nc"}),
    "pyrobnn.report.render": FIT_FILES,
}


@pytest.mark.one_in(4, 3)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("error", ERRORS)
def test_a_failing_report_keeps_the_fit(view, error, tmp_path, no_report, monkeypatch):
    monkeypatch.setattr(view, failing(error))
    with pytest.raises(type(error)) as caught:
        run(spec_of(), tmp_path / "r", progress=False)
    assert caught.value is error
    assert f"The fit itself is safe in {tmp_path / 'r'}" in error.__notes__[-1]
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == VIEWS[view]
    assert bnn.load(tmp_path / "r" / "posterior").seed == 1
    (tmp_path / "new.csv").write_text("x0\n0.1\n", encoding="utf-8")
    assert len(predict_table(tmp_path / "r", tmp_path / "new.csv")) == 1


@pytest.mark.slow
def test_files_and_figures_appear_whole(tmp_path, no_report, monkeypatch):
    pictures = {"a.png": b"a", "b.png": "not bytes"}
    monkeypatch.setattr("pyrobnn.report.render", lambda *args, **kwargs: SimpleNamespace(html="", figures=pictures))
    with pytest.raises(TypeError):
        run(spec_of(), tmp_path / "r", progress=False)
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == sorted(FIT_FILES)

    class Tree:
        def to_netcdf(self, path, engine):
            path.write_text("half")
            raise OSError("disk full")

    del pictures["b.png"]
    monkeypatch.setattr("pyrobnn.diagnostics.convert.to_datatree", lambda *args, **kwargs: Tree())
    with pytest.raises(OSError, match="disk full"):
        run(spec_of(), tmp_path / "s", progress=False)
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [
        name for name in FILES if name != "posterior.nc"
    ]


# diagnosis and comparison


def test_the_diagnosis_is_stored_and_read_again(whole):
    assert read_diagnosis(whole.path) == whole.diagnosis
    assert {"elbo", "bias", "surprise", "baseline"} <= {finding.name for finding in whole.diagnosis.findings}


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    spec = spec_of(fit=FIT | {"steps": 100, "lr": 0.1})
    with pytest.MonkeyPatch.context() as patch:
        import pyrobnn.report

        patch.setattr(pyrobnn.report, "render", lambda *args, **kwargs: pyrobnn.report.Rendered("page", {}))
        return run(spec, tmp_path_factory.mktemp("runs") / "b" / "whole", progress=False)


@pytest.mark.slow
def test_runs_are_compared_on_the_same_examples(whole, longer):
    found = compare_runs([whole.path, longer.path])
    assert (found.best, set(found.scores)) == ("b/whole", {"a/whole", "b/whole"})
    assert found.specs == {"fit.lr": {"a/whole": 0.01, "b/whole": 0.1}, "fit.steps": {"a/whole": 3, "b/whole": 100}}
    test = longer.test
    predictions = [bnn.load(one.path / "posterior").predict(test.x, num_draws=10) for one in (whole, longer)]
    gap = predictions[0].log_prob(test.y) - predictions[1].log_prob(test.y)
    row = found.differences["a/whole"].loc["log_likelihood"]
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
    with pytest.raises(InputError, match="have changed since it was made"):
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

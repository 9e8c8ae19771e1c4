"""Runs: from a spec to a folder with the posterior, its scores, pictures and a report."""

import dataclasses
import datetime
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import save

import pyrobnn
from pyrobnn._core.errors import counted, waiting
from pyrobnn._core.folders import new_file, new_folder
from pyrobnn.diagnostics.diagnosis import Diagnosis, diagnosis_of
from pyrobnn.inference.fit import fit_in_silence, tell_of_constants
from pyrobnn.metrics import Score, score
from pyrobnn.posterior.mixture import Mixture, copies_of, predict_copies
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.report import words
from pyrobnn.report.page import simple_scores
from pyrobnn.runs import folder as files
from pyrobnn.runs.predict import rounded, write_table
from pyrobnn.runs.spec import Prepared, RunSpec
from pyrobnn.storage.load import load
from pyrobnn.storage.save import save as save_posterior
from pyrobnn.verdict.evidence import Budget, Evidence

CHECKPOINT_EVERY = 1000  # steps between two checkpoints of a run
_MOST_ROWS_OF_A_SECOND_FIT = 2000
"""On 60, 150, 400 and 1,000 rows of Friedman's function (1991) a fit to all has 0.59, 0.92, 0.99 and 0.99 times the
error of a fit to the training part, and takes 1 to 7 s."""
_TOLERATED_LOSS = 0.1  # nats an example by which draws and other starts may lower the score of learned rows
_PACKAGES = ("torch", "pyro-ppl", "numpy", "arviz", "pydantic", "scikit-learn", "safetensors")
_HELD_OUT = "median|mean|std|lower_95|upper_95|class|prob_.*"  # columns of the predictions of the test part


@dataclasses.dataclass(frozen=True, eq=False)
class RunResult:
    """What a run found. The `evidence` has its fit and data; `final` predicts new rows, and may be a fit to all rows.

    `baselines` are the scores of a constant and of a linear model, `doubts` lines on intervals that cannot be.
    """

    path: Path
    evidence: Evidence
    scores: dict[str, Score]
    baselines: words.Baselines
    diagnosis: Diagnosis
    doubts: list[str]
    final: Posterior | Mixture

    @property
    def summary(self) -> str:
        """What the terminal says of the fit: how well it predicts, the verdict, scores, and what is next."""
        judged = self.scores, self.baselines, self.evidence
        details = [*self.doubts, words.score_lines(*judged)]
        if (evidence := self.evidence.posterior.record.evidence) and evidence.likelihoods:
            details.append(f"Likelihood: {evidence.likelihood.name}, chosen by evidence.")
        verdict = words.concluded(self.diagnosis, str(self.path), details)
        folder = f"Folder: {self.path}, with report.html and held_out.csv"
        return "\n".join(filter(None, [words.found(*judged), verdict, folder]))


def run(
    spec: RunSpec,
    out_dir: str | Path,
    *,
    progress: bool = True,
    overwrite: bool = False,
    tell: Callable[[str], object] = lambda _: None,
) -> RunResult:
    """Fit a spec, score the fit on the test part, and write the run folder (docs/how-to/save-and-load.md).

    The same spec gives the same bits on the same machine. After an interruption the same call goes on, an SVI fit from
    its last checkpoint. Bad input is refused first, and so is a folder with another run, which `overwrite` replaces at
    the end. `tell` takes lines on the data, and on phases without progress.
    """

    def phase(what: str) -> AbstractContextManager[None]:
        if not progress:
            tell(f"{what} ...")
        return waiting(what, shown=progress)

    path = Path(out_dir) if Path(out_dir).name else Path(out_dir).absolute()
    files.check_new_run(path, overwrite=overwrite)
    prepared = spec.prepare(tell, progress=progress)
    with files.new_run(path, spec.to_toml(), prepared.dataset.checksum, overwrite=overwrite) as work:
        if files.has_fit(work):
            posterior = load(work / "posterior")
        else:
            started = time.perf_counter()
            posterior = _fit(prepared, work / files.CHECKPOINT, progress=progress)
            _write_fit(work, prepared, posterior, time.perf_counter() - started)
        with phase("scoring and checking the fit"):
            evidence = _evidence(prepared, posterior)
            scores, baselines, doubts = _scored(work, prepared, evidence)
            diagnosis = diagnosis_of(evidence)
            files.write_json(work / "diagnosis.json", diagnosis, not_finite="constants")
        final = _final(work, prepared, posterior, phase)
        result = RunResult(path, evidence, scores, baselines, diagnosis, doubts, final)
        with phase("drawing the pictures and writing the report"):
            _write_views(work, result, prepared)
    return result


def _fit(prepared: Prepared, checkpoint: Path | None, *, progress: bool) -> Posterior | Mixture:
    """Fit a spec, with checkpoints in a folder if the method can resume from them."""
    method, resumes = prepared.spec.fit.method, dict[str, Any]()
    if checkpoint is not None and method.offer().resumable:
        resumes = {"checkpoint": checkpoint, "every": CHECKPOINT_EVERY, "method": method}
    given = {"validation": prepared.validation, "choice": prepared.choice} | resumes
    if prepared.dataset.encoder is None:  # the notes of a table name its constant columns
        tell_of_constants(prepared.train)
    return fit_in_silence(prepared.bnn, prepared.train, method, prepared.spec.fit.run(progress=progress, **given))


def _write_fit(work: Path, prepared: Prepared, posterior: Posterior | Mixture, seconds: float) -> None:
    """Write posterior, the rows from which missing values are drawn, spec and manifest, which is last."""
    (work / "posterior").unlink(missing_ok=True)
    save_posterior(posterior, work / "posterior")
    if prepared.dataset.imputer is not None:
        (work / files.ROWS).write_bytes(save({"rows": prepared.dataset.imputer.rows}))
    (work / "spec.toml").write_text(prepared.spec.to_toml(), encoding="utf-8")
    record, dataset = posterior.members[0].record, prepared.dataset
    data = {key: getattr(dataset, key) for key in ("name", "task", "source", "licence", "class_names", "encoder")}
    data |= {key: getattr(dataset.data, key) for key in ("feature_names", "target_name")}
    manifest = {
        "pyrobnn": pyrobnn.__version__,
        "packages": {name: version(name) for name in _PACKAGES},
        "python": f"{platform.python_version()} on {platform.platform()}",
        "seed": prepared.spec.fit.seed,
        "data": data | {"sha256": dataset.checksum},
        **{key: getattr(record, key) for key in ("device", "threads", "engine")},
        "wall_seconds": round(seconds, 3),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    files.write_json(work / "manifest.json", manifest)


def _evidence(prepared: Prepared, posterior: Posterior | Mixture) -> Evidence:
    """Return what checks of the fit look at: its data, and the table that they come from."""
    dataset = prepared.dataset
    return Evidence(
        posterior,
        prepared.train,
        prepared.test,
        budget=Budget(draws=prepared.spec.predict.num_draws),
        seed=posterior.seed,
        class_names=dataset.class_names,
        given=dataset.held_out(prepared.spec.data.split),
        imputer=dataset.imputer,
        table=dataset.data,
        columns=None if dataset.encoder is None else dataset.encoder.positions(),
        dropped=prepared.spec.data.drop,
    )


def _scored(work: Path, prepared: Prepared, evidence: Evidence) -> tuple[dict[str, Score], words.Baselines, list[str]]:
    """Write scores and predictions of the test part; return the scores, those of baselines, and doubts."""
    posterior, train, test, validation = evidence.posterior, prepared.train, prepared.test, prepared.validation
    prediction = predicted(prepared, posterior)
    scores = score(prediction, test.y)
    copies = copies_of(prepared.dataset.imputer, prepared.dataset.held_out(prepared.spec.data.split))
    baselines = simple_scores(evidence, copies, test.y)
    metrics = {"scores": scores, "baselines": baselines, "num_draws": evidence.budget.draws, "seed": posterior.seed}
    metrics |= {"num_train": len(train), "num_validation": 0 if validation is None else len(validation)}
    metrics |= {"num_steps": posterior.record.num_steps, "stop_reason": posterior.record.stop_reason}
    files.write_json(work / "metrics.json", metrics | {"num_test": len(test)})
    table = held_out_table(prepared, prediction) if test.y.ndim == 1 else pd.DataFrame()
    write_table(rounded(table), work / "held_out.csv")
    return scores, baselines, _below_zero(table, train.y)


def held_out_table(prepared: Prepared, prediction: Prediction) -> pd.DataFrame:
    """Return the row of the file, counted from 1, the target and the prediction of each held-out example."""
    dataset, y = prepared.dataset, prepared.test.y
    names, rows = dataset.class_names, np.asarray(dataset.rows(prepared.spec.data.split)[1])
    frame = prediction.to_frame(names or None).filter(regex=f"^({_HELD_OUT})$")
    frame.insert(0, "target", [names[number] for number in y.tolist()] if names else y.numpy())
    frame.insert(0, "row", rows + 1 if dataset.numbers is None else dataset.numbers[rows])
    return frame.sort_values("row")


def _below_zero(table: pd.DataFrame, y: Any) -> list[str]:
    """Return a line if targets were positive in all rows, and intervals reach below zero."""
    num = int((table["lower_95"] < 0).sum()) if "lower_95" in table else 0
    if num == 0 or not ((y > 0).all() and (table["target"] > 0).all()):
        return []
    keeps = "LogNormal keeps them positive (--set likelihood.type=log_normal)."
    return [f"{num} of {len(table)} intervals reach below 0, and the target was positive in all rows: {keeps}"]


def _final(work: Path, prepared: Prepared, fit: Posterior | Mixture, phase: Callable[..., Any]) -> Posterior | Mixture:
    """Return the fit that predicts new rows: to all rows of a small table, unless it is worse.

    Data sets by name have a test part for comparisons. No groups are left to judge a fit to all rows for new groups.
    """
    is_small = len(prepared.dataset.data) <= _MOST_ROWS_OF_A_SECOND_FIT
    if prepared.dataset.encoder is None or prepared.spec.data.groups is not None or not is_small:
        return fit
    spec, dataset = prepared.spec, prepared.spec.data.load(prepared.dataset.task, all_rows=True)
    train, test = dataset.to_fit(), dataset.split(spec.data.split)[1]
    if more := train.num_inputs - prepared.train.num_inputs:  # the held-out rows have another category
        spec = dataclasses.replace(spec, net=dataclasses.replace(spec.net, in_features=spec.net.in_features + more))
    whole, started = Prepared.of(spec, dataset, train, test, prepared.choice), time.perf_counter()
    with phase(f"fitting all {counted(len(dataset.data), 'row')}, for predictions"):
        final = _fit(whole, None, progress=False)
        pairs = (prepared, fit), (whole, final)
        before, after = (float(predicted(*pair).log_prob(test.y).mean()) for pair in pairs)
        if not after >= before - _TOLERATED_LOSS:
            return fit
        with new_folder(work / files.ALL_ROWS) as all_rows:
            _write_fit(all_rows, whole, final, time.perf_counter() - started)
    return final


def predicted(prepared: Prepared, posterior: Posterior | Mixture) -> Prediction:
    """Return the predictions for the test part, of which rows may lack values."""
    x = prepared.dataset.held_out(prepared.spec.data.split)
    return predict_copies(posterior, prepared.dataset.imputer, x, num_draws=prepared.spec.predict.num_draws)


def read_diagnosis(run_dir: str | Path) -> Diagnosis:
    """Return the diagnosis of the fit of a run; refuse one whose findings this version cannot say."""
    return files.read_json(files.run_folder(run_dir, "diagnosis.json") / "diagnosis.json", Diagnosis)


def _write_views(work: Path, result: RunResult, prepared: Prepared) -> None:
    """Write the pictures, the report and the file for ArviZ, each file or folder whole or not at all."""
    from pyrobnn.diagnostics.convert import to_datatree
    from pyrobnn.report import RunFacts, render

    spec, dataset, evidence = prepared.spec, prepared.dataset, result.evidence
    notes = [str(prepared.choice), *dataset.notes]
    if result.final is not evidence.posterior:
        all_rows, scored = len(dataset.data), round(evidence.train.total_weight)
        notes.append(f"New rows are predicted by a fit to {all_rows} rows. The scores are of a fit to {scored}.")
    facts = RunFacts(
        spec=spec.as_dict(),
        manifest=files.read_json(work / "manifest.json", dict[str, Any]),
        layout=() if dataset.encoder is None else dataset.encoder.layout(),
        notes=notes,
        doubts=(*dataset.doubts, *result.doubts),
        folder=str(result.path),
    )
    rendered = render(evidence, result.diagnosis, result.scores, result.baselines, facts)
    with new_folder(work / "figures") as figures:
        for name, png in rendered.figures.items():
            (figures / name).write_bytes(png)
    with new_file(work / "report.html") as file:
        file.write_text(rendered.html, encoding="utf-8")
    with new_file(work / "posterior.nc") as file:  # last: with ArviZ in memory Matplotlib loads JAX, if it is there
        is_weighted = evidence.train.weights is not None
        train = dataset.data[dataset.rows(spec.data.split)[0]] if is_weighted else evidence.train
        to_datatree(evidence.posterior, train, num_draws=spec.predict.num_draws).to_netcdf(file, engine="h5netcdf")

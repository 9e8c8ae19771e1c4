"""Runs: from a spec to a folder with the posterior, its scores, pictures and a report."""

import dataclasses
import datetime
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter
from safetensors.numpy import save

import pyrobnn
from pyrobnn._core.errors import InputError, counted
from pyrobnn._core.folders import new_file, new_folder
from pyrobnn._core.waiting import waiting
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.diagnosis import Diagnosis, diagnosis_of
from pyrobnn.inference.fit import fit_in_silence, tell_of_constants
from pyrobnn.inference.method import Run
from pyrobnn.metrics import Score, score
from pyrobnn.posterior.mixture import Mixture, predict_copies
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.report.words import summary
from pyrobnn.runs.folder import (
    ALL_ROWS,
    CHECKPOINT,
    begin,
    check_new_run,
    go_on,
    has_fit,
    kept,
    read_json,
    run_folder,
    write_json,
)
from pyrobnn.runs.predict import ROWS, rounded, write_table
from pyrobnn.runs.spec import Prepared, RunSpec
from pyrobnn.storage.load import load
from pyrobnn.storage.save import save as save_posterior
from pyrobnn.verdict.evidence import Budget, Evidence

CHECKPOINT_EVERY = 1000
"""Steps between two checkpoints of a run."""
_MOST_ROWS_OF_A_SECOND_FIT = 2000
"""On 60, 150, 400 and 1,000 rows of Friedman's function (1991) a fit to all has 0.59, 0.92, 0.99 and 0.99 times the
error of a fit to the training part, and takes 1 to 7 s."""
_TOLERATED_LOSS = 0.1
"""Nats an example by which draws and other starts may lower a log score on rows that were learned."""
_PACKAGES = ("torch", "pyro-ppl", "numpy", "arviz", "pydantic", "scikit-learn", "safetensors")


@dataclasses.dataclass(frozen=True, eq=False)
class RunResult:
    """The result of a run.

    `final` is the posterior for new rows, fitted to `num_learned` of a table of 2,000 rows at most, else `posterior`.
    `baselines` are the scores of a constant and of a linear model. `doubts` are lines on intervals that cannot be.
    """

    posterior: Posterior | Mixture
    train: Data
    test: Data
    scores: dict[str, Score]
    baselines: dict[str, dict[str, Score]]
    diagnosis: Diagnosis
    path: Path
    final: Posterior | Mixture
    num_learned: int
    doubts: tuple[str, ...]

    @property
    def learned(self) -> str:
        """A sentence on the rows that the posterior for new rows has learned, where they are others than `train`."""
        if self.final is self.posterior:
            return ""
        return (
            f"New rows are predicted by a fit to {self.num_learned} rows, the held-out ones among them. The scores are "
            f"of a fit to {len(self.train)}."
        )

    @property
    def summary(self) -> str:
        """What the terminal says of the fit: how well it predicts, the verdict, scores, and what is next."""
        return summary(
            scores=self.scores,
            baselines=self.baselines,
            train=self.train,
            num=len(self.test),
            diagnosis=self.diagnosis,
            folder=str(self.path),
            lines=self.doubts,
        )


def run(
    spec: RunSpec,
    out_dir: str | Path,
    *,
    progress: bool = True,
    overwrite: bool = False,
    tell: Callable[[str], object] = lambda _: None,
) -> RunResult:
    """Fit a spec, score the fit on the test part, and write the run folder.

    The fit comes first: posterior, of a table with gaps rows.safetensors, spec.toml (all defaults filled in) and
    manifest.json. Then come metrics.json, diagnosis.json, held_out.csv (the predictions of the test part), all_rows/
    (of a table of at most 2,000 rows a second fit, to the rows of the test part too, for `pyrobnn predict`), figures/,
    report.html and posterior.nc (for ArviZ). The same spec gives the same metrics and posterior on the same machine.

    Until all is there, the folder has unfinished.toml, the spec as it was given: the same call goes on, with an SVI fit
    from its last checkpoint to the same bits. Bad input is refused before the folder is made, and so is a folder with
    another run, without `overwrite`. `tell` is called with lines on the data and the columns before the fit.
    """
    path, started = Path(out_dir), time.perf_counter()
    check_new_run(path, overwrite=overwrite)
    prepared = spec.prepare(tell, progress=progress)
    begin(path, spec.to_toml(), overwrite=overwrite)
    with kept(path):
        posterior = _fitted(prepared, path, started, progress=progress)
        with waiting("scoring and checking the fit", shown=progress):
            judged = _judged(prepared, posterior, path)
        result = _with_all_rows(judged, prepared, progress=progress)
        with waiting("drawing the pictures and writing the report", shown=progress):
            _write_views(result, prepared)
    return result


def _fitted(prepared: Prepared, path: Path, started: float, *, progress: bool) -> Posterior | Mixture:
    """Return the fit to the training part, and write it, if it is not there yet."""
    if has_fit(path):
        if read_json(path / "manifest.json")["data"]["sha256"] != prepared.dataset.checksum:
            raise InputError(f"The data of {path} have changed since its fit: start anew in another folder.")
        return load(path / "posterior")
    posterior = _fit(prepared, path / CHECKPOINT, progress=progress)
    (path / "posterior").unlink(missing_ok=True)
    _write_fit(path, prepared, posterior, time.perf_counter() - started)
    return posterior


def _fit(prepared: Prepared, checkpoint: Path | None, *, progress: bool) -> Posterior | Mixture:
    spec = prepared.spec
    checkpoint = checkpoint if spec.method.offer().resumable else None
    run_of_fit = Run(
        seed=spec.fit.seed,
        device=spec.fit.device,
        engine=spec.fit.engine,
        progress=progress,
        validation=prepared.validation,
        checkpoint=checkpoint,
        every=CHECKPOINT_EVERY,
        choice=prepared.choice,
        method=None if checkpoint is None else spec.method,
    )
    if prepared.dataset.encoder is None:  # the notes of a table name its constant columns
        tell_of_constants(prepared.train)
    return fit_in_silence(prepared.bnn, prepared.train, spec.method, run_of_fit)


def _write_fit(place: Path, prepared: Prepared, posterior: Posterior | Mixture, seconds: float) -> None:
    """Write posterior, the rows from which missing values are drawn, spec and manifest, which is last."""
    imputer = prepared.dataset.imputer
    save_posterior(posterior, place / "posterior")
    if imputer is not None:
        (place / ROWS).write_bytes(save({"rows": imputer.rows}))
    (place / "spec.toml").write_text(prepared.spec.to_toml(), encoding="utf-8")
    write_json(place / "manifest.json", make_manifest(prepared, posterior.members[0], seconds))


def make_manifest(prepared: Prepared, posterior: Posterior, wall_seconds: float) -> dict[str, Any]:
    """Return versions, commit, seed, data, device and time of a run, and the data's properties for prediction."""
    dataset, data, record = prepared.dataset, prepared.dataset.data, posterior.record
    return {
        "pyrobnn": pyrobnn.__version__,
        "packages": {name: version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "seed": prepared.spec.fit.seed,
        "data": {
            "name": dataset.name,
            "task": dataset.task,
            "sha256": dataset.checksum,
            "source": dataset.source,
            "licence": dataset.licence,
            "feature_names": list(data.feature_names),
            "target_name": data.target_name,
            "class_names": list(dataset.class_names),
            "encoder": dataset.encoder,
        },
        "device": record.device,
        "threads": record.threads,
        "engine": dataclasses.asdict(record.engine) if record.engine else None,
        "wall_seconds": round(wall_seconds, 3),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _judged(prepared: Prepared, posterior: Posterior | Mixture, path: Path) -> RunResult:
    """Write scores, diagnosis and predictions of the test part, and return them as the result so far."""
    train, test, evidence = prepared.train, prepared.test, _evidence(prepared, posterior)
    prediction = _predicted(prepared, posterior)
    scores = score(prediction, test.y)
    baselines = _simple_scores(evidence)
    validation = prepared.validation
    metrics = {
        "scores": scores,
        "baselines": baselines,
        "num_train": len(train),
        "num_validation": 0 if validation is None else len(validation),
        "num_test": len(test),
        "num_draws": prepared.spec.predict.num_draws,
        "num_steps": posterior.record.num_steps,
        "stop_reason": posterior.record.stop_reason,
        "seed": posterior.seed,
    }
    write_json(path / "metrics.json", metrics)
    diagnosis = diagnosis_of(evidence)
    write_json(path / "diagnosis.json", diagnosis)
    doubts: tuple[str, ...] = ()
    if test.y.ndim == 1:
        table = held_out_table(prepared, prediction)
        write_table(rounded(table), path / "held_out.csv")
        doubts = _below_zero(table, train.y)
    return RunResult(posterior, train, test, scores, baselines, diagnosis, path, posterior, len(train), doubts)


def _evidence(prepared: Prepared, posterior: Posterior | Mixture) -> Evidence:
    """Return what the fit is judged by, for the table of scores, the diagnosis and the report."""
    dataset, budget, settings = prepared.dataset, Budget(draws=prepared.spec.predict.num_draws), prepared.spec.data
    columns = None if dataset.encoder is None else dataset.encoder.positions()
    of_file: dict[str, Any] = {"table": dataset.data, "columns": columns, "dropped": settings.drop}
    data = prepared.train, prepared.test
    return Evidence(posterior, *data, budget, posterior.seed, dataset.class_names, **of_file)


def _simple_scores(evidence: Evidence) -> dict[str, dict[str, Score]]:
    """Return the scores of a constant and a linear model; errors of means are those of least squares."""
    assert evidence.held_out is not None
    test, ordinary = evidence.held_out, evidence.ordinary
    scores = {name: dict(score(model.predict(test.x), test.y)) for name, model in evidence.baselines.items()}
    if ordinary is not None:
        found = score(ordinary.predict(test.x), test.y)
        scores["linear"] |= {name: found[name] for name in ("r2", "rmse", "mae", "median_error") if name in found}
    return scores


_SHOWN = ("median", "mean", "std", "lower_95", "upper_95", "class")


def held_out_table(prepared: Prepared, prediction: Prediction) -> pd.DataFrame:
    """Return the row of the file, counted from 1, the target and the prediction of each held-out example."""
    dataset, y = prepared.dataset, prepared.test.y
    names = dataset.class_names
    frame = prediction.to_frame(names or None)
    frame = frame[[name for name in map(str, frame) if name in _SHOWN or name.startswith("prob_")]]
    target = [names[number] for number in y.tolist()] if names else y.numpy()
    rows = np.asarray(dataset.rows(prepared.spec.data.split)[1])
    frame.insert(0, "target", target)
    frame.insert(0, "row", rows + 1 if dataset.numbers is None else dataset.numbers[rows])
    return frame.sort_values("row")


def _below_zero(table: pd.DataFrame, y: Any) -> tuple[str, ...]:
    """Return a line if targets were positive in all rows, and intervals reach below zero."""
    num = int((table["lower_95"] < 0).sum()) if "lower_95" in table else 0
    if num == 0 or not ((y > 0).all() and (table["target"] > 0).all()):
        return ()
    return (
        f"{num} of {len(table)} intervals reach below 0, and the target was positive in all rows: LogNormal keeps them "
        "positive (--set likelihood.type=log_normal).",
    )


def _with_all_rows(judged: RunResult, prepared: Prepared, *, progress: bool) -> RunResult:
    """Return the result with the fit that predicts new rows.

    It is a fit to all rows, which is written too; or the fit that was judged, for a large table, or where the other is
    worse on the test part, which it learned.
    """
    whole = with_all_rows(prepared)
    if whole is None:
        return judged
    with waiting(f"fitting all {counted(len(whole.train), 'row')}, for predictions", shown=progress):
        started = time.perf_counter()
        final = _fit(whole, None, progress=False)
        found, before = (
            float(_predicted(*pair).log_prob(prepared.test.y).mean())
            for pair in ((whole, final), (prepared, judged.posterior))
        )
        if not found >= before - _TOLERATED_LOSS:
            return judged
        with new_folder(judged.path / ALL_ROWS, replaces=lambda _: True) as place:
            _write_fit(place, whole, final, time.perf_counter() - started)
        return dataclasses.replace(judged, final=final, num_learned=len(whole.train))


def with_all_rows(prepared: Prepared) -> Prepared | None:
    """Return the run with all rows in its training part, or None where the fit to the training part stays the last.

    That is so for large tables, and for data sets by name, whose test part is there for comparisons. The test part
    has the same rows as before.
    """
    spec = prepared.spec
    if prepared.dataset.encoder is None or len(prepared.dataset.data) > _MOST_ROWS_OF_A_SECOND_FIT:
        return None
    dataset = spec.data.load(prepared.dataset.task, all_rows=True)
    _, test = dataset.split(spec.data.split)
    train, validation, net = dataset.to_fit(), None, spec.net
    if spec.data.validation is not None:
        train, validation = train.split(spec.data.validation, seed=spec.fit.seed)
    if (width := train.num_inputs) != prepared.train.num_inputs:  # the others have another category
        net = dataclasses.replace(net, in_features=width)
    spec = dataclasses.replace(spec, net=net)
    bnn = BNN(net, prior=spec.prior, likelihood=spec.likelihood)
    return dataclasses.replace(
        prepared, spec=spec, dataset=dataset, train=train, validation=validation, test=test, bnn=bnn
    )


def _predicted(prepared: Prepared, posterior: Posterior | Mixture) -> Prediction:
    """Return the predictions for the test part, of which rows may lack values."""
    x = prepared.dataset.held_out(prepared.spec.data.split)
    return predict_copies(posterior, prepared.dataset.imputer, x, num_draws=prepared.spec.predict.num_draws)


def read_diagnosis(run_dir: str | Path) -> Diagnosis:
    """Return the diagnosis of the fit of a run."""
    folder = run_folder(run_dir)
    file = folder / "diagnosis.json"
    if not file.is_file():
        raise InputError(f"{folder} has no diagnosis.json, the run was interrupted: `{go_on(folder)}` goes on with it.")
    return TypeAdapter(Diagnosis).validate_json(file.read_bytes())


def _write_views(result: RunResult, prepared: Prepared) -> None:
    """Write the pictures, the report and the file for ArviZ, each file or folder whole or not at all."""
    from pyrobnn.diagnostics.convert import to_datatree
    from pyrobnn.report import Facts, render

    folder, spec, dataset = result.path, prepared.spec, prepared.dataset
    encoder = dataset.encoder
    facts = Facts(
        spec=spec.as_dict(),
        manifest=read_json(folder / "manifest.json"),
        class_names=dataset.class_names,
        columns=None if encoder is None else encoder.positions(),
        first_days={} if encoder is None else encoder.first_days(),
        notes=[prepared.sentence, *dataset.notes, *filter(None, [result.learned])],
        doubts=(*dataset.doubts, *result.doubts),
        folder=str(folder),
    )
    rendered = render(
        result.posterior,
        train=result.train,
        test=result.test,
        scores=result.scores,
        baselines=result.baselines,
        diagnosis=result.diagnosis,
        facts=facts,
    )
    with new_folder(folder / "figures", replaces=lambda _: True) as figures:
        for name, png in rendered.figures.items():
            (figures / name).write_bytes(png)
    with new_file(folder / "report.html") as file:
        file.write_text(rendered.html, encoding="utf-8")
    with new_file(folder / "posterior.nc") as file:  # last: with ArviZ in memory Matplotlib loads JAX, if it is there
        is_weighted = result.train.weights is not None
        rows = dataset.data[dataset.rows(spec.data.split)[0]] if is_weighted else result.train
        tree = to_datatree(result.posterior, rows, num_draws=spec.predict.num_draws)
        tree.to_netcdf(file, engine="h5netcdf")

"""Runs: from a spec to a folder with the posterior, its scores, pictures and a report."""

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pyrobnn._core.errors import InputError, counted
from pyrobnn._core.folders import check_free, new_file, new_folder
from pyrobnn._core.remedies import Remedy
from pyrobnn._core.waiting import waiting
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.data.leaks import LEAK, leaks
from pyrobnn.datasets.table import columns_of, first_days_of
from pyrobnn.diagnostics.diagnosis import Diagnosis, diagnose
from pyrobnn.inference.fit import fit_in_silence, tell_of_constants
from pyrobnn.inference.method import Run
from pyrobnn.metrics import Score, score
from pyrobnn.posterior.mixture import Mixture, predict_copies
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.runs.files import ALL_ROWS_FOLDER, write_fit, write_json
from pyrobnn.runs.run_folders import check_new_run, go_on, is_complete, is_run_folder, run_folder, unfinished_folder
from pyrobnn.runs.spec import Prepared, RunSpec
from pyrobnn.storage.load import load
from pyrobnn.verdict.baselines import Baseline, fit_baselines
from pyrobnn.verdict.finding import Finding

CHECKPOINT_EVERY = 1000
"""Steps between two checkpoints of a run."""
_MOST_ROWS_OF_A_SECOND_FIT = 2000
"""On 60, 150, 400 and 1,000 rows of Friedman's function (1991) a fit to all has 0.59, 0.92, 0.99 and 0.99 times the
error of a fit to the training part, and takes 1 to 7 s."""
_TOLERATED_LOSS = 0.1
"""Nats an example by which draws and other starts may lower a log score on rows that were learned."""


@dataclasses.dataclass(frozen=True, eq=False)
class RunResult:
    """The result of a run.

    `final` is the posterior for new rows, fitted to `num_learned` of a table of 2,000 rows at most, else `posterior`.
    `baselines` are the scores of a constant and of a linear model.
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

    @property
    def learned(self) -> str:
        """A sentence on the rows that the posterior for new rows has learned, where they are others than `train`."""
        if self.final is self.posterior:
            return ""
        return (
            f"New rows are predicted by a fit to {self.num_learned} rows, the held-out ones among them. The scores are "
            f"of a fit to {len(self.train)}."
        )


def run(
    spec: RunSpec,
    out_dir: str | Path,
    *,
    progress: bool = True,
    overwrite: bool = False,
    on_prepared: Callable[[Prepared], object] = lambda _: None,
) -> RunResult:
    """Fit a spec, score the fit on the test part, and write the run folder.

    The folder appears with spec.toml (all defaults filled in), posterior, manifest.json, and of a table with gaps
    rows.safetensors. Then come metrics.json, diagnosis.json, figures/, report.html and posterior.nc (for ArviZ);
    if one fails, the fit stays. Of a table of at most 2,000 rows all_rows/ has a second fit, to the rows of the test
    part too, for `pyrobnn predict`. While an SVI fit runs, a folder with the ending ".unfinished" has spec and
    checkpoint, for `resume`. The same spec gives the same metrics and posterior on the same machine.

    An earlier or interrupted run in the folder is refused without `overwrite`. `on_prepared` is called before training
    with the spec, checked against its data.
    """
    path = Path(out_dir)
    check_new_run(path, overwrite=overwrite)
    started = time.perf_counter()
    prepared = spec.prepare()
    on_prepared(prepared)
    shutil.rmtree(unfinished_folder(path), ignore_errors=True)
    return _run(prepared, path, started, progress=progress)


def resume(run_dir: str | Path, *, progress: bool = True) -> RunResult:
    """Resume an interrupted run: its fit from the last checkpoint, or the files that are made from the fit."""
    path, unfinished = Path(run_dir), unfinished_folder(run_dir)
    started = time.perf_counter()
    if (unfinished / "spec.toml").is_file():
        check_free(path, is_run_folder)
        prepared = RunSpec.from_toml(unfinished / "spec.toml").prepare()
        return _run(prepared, path, started, progress=progress)
    if not is_run_folder(path):
        raise InputError(f"There is no interrupted run {unfinished}, and no run folder {path}: start one with a spec.")
    if is_complete(path):
        raise InputError(f"{path} is complete: there is nothing to go on with.")
    prepared = RunSpec.from_toml(path / "spec.toml").prepare()
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    return _judge(prepared, load(path / "posterior"), path, manifest, progress=progress)


def _run(prepared: Prepared, path: Path, started: float, *, progress: bool) -> RunResult:
    with new_folder(path, replaces=is_run_folder) as folder, _unfinished(prepared, path) as checkpoint:
        posterior = _fit(prepared, checkpoint, progress=progress)
        (folder / "spec.toml").write_text(prepared.spec.to_toml(), encoding="utf-8")
        manifest = write_fit(folder, prepared, posterior, time.perf_counter() - started)
    shutil.rmtree(unfinished_folder(path), ignore_errors=True)
    return _judge(prepared, posterior, path, manifest, progress=progress)


@contextmanager
def _unfinished(prepared: Prepared, path: Path) -> Iterator[Path | None]:
    """Yield a folder for spec and checkpoints; None for a method that keeps none.

    After an error it stays if the fit can go on from a checkpoint, and a note says how.
    """
    folder = unfinished_folder(path)
    keeps = prepared.spec.method.offer().resumable
    try:
        if keeps:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "spec.toml").write_text(prepared.spec.to_toml(), encoding="utf-8")
        yield folder if keeps else None
    except BaseException as error:
        if isinstance(error, FloatingPointError) or not any(folder.glob("*.safetensors")):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            error.add_note(f"`{go_on(path)}` goes on with the fit from its last checkpoint.")
        raise


def _fit(prepared: Prepared, checkpoint: Path | None, *, progress: bool) -> Posterior | Mixture:
    spec = prepared.spec
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


def _judge(
    prepared: Prepared, posterior: Posterior | Mixture, path: Path, manifest: dict[str, Any], *, progress: bool
) -> RunResult:
    """Add the files that are made from the fit to the run folder."""
    try:
        with waiting("scoring the fit", shown=progress):
            test, simple = prepared.test, fit_baselines(posterior.bnn, prepared.train)
            scores = score(_predicted(prepared, posterior), test.y)
            baselines = {name: dict(score(model.predict(test.x), test.y)) for name, model in simple.items()}
            write_json(path / "metrics.json", _metrics(prepared, posterior, scores, baselines))
        with waiting("checking the fit", shown=progress):
            diagnosis = _diagnose(prepared, posterior, simple)
            write_json(path / "diagnosis.json", diagnosis)
        final, num_learned = _fit_for_new_rows(prepared, posterior, path, progress=progress)
        result = RunResult(posterior, prepared.train, test, scores, baselines, diagnosis, path, final, num_learned)
        with waiting("drawing the pictures and writing the report", shown=progress):
            _write_views(result, prepared, manifest)
    except BaseException as error:
        error.add_note(f"The fit itself is safe in {path}; `{go_on(path)}` makes the missing files.")
        raise
    return result


def _diagnose(prepared: Prepared, posterior: Posterior | Mixture, simple: dict[str, Baseline]) -> Diagnosis:
    """Return the diagnosis of a fit, with the columns that may tell its target first."""
    diagnosis = diagnose(
        posterior,
        prepared.train,
        prepared.test,
        num_draws=prepared.spec.predict.num_draws,
        class_names=prepared.dataset.class_names,
        baselines=simple,
    )
    leaking = (
        Finding(LEAK, "note", text, remedies=(_without(name, prepared),))
        for name, text in leaks(prepared.train).items()
    )
    return dataclasses.replace(diagnosis, findings=(*leaking, *diagnosis.findings))


def _fit_for_new_rows(
    prepared: Prepared, judged: Posterior | Mixture, path: Path, *, progress: bool
) -> tuple[Posterior | Mixture, int]:
    """Return the fit that predicts new rows, and the number of rows that it learned.

    It is a fit to all rows, which is written too; or the fit that was judged, for a large table, or where the other is
    worse on the test part, which it learned.
    """
    whole = with_all_rows(prepared)
    if whole is None:
        return judged, len(prepared.train)
    with waiting(f"fitting all {counted(len(whole.train), 'row')}, for predictions", shown=progress):
        started = time.perf_counter()
        final = _fit(whole, None, progress=False)
        found, before = (
            float(_predicted(*pair).log_prob(prepared.test.y).mean()) for pair in ((whole, final), (prepared, judged))
        )
        if not found >= before - _TOLERATED_LOSS:
            return judged, len(prepared.train)
        with new_folder(path / ALL_ROWS_FOLDER, replaces=lambda _: True) as place:
            write_fit(place, whole, final, time.perf_counter() - started)
        return final, len(whole.train)


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


def _without(name: str, prepared: Prepared) -> Remedy:
    """Return the remedy that leaves out a column of the table."""
    made = {} if prepared.dataset.encoder is None else columns_of(prepared.dataset.encoder)
    at = prepared.train.feature_names.index(name)
    column = next((column for column, places in made.items() if at in places), name)
    words = f"leave out {column!r}"
    return Remedy(words, words, (f"data.drop={json.dumps([*prepared.spec.data.drop, column])}",))


def read_diagnosis(run_dir: str | Path) -> Diagnosis:
    """Return the diagnosis of the fit of a run."""
    folder = run_folder(run_dir)
    file = folder / "diagnosis.json"
    if not file.is_file():
        raise InputError(
            f"{folder} has no diagnosis.json: the run was interrupted, or the file could not be written. To judge the "
            f"fit, go on with `{go_on(folder)}`."
        )
    return TypeAdapter(Diagnosis).validate_json(file.read_bytes())


def _write_views(result: RunResult, prepared: Prepared, manifest: dict[str, Any]) -> None:
    """Write the pictures, the report and the file for ArviZ, each file or folder whole or not at all."""
    from pyrobnn.diagnostics.convert import to_datatree
    from pyrobnn.report import Facts, render

    folder, spec, dataset = result.path, prepared.spec, prepared.dataset
    encoder = dataset.encoder
    facts = Facts(
        spec=spec.as_dict(),
        manifest=manifest,
        class_names=dataset.class_names,
        columns=None if encoder is None else columns_of(encoder),
        first_days={} if encoder is None else first_days_of(encoder),
        notes=[*dataset.notes, *filter(None, [result.learned])],
        doubts=dataset.doubts,
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


def _metrics(
    prepared: Prepared, posterior: Posterior | Mixture, scores: dict[str, Score], baselines: dict[str, dict[str, Score]]
) -> dict[str, Any]:
    return {
        "scores": scores,
        "baselines": baselines,
        "num_train": len(prepared.train),
        "num_validation": 0 if prepared.validation is None else len(prepared.validation),
        "num_test": len(prepared.test),
        "num_draws": prepared.spec.predict.num_draws,
        "num_steps": posterior.record.num_steps,
        "stop_reason": posterior.record.stop_reason,
        "seed": posterior.seed,
    }

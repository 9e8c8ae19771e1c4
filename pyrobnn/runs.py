"""Runs: from a spec to a folder with the posterior, its scores, pictures and a report, and predictions from it."""

import dataclasses
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrobnn._errors import InputError
from pyrobnn._folders import check_free, new_folder
from pyrobnn._manifest import make_manifest
from pyrobnn.data import Data
from pyrobnn.datasets import load_features
from pyrobnn.diagnostics.findings import Diagnosis, Finding
from pyrobnn.inference import fit
from pyrobnn.metrics import Score, score
from pyrobnn.mixture import Mixture, members_of
from pyrobnn.posterior import Posterior
from pyrobnn.prediction import Prediction
from pyrobnn.spec import Prepared, RunSpec
from pyrobnn.storage import load_posterior, save_posterior

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclasses.dataclass(frozen=True, eq=False)
class RunResult:
    """What a run gave.

    Attributes:
        posterior: the posterior, or a mixture of those of the members of an ensemble.
        train: the data it was trained on.
        test: the data it was scored on.
        scores: the scores on the test data by name.
        diagnosis: what speaks against the fit.
        path: the run folder.
    """

    posterior: Posterior | Mixture
    train: Data
    test: Data
    scores: dict[str, Score]
    diagnosis: Diagnosis
    path: Path


def run(spec: RunSpec, out_dir: str | Path, *, progress: bool = True, overwrite: bool = False) -> RunResult:
    """Fit what a spec describes, score it on the test part, and write the run folder.

    The folder has spec.toml (the spec with everything filled in), metrics.json, diagnosis.json, posterior/,
    posterior.nc (for ArviZ), figures/, report.html and manifest.json. It appears with spec, posterior and manifest in
    it; if the fit fails nothing is left of it. What is made from the fit is added one after the other; if one of them
    fails the fit stays. The same spec gives the same metrics.json and posterior/tensors.safetensors, byte for
    byte, on the same machine.

    Args:
        spec: the run.
        out_dir: the folder to make.
        progress: show a progress bar.
        overwrite: replace the folder if it is that of an earlier run.

    Raises:
        InputError: the folder exists, or anything in the spec that does not fit together, before training.
        FloatingPointError: the ELBO is no longer finite.
    """
    from pyrobnn.diagnostics.diagnosis import diagnose

    path, replaces = Path(out_dir), _is_run_folder if overwrite else None
    check_free(path, replaces)
    started = time.perf_counter()
    prepared = spec.prepare()
    with new_folder(path, replaces=replaces) as folder:
        posterior: Posterior | Mixture = fit(
            prepared.bnn,
            prepared.spec.method,
            prepared.train,
            seed=spec.fit.seed,
            device=spec.fit.device,
            engine=spec.fit.engine,
            progress=progress,
            validation=prepared.validation,
        )
        manifest = make_manifest(prepared, members_of(posterior)[0], time.perf_counter() - started)
        (folder / "spec.toml").write_text(prepared.spec.to_toml(), encoding="utf-8")
        _write_json(folder / "manifest.json", manifest)
        save_posterior(posterior, folder / "posterior")
    train, test, num_draws = prepared.train, prepared.test, spec.predict.num_draws
    try:
        scores = score(posterior.predict(test.x, num_draws=num_draws), test.y)
        _write_json(path / "metrics.json", _metrics(prepared, posterior, scores))
        diagnosis = diagnose(posterior, train, test, num_draws=num_draws)
        _write_json(path / "diagnosis.json", dataclasses.asdict(diagnosis))
        _write_views(path, prepared, posterior, scores, diagnosis=diagnosis, manifest=manifest)
    except BaseException as error:
        error.add_note(f"The fit itself is safe in {path}; what could not be written are scores, checks or pictures.")
        raise
    return RunResult(posterior, train, test, scores, diagnosis, path)


def predict_table(run_dir: str | Path, table: str | Path) -> "DataFrame":
    """Predict for the rows of a CSV or Parquet file with the posterior of a run.

    Args:
        run_dir: a run folder.
        table: a file with the feature columns of the training data; other columns are ignored.

    Returns:
        One row an input. Regression: mean, std, epistemic_std, aleatoric_std, lower_95, upper_95. Classification:
        class, prob_<class> for each class, entropy, mutual_information (in nats).

    Raises:
        InputError: not a run folder, or a table that does not fit.
    """
    import pandas as pd

    folder = run_folder(run_dir)
    data = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["data"]
    x = load_features(table, data["feature_names"])
    num_draws = RunSpec.from_toml(folder / "spec.toml").predict.num_draws
    prediction = load_posterior(folder / "posterior").predict(x, num_draws=num_draws)
    columns = _class_columns(prediction, data["class_names"]) if data["class_names"] else _real_columns(prediction)
    return pd.DataFrame(columns)


def read_diagnosis(run_dir: str | Path) -> Diagnosis:
    """Return what was found against the fit of a run.

    Raises:
        InputError: not a run folder, or one from before runs were diagnosed.
    """
    folder = run_folder(run_dir)
    file = folder / "diagnosis.json"
    if not file.is_file():
        raise InputError(
            f"{folder} has no diagnosis.json: an earlier version made it, or it could not be written. Fit again."
        )
    table = json.loads(file.read_text(encoding="utf-8"))
    return Diagnosis(tuple(Finding(**finding) for finding in table["findings"]), table["false_alarm_rate"])


def run_folder(run_dir: str | Path) -> Path:
    """Return the path of a run folder; what is none is refused."""
    folder = Path(run_dir)
    if not _is_run_folder(folder):
        raise InputError(f"{folder} is not a run folder, it has no spec.toml and manifest.json: pass one of `fit`.")
    return folder


def _is_run_folder(path: Path) -> bool:
    return all((path / name).is_file() for name in ("spec.toml", "manifest.json"))


def _write_views(
    folder: Path,
    prepared: Prepared,
    posterior: Posterior | Mixture,
    scores: dict[str, Score],
    *,
    diagnosis: Diagnosis,
    manifest: dict[str, Any],
) -> None:
    """Write what is made from the fit, each file or folder whole or not at all."""
    from pyrobnn.diagnostics.convert import to_datatree
    from pyrobnn.report import render

    spec, train = prepared.spec, prepared.train
    with _new_file(folder / "posterior.nc") as file:
        to_datatree(posterior, train, num_draws=spec.predict.num_draws).to_netcdf(file, engine="h5netcdf")
    rendered = render(
        posterior,
        train=train,
        test=prepared.test,
        scores=scores,
        diagnosis=diagnosis,
        spec=spec.as_dict(),
        manifest=manifest,
        class_names=prepared.dataset.class_names,
    )
    with new_folder(folder / "figures") as figures:
        for name, png in rendered.figures.items():
            (figures / name).write_bytes(png)
    with _new_file(folder / "report.html") as file:
        file.write_text(rendered.html, encoding="utf-8")


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path` whose file takes its place at the end; after an error nothing is left."""
    work = path.with_name(f".{path.name}.part")
    try:
        yield work
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)


def _metrics(prepared: Prepared, posterior: Posterior | Mixture, scores: dict[str, Score]) -> dict[str, Any]:
    validation = prepared.validation
    return {
        "scores": {name: dataclasses.asdict(entry) for name, entry in scores.items()},
        "num_train": len(prepared.train),
        "num_validation": 0 if validation is None else len(validation),
        "num_test": len(prepared.test),
        "num_draws": prepared.spec.predict.num_draws,
        "num_steps": posterior.info.get("num_steps"),
        "stop_reason": posterior.info.get("stop_reason"),
        "seed": posterior.seed,
    }


def _write_json(path: Path, values: dict[str, Any]) -> None:
    with _new_file(path) as file:
        file.write_text(json.dumps(_plain(values), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it, with null for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _real_columns(prediction: Prediction) -> dict[str, Any]:
    lower, upper = prediction.interval(0.95)
    columns = {
        "mean": prediction.mean,
        "std": prediction.std,
        "epistemic_std": prediction.epistemic_std,
        "aleatoric_std": prediction.aleatoric_std,
        "lower_95": lower,
        "upper_95": upper,
    }
    return {name: values.cpu().numpy() for name, values in columns.items()}


def _class_columns(prediction: Prediction, class_names: list[str]) -> dict[str, Any]:
    labels = [class_names[index] for index in prediction.label.tolist()]
    probs = prediction.class_probs.cpu().numpy()
    by_class = {f"prob_{name}": probs[:, index] for index, name in enumerate(class_names)}
    uncertainty = {
        "entropy": prediction.entropy.cpu().numpy(),
        "mutual_information": prediction.mutual_information.cpu().numpy(),
    }
    return {"class": labels} | by_class | uncertainty

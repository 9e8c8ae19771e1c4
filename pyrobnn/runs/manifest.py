"""The manifest of a run: versions, commit, data and device."""

import dataclasses
import datetime
import json
import math
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyrobnn
from pyrobnn._core.folders import new_file
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.runs.spec import Prepared

_PACKAGES = ("torch", "pyro-ppl", "numpy", "arviz", "pydantic", "scikit-learn", "safetensors")


def make_manifest(prepared: Prepared, posterior: Posterior, wall_seconds: float) -> dict[str, Any]:
    """Return versions, commit, seed, data, device and time of a run, and the data's properties for prediction."""
    dataset, data = prepared.dataset, prepared.dataset.data
    return {
        "pyrobnn": pyrobnn.__version__,
        "packages": {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": _git(),
        "seed": prepared.spec.fit.seed,
        "data": {
            "name": dataset.name,
            "task": dataset.task,
            "sha256": dataset.checksum,
            "source": dataset.source,
            "licence": dataset.licence,
            "feature_names": list(data.feature_names),
            "target_name": data.target_name,
            "target_range": _range(prepared),
            "class_names": list(dataset.class_names),
            "encoder": dataset.encoder,
        },
        "device": posterior.record.device,
        "threads": posterior.record.threads,
        "engine": dataclasses.asdict(posterior.record.engine) if posterior.record.engine else None,
        "wall_seconds": round(wall_seconds, 3),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a file, whole or not at all; null stands for numbers that are not finite."""
    with new_file(path) as file:
        file.write_text(json.dumps(_plain(values), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it, with null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _range(prepared: Prepared) -> list[float] | None:
    """Return the least and the largest target that was learned, of one column of numbers."""
    y = prepared.train.y
    is_of_numbers = prepared.dataset.task == "regression" and y.ndim == 1
    return [float(y.min()), float(y.max())] if is_of_numbers else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Return the commit of the checkout that pyrobnn runs from, and whether it has changes; None if installed."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    try:
        return {"commit": _git_output(root, "rev-parse", "HEAD"), "changed": bool(_git_output(root, "status", "-s"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git_output(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()

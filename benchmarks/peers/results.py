"""The file of results: what is in it, and how a new run is merged into it."""

import json
import os
import platform
import re
from pathlib import Path
from statistics import median, quantiles
from typing import Any

FOLDER = Path(__file__).parents[1] / "results"


def describe_machine() -> dict[str, Any]:
    """Return the processor's model, the number of cores that may be used, and the platform."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    model = found.group(1).strip() if found else platform.processor() or platform.machine()
    return {"cpu": model, "cores": os.cpu_count(), "platform": f"{platform.system()} {platform.machine()}"}


def machine_name(machine: dict[str, Any]) -> str:
    """Return a name for files from the processor and its cores."""
    slug = re.sub(r"[^a-z0-9]+", "-", str(machine["cpu"]).lower()).strip("-")
    return f"{slug}-{machine['cores']}-cores"


def summarize(rounds: list[list[float]], replicates: int) -> dict[str, Any]:
    """Return median and quartiles over all blocks, and the median of each round, in ms per step and replicate."""
    per_replicate = [[ms / replicates for ms in blocks] for blocks in rounds]
    every_block = [ms for blocks in per_replicate for ms in blocks]
    first, middle, third = quantiles(every_block, n=4, method="inclusive")
    return {
        "median": _rounded(middle),
        "quartiles": [_rounded(first), _rounded(third)],
        "rounds": [_rounded(median(blocks)) for blocks in per_replicate],
        "blocks": len(every_block),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def load(path: Path) -> dict[str, Any]:
    """Return the results in a file, or none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"cases": {}}


def save(path: Path, results: dict[str, Any]) -> None:
    """Write results, cases and engines in the order in which they were first measured."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

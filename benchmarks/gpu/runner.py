"""Runs the parts of the GPU kit, each in a separate process with a time limit, and keeps their rows."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.check import Setting
from benchmarks.gpu.page import write
from benchmarks.provenance import git_commit, machine

_ROOT = Path(__file__).parents[2]
_KEPT = ("ok", "not here")
"""Status of rows that `resume` does not do again."""
WHOLE = "the whole part"
"""Name of the row that says how a part as a whole came to fail."""


@dataclass(frozen=True)
class Part:
    """A part of the kit.

    Attributes:
        module: has `checks(setting)`.
        seconds: time for its checks on a card.
        rehearsal: time for them in a rehearsal, which is small enough to need no limit but on a busy machine.
    """

    module: str
    seconds: float
    rehearsal: float = 300.0


PARTS = {
    "agreement": Part("benchmarks.gpu.parts.agreement", 130),
    "graphs": Part("benchmarks.gpu.parts.graphs", 45),
    "steps": Part("benchmarks.gpu.parts.steps", 120),
    "resnet": Part("benchmarks.gpu.parts.resnet", 40),
    "laplace": Part("benchmarks.gpu.parts.laplace", 25),
    "mnist": Part("benchmarks.gpu.parts.mnist", 50),
    "lifecycle": Part("benchmarks.gpu.parts.lifecycle", 30),
}
_TOTAL = 465.0
"""Seconds for all parts on a card; no part gets more than the rest of them."""
_GRACE = {False: 25.0, True: 240.0}
"""Seconds by which a part may go over its time before its process is ended, on a card and in a rehearsal."""


def run_parts(
    parts: Mapping[str, Part], out: Path, *, device: str, rehearse: bool, resume: bool, grace: float | None = None
) -> int:
    """Run parts one after the other, write each row as soon as it is known, and return how many failed.

    Args:
        parts: by name.
        out: path of the results, without a suffix; rows on file of parts that are not run stay.
        device: "cuda" or "cpu".
        rehearse: run everything small.
        resume: keep the rows on file of these parts that did not fail.
        grace: seconds that a part may go on after its time; by default 25, or 240 in a rehearsal.
    """
    found = _read(out)
    kept = [row for row in found["rows"] if row["part"] not in parts or (resume and row["status"] in _KEPT)]
    results = {"machine": machine(os.cpu_count() or 1), "git": git_commit(), "rehearsal": rehearse, "rows": kept}
    failures, began = 0, time.perf_counter()
    grace = _GRACE[rehearse] if grace is None else grace
    for name, part in parts.items():
        left = _TOTAL - (time.perf_counter() - began)
        setting = Setting(device, rehearse, part.rehearsal if rehearse else max(0.0, min(part.seconds, left)))
        skip = [row["name"] for row in kept if row["part"] == name]
        for row in _rows(part, setting, skip, grace):
            failures += row["status"] in ("failed", "wrong")
            results["rows"].append({"part": name} | row)
            write(out, results)
            print(f"{name}: {row['name']}: {row['status']} {row.get('error', '')}", file=sys.stderr, flush=True)
    write(out, results)
    return failures


def _read(out: Path) -> dict[str, Any]:
    path = out.with_suffix(".json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}


def _rows(part: Part, setting: Setting, skip: list[str], grace: float) -> Iterator[dict[str, Any]]:
    """Yield the rows of a part from a separate process, and another row if that hangs or ends before its time."""
    command = [sys.executable, "-m", "benchmarks.gpu.part_process", part.module]
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    late = threading.Event()
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        ) as child,
    ):
        timer = threading.Timer(setting.seconds + grace, _end, (child, late))
        timer.start()
        try:
            with suppress(BrokenPipeError):
                child.stdin.write(json.dumps({"setting": asdict(setting), "skip": skip}))
                child.stdin.close()
            for line in child.stdout or ():
                yield json.loads(line)
            code = child.wait()
        finally:
            timer.cancel()
            _end(child, threading.Event())
        if late.is_set():
            yield {"name": WHOLE, "status": "failed", "error": f"it was not done after {setting.seconds + grace:.0f} s"}
        elif code:
            words.seek(0)
            last = [line.strip() for line in words if line.strip()][-1:]
            yield {"name": WHOLE, "status": "failed", "error": f"the process ended with {code}: {''.join(last)[:500]}"}


def _end(child: subprocess.Popen[str], late: threading.Event) -> None:
    if child.poll() is None:
        late.set()
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()

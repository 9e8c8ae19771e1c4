"""A part of the GPU kit whose rows come out in every way; it notes what it did in the file that GPU_PART_LOG names."""

import os
from pathlib import Path

from benchmarks.gpu.check import NotHere


def checks(setting):
    yield "good", lambda: _do("good", {"ms": 1.5, "holds": True})
    yield "bad", lambda: _do("bad", {"holds": False})
    yield "raises", _raises
    yield "absent", _absent
    yield "sized", lambda: _do("sized", {"size": setting.size(10, 3), "device": setting.device})


def _do(name, found):
    with Path(os.environ["GPU_PART_LOG"]).open("a", encoding="utf-8") as file:
        file.write(name + "\n")
    return found


def _raises():
    _do("raises", {})
    raise ZeroDivisionError("made to fail")


def _absent():
    raise NotHere("no such | package")

"""Suites of other authors: their tables, their parts, killed, compared, and done again elsewhere."""

import math
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_documentation import blocks

from benchmarks import own
from benchmarks.store import Store
from benchmarks.suite import load_suite
from pyrobnn import InputError

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks" / "submit.md"
DATA = '{ file = "wells.csv", target = "flow" }, { file = "more/sines.csv", target = "y", sep = ";" }'
OURS = {"my_parts": "my_scale", "heavy_weights": "normal", "narrow_start": "map"}
"""Parts of the library, which need no names in the registries of this process."""


def write(folder, *, scale=0.5, **changes):
    """The suite of the page with two tables, quick fits, and a module that imports another."""
    (folder / "more").mkdir(parents=True, exist_ok=True)
    [parts], [suite] = (blocks(PAGE, language) for language in ("python", "toml"))
    (folder / "my_parts.py").write_text(f"from my_scale import SCALE\n{parts.code}".replace("= 0.5", "= SCALE"))
    (folder / "my_scale.py").write_text(f"SCALE = {scale}\n")
    rows = [(math.sin(9 * i), ("clay", "chalk")[i % 2], math.cos(9 * i) + i % 2) for i in range(40)]
    (folder / "wells.csv").write_text("\n".join(["depth,rock,flow", *(f"{x:.3f},{k},{y:.3f}" for x, k, y in rows)]))
    (folder / "more" / "sines.csv").write_text("\n".join(["x;y", *(f"{x:.3f};{x * x:.3f}" for x, *_ in rows)]))
    short = {"[50]": "[2]", "3000": "10", "captured": "eager", "num_splits = 5": "num_splits = 2"}
    text = re.sub("^data = .*$", f"data = [{DATA}]", suite.code.partition('\n[[entries]]\nname = "mean')[0], flags=re.M)
    for old, new in (short | changes).items():
        text = text.replace(old, new)
    (folder / "mine.toml").write_text(text)
    return folder / "mine.toml"


@pytest.fixture(autouse=True)
def _no_module_stays(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("my_scale", None)


def benchmarks(*arguments):
    """What the command line of benchmarks prints."""
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_suite_of_an_outsider_is_killed_goes_on_is_compared_and_comes_out_again_elsewhere(tmp_path):
    suite, out = write(tmp_path / "mine"), tmp_path / "out"
    command = [sys.executable, "-m", "benchmarks", "run", str(suite), "--out", str(out)]
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while first.poll() is None and len(Store(out).records()) < 2:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    killed = len(Store(out).records())
    assert 2 <= killed < 6
    time.sleep(1)  # its worker ends, too
    benchmarks("run", suite, "--out", out)
    records = Store(out).records()
    labels = [f"narrow start on {data}, seed {seed}" for seed in range(3) for data in ("wells", "sines")]
    assert [record.job.label for record in records] == labels
    assert "fits: wells 6, sines 6" in (out / "README.md").read_text()
    assert records[0].job.code.count("my_") == 2  # the digests of both modules

    clone = tmp_path / "clone"
    shutil.copytree(out, clone)
    shutil.rmtree(tmp_path / "mine")
    assert benchmarks("rerun", clone).splitlines() == [f"{record.job.label}: the same bits" for record in records]

    write(tmp_path / "mine", scale=0.6, **{"[0, 1, 2]": "[3, 4]"})
    (tmp_path / "mine" / "more" / "sines.csv").write_text("x;y\n" + "\n".join(f"{i};{i * i}" for i in range(40)))
    benchmarks("run", tmp_path / "mine" / "mine.toml", "--out", tmp_path / "other")
    other = " ".join(benchmarks("diff", out, tmp_path / "other").split())
    assert "narrow start on wells, seeds 0, 1, 2 -> seeds 3, 4: log_score: " in other
    assert "not the same: seeds, code (" in other
    assert "cannot be compared, the data have changed: more/sines.csv (" in other


@pytest.mark.slow
def test_jobs_are_known_by_the_bytes_of_their_tables_and_the_code_of_their_modules(tmp_path):
    suite = write(tmp_path, **OURS)
    first, again = (load_suite(suite).jobs for _ in range(2))
    assert first == again
    write(tmp_path, scale=0.7, **OURS)
    other = load_suite(suite).jobs
    assert (other[0].work, other[0].key != first[0].key) == (first[0].work, True)
    (tmp_path / "my_scale.py").write_text("SCALE = 0.7  # a remark")
    assert load_suite(suite).jobs == other
    with (tmp_path / "wells.csv").open("a") as file:
        file.write("\n1.0,clay,2.0")
    changed = load_suite(suite).jobs
    assert [job.work != old.work for job, old in zip(changed, other, strict=True)] == [True, False] * 3
    assert changed[0].question == other[0].question == changed[2].question != changed[1].question
    digests = [own.digest_with("regression", tmp_path, {"imports": ["my_parts"]})]
    write(tmp_path, scale=0.8)  # in the module that my_parts imports
    assert digests != [own.digest_with("regression", tmp_path, {"imports": ["my_parts"]})]


@pytest.mark.parametrize(("name", "told"), [("no_such", "has no no_such.py"), ("json", "Python found .*json.* before")])
def test_modules_that_are_not_there_or_are_hidden_are_refused(name, told, tmp_path):
    (tmp_path / "json.py").write_text("")
    with pytest.raises(InputError, match=told):
        own.load(tmp_path, {"imports": [name]})

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest

from benchmarks import RESULTS, __main__, compare, processes, provenance, runner
from benchmarks.measures import harness
from benchmarks.measures.harness import Page
from benchmarks.new_process import in_process
from benchmarks.peers.processes import EngineError
from benchmarks.report.page import _bold, write_report
from benchmarks.rows import grid
from benchmarks.runner import run_suite
from benchmarks.store import Record, Store, finished
from benchmarks.suite import Job, load_suite
from benchmarks.timing import by_turns, fit_by_turns
from benchmarks.worker import do
from pyrobnn import InputError

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Jobs are done in this process, which spares all tests but those of workers the seconds in which these start."""
    monkeypatch.setattr(runner, "run_locally", lambda jobs, workers, work: ((job, work(job)) for job in jobs))


@pytest.fixture
def _in_workers(monkeypatch, _here):
    monkeypatch.setattr(runner, "run_locally", processes.run_locally)


def write_suite(folder, *, count=6, **settings):
    settings = {"log": str(folder / "log")} | settings
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    path = folder / "suite.toml"
    path.write_text(f'task = "bench_tasks.runner_task"\ncount = {count}\n[settings]\n' + "\n".join(lines) + "\n")
    return path


def done(folder):
    return sorted(int(line) for line in (folder / "log").read_text().split())


def values(folder):
    return {record.job.settings["number"]: record.rows[0]["value"] for record in Store(folder).records()}


def in_words(failures):
    return {label.partition(" (")[0]: fault for label, fault in failures.items()}


EXPECTED = {number: number / 7 for number in range(6)}


def test_every_job_is_done_once_and_kept_with_its_manifest(tmp_path):
    suite = load_suite(write_suite(tmp_path))
    assert run_suite(suite, out=tmp_path / "out") == {}
    assert values(tmp_path / "out") == EXPECTED
    write_report(tmp_path / "out")
    frame = pd.read_parquet(tmp_path / "out" / "rows.parquet")
    assert sorted(frame["value"]) == sorted(EXPECTED.values())
    assert json.loads(frame["manifest"][0])["threads"] == 1
    assert run_suite(suite, out=tmp_path / "out") == {}
    assert done(tmp_path) == list(range(6))


def test_a_job_that_fails_does_not_stop_the_others_and_is_tried_again(tmp_path):
    path = write_suite(tmp_path, fails=3)
    assert in_words(run_suite(load_suite(path), out=tmp_path / "out")) == {"job 3 on none": "ValueError: not this one"}
    assert 3 not in values(tmp_path / "out")
    assert len(values(tmp_path / "out")) == 5
    assert in_words(run_suite(load_suite(path), out=tmp_path / "out")) == {"job 3 on none": "ValueError: not this one"}
    assert done(tmp_path) == [0, 1, 2, 4, 5]


@pytest.mark.nightly
@pytest.mark.usefixtures("_in_workers")
def test_a_worker_that_is_killed_costs_no_job_but_one_that_kills_it_every_time(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "TRIES", 2)
    suite = load_suite(write_suite(tmp_path, dies=2, dies_always=5))
    failures = run_suite(suite, out=tmp_path / "out", workers=2)
    assert in_words(failures) == {"job 5 on none": "the worker died 2 times, exit code -9"}
    assert values(tmp_path / "out") == {number: EXPECTED[number] for number in range(5)}
    assert (tmp_path / "log.died").exists()


@pytest.mark.nightly
def test_a_runner_that_is_killed_loses_and_repeats_nothing(tmp_path):
    path = write_suite(tmp_path, count=200, sleep=0.05)
    command = [sys.executable, "-m", "benchmarks", "run", path, "--out", tmp_path / "out", "--workers", "2"]
    generator = random.Random(0)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}
    kept = 0
    for _ in range(2):
        runner = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
        _wait_for_a_line_more(tmp_path / "out" / "rows.jsonl", kept)
        time.sleep(generator.uniform(0, 0.5))
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        now = len(Store(tmp_path / "out").records())
        assert now > kept
        kept = now
    assert kept < 200
    run_suite(load_suite(path), out=tmp_path / "out")
    numbers = [record.job.settings["number"] for record in Store(tmp_path / "out").records()]
    assert sorted(numbers) == list(range(200))
    assert values(tmp_path / "out") == {number: number / 7 for number in range(200)}


def _wait_for_a_line_more(path, count):
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") <= count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_runners_do_not_work_on_the_same_results(tmp_path):
    suite = load_suite(write_suite(tmp_path))
    with Store(tmp_path / "out").alone(), pytest.raises(InputError, match="Another process is at work on"):
        run_suite(suite, out=tmp_path / "out")


def test_a_line_cut_short_is_done_again_and_a_damaged_one_refused_not_lost(tmp_path):
    suite = load_suite(write_suite(tmp_path))
    run_suite(suite, out=tmp_path / "out")
    path = tmp_path / "out" / "rows.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    run_suite(suite, out=tmp_path / "out")
    assert values(tmp_path / "out") == EXPECTED
    assert len(path.read_bytes().splitlines()) == 6
    before = path.read_text().replace('"rows"', '"row', 1)
    path.write_text(before)
    with pytest.raises(InputError, match="line 1 cannot be read"):
        run_suite(suite, out=tmp_path / "out")
    assert path.read_text() == before


JOB = Job("regression", 1, {"entry": "a", "data": "b", "seed": 0}, {"b": "0"}, "code")


@pytest.mark.parametrize(
    "other",
    [
        Job("mnist", 1, JOB.settings, JOB.data, "code"),
        Job("regression", 2, JOB.settings, JOB.data, "code"),
        Job("regression", 1, JOB.settings | {"seed": 1}, JOB.data, "code"),
        Job("regression", 1, JOB.settings, {"b": "1"}, "code"),
    ],
)
def test_a_job_is_known_by_task_threads_settings_and_data(other):
    assert other.work != JOB.work
    assert finished([Record(other, [], {})], (JOB,), any_code=True) == {}


def test_other_code_makes_another_job_unless_any_code_counts():
    changed = Job(JOB.task, JOB.threads, JOB.settings, JOB.data, "other code")
    assert changed.key != JOB.key
    assert changed.work == JOB.work
    record = Record(changed, [], {})
    assert finished([record], (JOB,)) == {}
    assert finished([record], (JOB,), any_code=True) == {JOB.key: record}


def test_the_digest_of_the_code_is_of_what_is_executed():
    source = "def f(x):\n    return x + 1\n"
    same = 'def f(x):\n    """Add one."""\n    return (x + 1)  # one\n'
    assert provenance._executed(source) == provenance._executed(same)
    assert provenance._executed(source) != provenance._executed(source.replace("1", "2"))


def test_the_digest_changes_with_what_a_task_executes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(provenance.bnn, "__file__", str(tmp_path / "no_library" / "__init__.py"))
    module = tmp_path / "measured" / "task.py"
    module.parent.mkdir()
    found = []
    for text in ("x = 1\n", "x = 1  # one\n", "x = 2\n"):
        module.write_text(text)
        provenance.code_digest.cache_clear()
        found.append(provenance.code_digest("measured.task"))
    (module.parent / "helper.py").write_text("y = 1\n")
    provenance.code_digest.cache_clear()
    found.append(provenance.code_digest("measured.task"))
    provenance.code_digest.cache_clear()
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_the_digest_of_a_measure_is_of_what_it_imports_from_benchmarks():
    files = {str(path) for path in provenance._files_of("benchmarks.measures.tables")}
    assert {"benchmarks/measures/tables.py", "benchmarks/references.py"} <= files
    assert not any("report" in path or "harness" in path for path in files)
    for name in ("speed", "wall", "gpu_steps"):
        assert {f"benchmarks/peers/{part}.py" for part in ("engine_torch", "protocol", "whole_fits")} <= {
            str(path) for path in provenance._files_of(f"benchmarks.measures.{name}")
        }
    assert {str(path) for path in provenance._files_of("nuts")} == {
        "benchmarks/tasks/nuts.py",
        "benchmarks/tasks/schema.py",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('task = "chess"', "`task` must be one of bandit"),
        ('task = "no.such.module"', "cannot be imported"),
        ('task = ".."', "`task` must be one of bandit"),
        ('task = "os.path"', "is no task"),
        ('task = "regression"\nthreads = "two"', "`threads` must be int"),
        ('task = "regression"\nthreads = 0', "`threads` must be at least 1"),
        ('task = "bench_tasks.runner_task"\ncount = 0\nsettings = {}', "no jobs"),
        ('task = "bench_tasks.runner_task"\ncount = 1\n[settings]\nday = 2020-01-01', "of the wrong kind"),
        ("task = ", "is not valid TOML"),
        ('task = "regression"\ncolour = 1', "Unknown key `colour` in the suite. Known: base"),
        ('task = "regression"', r"The suite needs \[\[entries\]\]"),
        ('task = "regression"\ndata = ["diabetes"]\n[[entries]]\nguide = "map"', "Each entry needs a `name`"),
        (
            'task = "regression"\ndata = ["diabetes"]\n[[entries]]\nname = "a"\ngrid = { "prior.scale" = 0.3 }',
            "`grid.prior.scale` in entry a: Input should be a valid list, got 0.3",
        ),
    ],
)
def test_a_suite_that_cannot_be_is_refused(text, message, tmp_path):
    path = tmp_path / "suite.toml"
    with pytest.raises(InputError, match="cannot be read"):
        load_suite(path)
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_suite(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "at least 1"),
        ({"only": "job 77"}, "No job has 'job 77' in its label"),
    ],
)
def test_a_run_that_cannot_be_is_refused(arguments, message, tmp_path):
    with pytest.raises(InputError, match=message):
        run_suite(load_suite(write_suite(tmp_path)), out=tmp_path / "out", **arguments)


def test_the_command_line_ends_with_a_line_that_says_why(tmp_path, monkeypatch, capfd):
    path = write_suite(tmp_path, count=1, fails=0)
    for words, code, line, other in (
        (["report", str(tmp_path)], 2, "There are no results in", "Traceback"),
        (["run", str(path), "--out", str(tmp_path / "out")], 1, "failed: job 0 on none", "There are no results"),
    ):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
        with pytest.raises(SystemExit) as ended:
            __main__.main()
        assert ended.value.code == code
        said = capfd.readouterr().err
        assert line in said
        assert other not in said


def test_results_that_cannot_be_on_file_are_refused(tmp_path):
    suite = load_suite(write_suite(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be a folder of results"):
        run_suite(suite, out=tmp_path / "file")
    (tmp_path / "locked" / ".lock").mkdir(parents=True)
    with pytest.raises(InputError, match="cannot be a folder of results"):
        run_suite(suite, out=tmp_path / "locked")
    for text in ("{", "[]"):
        (tmp_path / "suite.json").write_text(text)
        with pytest.raises(InputError, match=r"suite.json cannot be read"):
            Store(tmp_path).title()


def test_text_from_results_is_escaped_on_the_page(tmp_path):
    job = Job("bench_tasks.runner_task", 1, {"entry": "a", "data": "none", "number": 0}, {}, "code")
    row = {"entry": "<script>alert(1)</script>", "value": 0.5}
    Store(tmp_path).add(Record(job, [row], provenance.manifest(1, 1.0, None)))
    (tmp_path / "suite.json").write_text(json.dumps({"title": "Title & more", "works": [job.work]}))
    write_report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "1 jobs, 0.0 minutes" in page
    (tmp_path / "suite.json").write_text(json.dumps({"title": "a", "works": [job.work, "not done yet"]}))
    write_report(tmp_path)
    assert "1 of 2 jobs, 0.0 minutes" in (tmp_path / "README.md").read_text()
    assert "<script>" not in page
    assert "Title &amp; more" in page
    assert "&lt;script&gt;" in page
    assert str(_bold("**1 ± 2**, a & b")) == "<b>1\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}2</b>, a &amp; b"


def test_a_measure_goes_on_where_it_was_and_the_last_row_of_a_key_counts(tmp_path, monkeypatch):
    done = []

    class Measure:
        """What is measured."""

        KEY, OPTIONS = ("net",), {"nets": ["a", "b"], "rounds": 1}
        jobs = staticmethod(lambda options: [{"net": net} for net in options.nets])
        run = staticmethod(lambda job, options: done.append(job["net"]) or [job | {"rounds": 10 * options.rounds}])
        page = staticmethod(lambda rows, options: Page("A", [], grid(list(rows[0]), (row.values() for row in rows))))

    monkeypatch.setattr(harness, "load_measure", lambda name: Measure)
    for arguments in (["--nets", "a"], [], ["--again", "--nets", "a", "--rounds", "2"], ["--report"]):
        harness.run_measure("some_thing", [*arguments, "--out", str(tmp_path)])
    assert done == ["a", "b", "a"]
    rows = harness.load_rows("some_thing", tmp_path)
    code, hardware = ({row.pop(column) for row in rows} for column in ("code", "hardware"))
    assert rows == [{"net": "a", "rounds": 20}, {"net": "b", "rounds": 10}]
    assert len((tmp_path / "some-thing.jsonl").read_text().splitlines()) == 3
    page = (tmp_path / "some-thing.md").read_text()
    assert "| a | 20 |\n| b | 10 |" in page
    assert f"Rows by their code: 2 of {code.pop()}.\n\nRows by their hardware: 2 of {hardware.pop()}." in page


def test_a_machine_has_the_cores_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5})
    assert provenance.describe_machine()["cores"] == 3


DATA_OF_MEASURES = {
    "estimators": ("energy", "concrete", "yacht", "wine-quality-red", "power-plant", "protein-tertiary-structure"),
    "least_noise": ("mnist",),
    "tables": ("yacht", "concrete", "energy"),
}
"""Sets that are read to say which jobs there are."""


class Turns:
    """Engines that take turns."""

    KEY, OPTIONS = ("net", "engine"), {"engines": ["eager", "captured"]}
    jobs = staticmethod(lambda options: [{"net": "a", "engine": options.engines}])
    page = staticmethod(lambda rows, options: Page("A", [], grid(list(rows[0]), (row.values() for row in rows))))
    stops: ClassVar = []

    @classmethod
    def run(cls, job, options):
        for engine in job["engine"]:
            yield job | {"engine": engine}
            if cls.stops:
                raise cls.stops.pop()


def engines_on_file(folder, *arguments):
    harness.run_measure("some_thing", [*arguments, "--out", str(folder)])
    return [json.loads(line)["engine"] for line in (folder / "some-thing.jsonl").read_text().split("\n")[:-1]]


def test_a_job_that_stops_half_way_leaves_no_rows_and_is_done_again(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "load_measure", lambda name: Turns)
    monkeypatch.setattr(Turns, "stops", [KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        harness.run_measure("some_thing", ["--out", str(tmp_path)])
    assert harness.load_rows("some_thing", tmp_path) == []
    assert engines_on_file(tmp_path) == ["eager", "captured"]


def test_a_job_is_done_when_all_of_its_rows_are_on_file(tmp_path, monkeypatch):
    """An engine that is asked for later, or whose row was lost, takes its turns beside the others."""
    monkeypatch.setattr(harness, "load_measure", lambda name: Turns)
    assert engines_on_file(tmp_path, "--engines", "eager") == ["eager"]
    assert engines_on_file(tmp_path) == ["eager", "eager", "captured"]
    assert engines_on_file(tmp_path) == ["eager", "eager", "captured"]
    assert engines_on_file(tmp_path, "--engines", "captured") == ["eager", "eager", "captured"]


def test_an_engine_that_fails_leaves_a_row_that_is_done_again(monkeypatch):
    module = harness.load_measure("speed")
    (job,) = module.jobs(options := harness.parsed("speed", module, ["--cases", "sine", "--engines", "pyro"]))
    monkeypatch.setattr(module, "EngineProcess", lambda *_, **__: (_ for _ in ()).throw(EngineError("gone")))
    (row,) = module.run(job, options)
    assert row["failed"] == "gone"
    assert harness._sound([row]) == []


def test_a_row_of_a_measure_that_was_cut_short_is_done_again(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "load_measure", lambda name: Turns)
    path = tmp_path / "some-thing.jsonl"
    whole = '{"net": "\u2028", "engine": "eager"}\n'.encode()
    path.write_bytes(whole + '{"net": "ü'.encode()[:-1])
    assert len(harness.load_rows("some_thing", tmp_path)) == 1
    assert engines_on_file(tmp_path) == ["eager", "eager", "captured"]
    assert path.read_bytes().startswith(whole)


@pytest.mark.parametrize("name", harness.names())
@pytest.mark.needs_data
def test_jobs_of_a_measure_name_all_rows_that_they_give(name, require_data):
    require_data(*DATA_OF_MEASURES.get(name, ()))
    measure = harness.load_measure(name)
    jobs = list(measure.jobs(harness.parsed(name, measure, ["--device", "cpu"] if name.startswith("gpu_") else [])))
    assert all(set(measure.KEY) <= job.keys() for job in jobs)
    keys = [tuple(row[column] for column in measure.KEY) for job in jobs for row in harness.expected(job)]
    assert len(set(keys)) == len(keys) > 0


def test_works_take_turns_and_rounds_before_do_not_count():
    done = []
    found = by_turns({"a": lambda: done.append("a"), "b": lambda: done.append("b")}, 2, clock=time.perf_counter)
    assert "".join(done) == "ababab"
    assert [len(seconds) for seconds in found.values()] == [2, 2]


def test_tasks_of_an_engine_get_its_own_last_fit():
    fits = {"a": itertools.count(), "b": itertools.count(10)}
    engines = {name: (fit.__next__, lambda fit: fit) for name, fit in fits.items()}
    seconds, results = fit_by_turns(engines, ("fit", "predict"), 2, clock=time.perf_counter)
    assert results == {("a", "fit"): 2, ("a", "predict"): 2, ("b", "fit"): 12, ("b", "predict"): 12}
    assert {len(spent) for spent in seconds.values()} == {2}


def test_a_function_in_a_new_process_gets_and_gives_json():
    assert in_process(math.gcd, 12, 18) == 6


def test_the_site_lists_every_page_of_a_measure():
    listed = (ROOT / "docs" / "benchmarks" / "index.md").read_text()
    assert not [path.name for path in RESULTS.glob("*.md") if f"/results/{path.name})" not in listed]


def test_measures_import_no_measures():
    files = [path for path in Path(harness.__file__).parent.glob("*.py") if path.stem != "harness"]
    lines = {line for path in files for line in path.read_text().splitlines() if "benchmarks.measures" in line}
    assert all(line.startswith("from benchmarks.measures.harness import ") for line in lines if "import" in line)


def test_a_measure_that_is_none_is_refused():
    with pytest.raises(InputError, match="There is no measure 'weather'. Measures: alarms"):
        harness.load_measure("weather")


def rows_of(*scores, **others):
    return [
        {"entry": "a", "data": "b", "split": i, "log_score": score, "seconds": 1.0} | others
        for i, score in enumerate(scores)
    ]


def test_results_are_compared_bit_by_bit_and_with_chance(tmp_path):
    job = Job("regression", 1, JOB.settings, JOB.data, provenance.code_digest("regression"))
    record = Record(job, rows_of(1.0, 3.0, math.nan), {"cpu": "x", "torch": "2"})
    here = record.manifest
    assert compare.verdict(record, rows_of(1.0, 3.0, math.nan, seconds=2.0), here).holds
    record = Record(job, rows_of(1.0, 3.0), here)
    near, far, fewer = rows_of(1.2, 2.9), rows_of(3.1, 5.1), [{"entry": "a", "data": "b"}]
    assert not compare.verdict(record, near, here).holds
    assert compare.verdict(record, near, here | {"cpu": "y"}).holds
    assert not compare.verdict(record, far, here | {"cpu": "y"}).holds
    assert not compare.verdict(record, fewer, here | {"cpu": "y"}).holds
    older = Record(Job("regression", 1, JOB.settings, JOB.data, "older"), record.rows, here)
    assert compare.verdict(older, near, here).holds
    for folder, found in (("one", rows_of(1.0, 3.0)), ("two", near), ("three", fewer)):
        Store(tmp_path / folder).add(Record(job, found, here))
    changed = compare.differences(tmp_path / "one", tmp_path / "two")
    assert "log_score: 2 -> 2.05, standard error 1, within two of the change (0.15)" in changed
    assert "cannot be compared" in compare.differences(tmp_path / "one", tmp_path / "three")
    assert compare.differences(tmp_path / "one", tmp_path / "one") == "a on b: the same bits"
    with pytest.raises(InputError, match="There are no results in"):
        compare.differences(tmp_path / "one", tmp_path / "none")
    with pytest.raises(InputError, match="0 jobs in"):
        compare.find_record(tmp_path / "one", "zz")
    with pytest.raises(InputError, match="There are no results in"):
        compare.find_record(tmp_path / "none", "zz")


def test_results_of_other_suites_and_of_earlier_versions_are_not_compared(tmp_path):
    one, other = (Job("regression", 1, JOB.settings | {"seed": seed}, JOB.data, "code") for seed in (0, 1))
    for folder, job in (("one", one), ("two", other)):
        Store(tmp_path / folder).add(Record(job, rows_of(1.0), {}))
    with pytest.raises(InputError, match="no job in common"):
        compare.differences(tmp_path / "one", tmp_path / "two")
    Store(tmp_path / "one").add(Record(other, rows_of(2.0), {}))
    (tmp_path / "one" / "suite.json").write_text(json.dumps({"title": "a", "works": [other.work]}))
    found = compare.differences(tmp_path / "one", tmp_path / "two").splitlines()
    assert found == ["a on b:", "  log_score: 2 -> 1"]


def of_two(first, second):
    """Rows of two methods, which are no replicates."""
    return [*rows_of(first, log_score_stderr=0.1), *rows_of(second, log_score_stderr=0.1, entry="b")]


ONE, TWO = rows_of(1.5, log_score_stderr=0.12, other=1.0), rows_of(1.0, 3.0, coverage=1.0)
BEYOND = "beyond two standard errors: "
VERDICTS = {
    "rounding that all share": (
        *(rows_of(-1.0, -3.0), rows_of(-1.0 + 1.00e-6, -3.0 + 1.01e-6)),
        *(True, "beyond two of the change (5e-09)"),
    ),
    "a row near": (
        *(ONE, rows_of(1.7, log_score_stderr=0.1, other=2.0)),
        *(True, "not judged, for want of a standard error: other."),
    ),
    "a row far": (ONE, rows_of(1.8, log_score_stderr=0.12, other=1.0), False, BEYOND),
    "no error": (rows_of(1.5), rows_of(1.5000001), False, "of no score is a standard error known"),
    "rows near": (TWO, rows_of(1.1, 3.0, coverage=1.0), True, ""),
    "no spread": (TWO, rows_of(1.1, 3.0, coverage=0.1), False, BEYOND),
    "more spread": (TWO, rows_of(-1000.0, 900.0, coverage=1.0), False, BEYOND),
    "not a number": (TWO, rows_of(math.nan, 3.0, coverage=1.0), False, BEYOND),
    "infinite": (TWO, rows_of(-math.inf, 3.0, coverage=1.0), False, BEYOND),
    "no score": (
        *(rows_of(1.0, 3.0, pit=[1, 2], chosen="a"), rows_of(1.1, 3.0, pit=[2, 1], chosen="b")),
        *(True, "  changed too: pit, chosen"),
    ),
    "methods near": (of_two(1.0, 9.0), of_two(1.1, 9.1), True, ""),
    "a method far": (of_two(1.0, 9.0), of_two(1.1, 9.3), False, f"{BEYOND}b b, log_score"),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_verdicts_on_rows_of_another_machine(case):
    before, after, holds, words = VERDICTS[case]
    found = compare.verdict(Record(JOB, before, {"cpu": "x"}), after, {"cpu": "y"})
    assert found.holds is holds
    assert words in found.text


def test_a_report_shows_the_suite_as_it_is_now_in_its_order(tmp_path):
    out = tmp_path / "out"
    suite = load_suite(write_suite(tmp_path))
    run_suite(suite, out=out, only="job 3")
    run_suite(suite, out=out)
    assert [record.job.settings["number"] for record in Store(out).current()] == list(range(6))
    changed = load_suite(write_suite(tmp_path, sleep=0.001, count=2))
    run_suite(changed, out=out, only="job 1")
    assert [record.job.settings for record in Store(out).current()] == [changed.jobs[1].settings]
    (out / "suite.json").unlink()
    with pytest.raises(InputError, match="no suite.json that says which count"):
        Store(out).current()


def test_long_fits_are_kept_where_a_run_says_and_not_when_a_job_is_done_again(tmp_path, monkeypatch):
    suite = load_suite(write_suite(tmp_path, count=1))
    seen = []
    monkeypatch.setattr(runner, "do", lambda job, keep=None: seen.append(keep) or do(job, keep=keep))
    run_suite(suite, out=tmp_path / "out", keep=tmp_path)
    (record,) = Store(tmp_path / "out").records()
    assert runner.rerun(record)[0] == record.rows
    assert seen == [tmp_path, None]


@pytest.mark.one_in(0, 2)
@pytest.mark.parametrize("entry", ["ensemble", "mean-field"])
def test_a_committed_row_comes_out_again(entry):
    """On file from two kinds of processors."""
    committed = [one for one in Store(RESULTS / "smoke").records() if one.job.settings["entry"] == entry]
    rows, manifest = runner.rerun(committed[-1])
    assert len({one.manifest["cpu"] for one in committed}) == len(committed) == 2
    for record in committed:
        found = compare.verdict(record, rows, manifest)
        assert found.holds, found.text

import dataclasses
import json
import math

import pandas as pd
import pytest

from benchmarks import RESULTS, compare, processes, provenance, runner
from benchmarks.measures import harness
from benchmarks.measures.harness import Page
from benchmarks.report.page import write_report
from benchmarks.rows import grid
from benchmarks.runner import run_suite
from benchmarks.store import Record, Store, finished
from benchmarks.suite import Job, load_suite
from pyrobnn import InputError


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
    for _ in range(2):
        failures = run_suite(load_suite(path), out=tmp_path / "out")
        assert in_words(failures) == {"job 3 on none": "ValueError: not this one"}
        assert values(tmp_path / "out").keys() == EXPECTED.keys() - {3}
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
    ("changed", "work_differs"),
    [
        ({"task": "mnist"}, True),
        ({"threads": 2}, True),
        ({"settings": JOB.settings | {"seed": 1}}, True),
        ({"data": {"b": "1"}}, True),
        ({"code": "other code"}, False),
    ],
)
def test_a_job_is_known_by_task_threads_settings_and_data_and_by_its_code_unless_any_counts(changed, work_differs):
    other = dataclasses.replace(JOB, **changed)
    record = Record(other, [], {})
    assert other.key != JOB.key
    assert (other.work != JOB.work) == work_differs
    assert finished([record], (JOB,)) == {}
    assert finished([record], (JOB,), any_code=True) == ({} if work_differs else {JOB.key: record})


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('task = "chess"', "`task` must be one of bandit"),
        ('task = "os.path"', "is no task"),
        ('task = "regression"\nthreads = "two"', "`threads` must be int"),
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
    ("arguments", "message"), [({"workers": 0}, "at least 1"), ({"only": "job 77"}, "No job has 'job 77' in its label")]
)
def test_a_run_that_cannot_be_is_refused(arguments, message, tmp_path):
    with pytest.raises(InputError, match=message):
        run_suite(load_suite(write_suite(tmp_path)), out=tmp_path / "out", **arguments)


@pytest.mark.slow
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


def rows_of(*scores, **others):
    return [
        {"entry": "a", "data": "b", "split": i, "log_score": score, "seconds": 1.0} | others
        for i, score in enumerate(scores)
    ]


def verdict(earlier, rows, **changes):
    """How rows compare with those of a record, of a job and on a machine that differ as told."""
    job = {name: value for name, value in changes.items() if name in ("settings", "data", "code")}
    machine = {name: value for name, value in changes.items() if name not in job}
    again = Record(dataclasses.replace(earlier.job, **job), rows, earlier.manifest | machine)
    return compare.compared([earlier], [again])


def test_results_are_compared_bit_by_bit_and_with_chance(tmp_path):
    record = Record(JOB, rows_of(1.0, 3.0, math.nan), {"cpu": "x", "torch": "2"})
    assert verdict(record, rows_of(1.0, 3.0, math.nan, seconds=2.0)).holds
    record = Record(JOB, rows_of(1.0, 3.0), record.manifest)
    near, far, fewer = rows_of(1.2, 2.9), rows_of(3.1, 5.1), [{"entry": "a", "data": "b"}]
    assert not verdict(record, near).holds
    assert verdict(record, near, cpu="y").holds
    assert not verdict(record, far, cpu="y").holds
    assert not verdict(record, fewer, cpu="y").holds
    assert verdict(record, near, code="newer").holds
    assert "code (code there, newer here)" in verdict(record, record.rows, code="newer").text
    changed = verdict(record, record.rows, data={"b": "1" * 64})
    assert (changed.holds, changed.text[-49:]) == (False, "the data have changed: b (0 there, 11111111 here)")
    for folder, found in (("one", rows_of(1.0, 3.0)), ("two", near), ("three", fewer)):
        Store(tmp_path / folder).add(Record(JOB, found, record.manifest))
    changed = compare.differences(tmp_path / "one", tmp_path / "two")
    assert "log_score: 2 -> 2.05, standard error 1, within two of the change (0.15)" in changed
    assert "cannot be compared" in compare.differences(tmp_path / "one", tmp_path / "three")
    assert compare.differences(tmp_path / "one", tmp_path / "one") == "a on b, seed 0: the same bits"
    with pytest.raises(InputError, match="There are no results in"):
        compare.differences(tmp_path / "one", tmp_path / "none")
    with pytest.raises(InputError, match="0 jobs in"):
        compare.find_records(tmp_path / "one", "zz")
    with pytest.raises(InputError, match="There are no results in"):
        compare.find_records(tmp_path / "none", "zz")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        # means over splits by seed: 2 and 4, 3 and 6: errors 1 and 1.5, of the changes 1 and 2 in pairs 0.5
        ({0: (1.0, 3.0), 1: (3.0, 5.0)}, {0: (2.0, 4.0), 1: (5.0, 7.0)}, "3 -> 4.5, standard error 1, beyond .* (0.5)"),
        ({0: (1.0, 3.0), 1: (3.0, 5.0)}, {2: (2.0, 4.0), 3: (5.0, 7.0)}, "3 -> 4.5, standard error 1, within .* (1.8)"),
        ({0: (1.0, 3.0)}, {1: (2.0, 5.0)}, "2 -> 3.5, standard error 1, beyond .* (0.5)"),
    ],
    ids=["the same seeds", "other seeds", "one other seed, by split"],
)
def test_jobs_of_several_seeds_are_compared_as_one(before, after, told, tmp_path):
    for folder, by_seed in (("before", before), ("after", after)):
        for seed, found in by_seed.items():
            job = dataclasses.replace(JOB, settings=JOB.settings | {"seed": seed})
            Store(tmp_path / folder).add(Record(job, rows_of(*found), {}))
        works = [record.job.work for record in Store(tmp_path / folder).records()]
        (tmp_path / folder / "suite.json").write_text(json.dumps({"works": works}))
    text = compare.differences(tmp_path / "before", tmp_path / "after")
    assert f"log_score: {told.replace('.*', 'two of the change')}" in text
    assert ("not the same: seeds" in text) == (before.keys() != after.keys())
    assert text.count("log_score") <= 2


@pytest.mark.one_in(0, 2)
@pytest.mark.parametrize("entry", ["ensemble", "mean-field"])
def test_a_committed_row_comes_out_again(entry):
    """On file from two kinds of processors."""
    committed = [one for one in Store(RESULTS / "smoke").records() if one.job.settings["entry"] == entry]
    again = runner.rerun(committed[-1])
    assert len({one.manifest["cpu"] for one in committed}) == len(committed) == 2
    for record in committed:
        found = compare.compared([record], [again])
        assert found.holds, found.text

"""Settings for all tests."""

import collections
import dataclasses
import functools
import logging
import os
import signal

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start, too: two workers share two cores
# Or each of these processes compiles the bytecode of torch's modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pyro
import pytest
import torch

torch.set_num_threads(1)

FAST, MOST_SHOWN = 0.7, 20
"""Seconds that a test without a mark may take, and the number of slower ones that are listed."""
_seconds: dict[str, float] = {}

logging.getLogger("torch.__trace").propagate = False  # thousands of records for each graph of torch.compile


def pytest_configure(config):
    """Tests train for few steps. In pyproject this line would import the package before its types can be checked."""
    for name in ("PoorFitWarning", "FewDrawsWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::pyrobnn.{name}")


@pytest.fixture(autouse=True)
def the_same_state_whatever_ran_before():
    """Random numbers and Pyro's parameter store start alike in every order of the tests and on every worker."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)


@pytest.fixture(autouse=True)
def short_fits_measure_nothing(request, monkeypatch):
    """Fits of given length take the model as it is, but in tests marked `measured`: measuring takes half a second."""
    from pyrobnn.inference.svi.svi import SVI

    if request.node.get_closest_marker("measured") is not None:
        return
    offer = SVI.offer
    monkeypatch.setattr(
        SVI, "offer", lambda self: dataclasses.replace(offer(self), wants_measured_scales=self.ends_by_itself)
    )


@pytest.fixture
def local():
    """Parameters stay in their modules and sites are drawn the fast way, as in `fit`."""
    from pyrobnn._torch.pyro import fast_pyro, local_parameters

    with local_parameters(), fast_pyro():
        yield


@pytest.fixture
def quick_check(monkeypatch):
    """Runs continue a fit for a few steps to judge it, not for seconds."""
    import pyrobnn.diagnostics.convergence

    monkeypatch.setattr(pyrobnn.diagnostics.convergence, "_CONTINUED_SECONDS", 0.0, raising=False)
    monkeypatch.setattr(pyrobnn.diagnostics.convergence, "_MOST_BLOCKS", 1, raising=False)


@pytest.fixture
def no_report(monkeypatch, quick_check):
    """Runs leave out pictures and the ArviZ file, which take seconds."""
    import pyrobnn.diagnostics.convert
    import pyrobnn.report

    class Tree:
        def to_netcdf(self, path, engine):
            path.write_text("")

    monkeypatch.setattr(pyrobnn.diagnostics.convert, "to_datatree", lambda *args, **kwargs: Tree())
    monkeypatch.setattr(pyrobnn.report, "render", lambda *args, **kwargs: pyrobnn.report.page.Rendered("page", {}))


@functools.cache
def _available() -> set[str]:
    from pyrobnn import datasets

    return {record.name for record in datasets.info() if record.available}


def skip_without_data(*names: str) -> None:
    """Skip the test where the files of any of these data sets are in no folder that is searched; nothing is loaded."""
    absent = sorted(set(names) - _available())
    if absent:
        pytest.skip(f"needs the files of {', '.join(absent)}, which are in no folder that is searched")


@pytest.fixture(scope="session")
def require_data():
    """The function that skips, for tests marked `needs_data` that know the names only when they run."""
    return skip_without_data


@pytest.fixture
def no_user_folder(request, monkeypatch):
    """The user's folder of data sets is searched by tests that need its files alone."""
    if request.node.get_closest_marker("needs_data") is None:
        monkeypatch.delenv("PYROBNN_DATA", raising=False)


@pytest.fixture
def isolated(monkeypatch, tmp_path):
    """An empty user's folder, a working directory without shared data, an empty cache, and no network."""

    def refuse(*args, **kwargs):
        raise OSError("no network")

    folder, elsewhere = tmp_path / "user", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("PYROBNN_DATA", str(folder))
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setattr("pooch.retrieve", refuse)
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the cases that `one_in` leaves to the slow and to the nightly tests."""
    seen = collections.Counter()
    for item in items:
        mark = item.get_closest_marker("one_in")
        if mark is not None:
            function, (fast, slow) = item.nodeid.partition("[")[0], (*mark.args, 1)[:2]
            index = seen[function]
            if not fast or index % fast:
                left = index - (index // fast + 1 if fast else 0)
                item.add_marker(pytest.mark.slow if slow and not left % slow else pytest.mark.nightly)
            seen[function] += 1


def pytest_runtest_setup(item):
    """Skip before any fixture is made; `-m needs_data` selects these tests."""
    skip_without_data(*(name for mark in item.iter_markers("needs_data") for name in mark.args))


def pytest_runtest_logreport(report):
    """Keep the seconds of the call of each fast test; a report comes from the worker that ran the test."""
    if report.when == "call" and not {"slow", "nightly"} & set(report.keywords):
        _seconds[report.nodeid] = report.duration


def pytest_terminal_summary(terminalreporter):
    """List fast tests over the limit: they get fewer steps or the mark `slow`. A busy machine takes longer for all."""
    over = {name: seconds for name, seconds in _seconds.items() if seconds > FAST}
    if len(_seconds) > 1 and over:
        slowest = sorted(over.items(), key=lambda item: -item[1])
        lines = [f"{seconds:6.2f} s  {name}" for name, seconds in slowest[:MOST_SHOWN]]
        terminalreporter.section(f"{len(over)} fast tests took over {FAST} s each, {sum(over.values()):.0f} s in all")
        terminalreporter.line("\n".join(lines))


@pytest.fixture
def interrupts_arrive():
    """Python's own handler, also where the tests run in the background of a shell, which ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)

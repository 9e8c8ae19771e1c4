"""A fresh clone has no data beside it: tests that need a file skip, with the reason."""

import dataclasses

import pytest

import pyrobnn as bnn


@pytest.fixture
def nothing_available(monkeypatch):
    import conftest

    records = [dataclasses.replace(record, available=record.name == "wine") for record in bnn.datasets.info()]
    monkeypatch.setattr(bnn.datasets, "info", lambda: records)
    conftest._available.cache_clear()
    yield
    conftest._available.cache_clear()


def test_absent_files_skip_with_their_names(nothing_available, require_data):
    with pytest.raises(pytest.skip.Exception, match="needs the files of mnist, yacht, which are in no folder"):
        require_data("yacht", "wine", "mnist")
    require_data("wine")


def test_a_marked_test_skips_before_its_fixtures(nothing_available, request):
    import conftest

    request.node.add_marker(pytest.mark.needs_data("mnist"))
    with pytest.raises(pytest.skip.Exception, match="needs the files of mnist"):
        conftest.pytest_runtest_setup(request.node)

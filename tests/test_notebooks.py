"""Notebooks: each one runs from top to bottom in fast mode, shows its pictures, and is stored without outputs."""

import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
# Jupyter's libraries warn about each other and about the sockets that they leave to the garbage collector.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]


def ids(path):
    return path.stem


def stored(path):
    import nbformat

    return nbformat.read(path, as_version=4)


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_notebook_runs(path, monkeypatch):
    from nbclient import NotebookClient

    monkeypatch.setenv("PYROBNN_NB_FAST", "1")
    notebook = stored(path)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_notebook_is_stripped(path):
    command = [sys.executable, "-m", "nbstripout", "--verify", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(cell.get("execution_count") is None and not cell.get("outputs") for cell in stored(path).cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_notebook_metadata(path):
    notebook = stored(path)
    assert notebook.metadata.kernelspec.name == "python3"
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    names = [cell.id for cell in notebook.cells]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_notebook_has_its_twin(path):
    """`jupytext --sync notebooks/*.ipynb` writes the twin, in py:percent; the one and the other have the same cells."""
    import jupytext

    twin = path.with_suffix(".py")
    assert twin.is_file(), f"{twin.name} is missing"
    cells = [[(cell.cell_type, cell.source) for cell in jupytext.read(one).cells] for one in (path, twin)]
    assert cells[0] == cells[1]
    assert stored(path).metadata["jupytext"]["formats"] == "ipynb,py:percent"

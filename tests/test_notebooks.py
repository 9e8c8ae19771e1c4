"""Notebooks: each one runs from top to bottom in fast mode, shows its pictures, and is stored without outputs."""

import gc
import os
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


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all of them, since importing the libraries takes longer than running a notebook."""
    from jupyter_client.manager import AsyncKernelManager
    from jupyter_core.utils import run_sync

    manager = AsyncKernelManager(kernel_name="python3")
    run_sync(manager.start_kernel)(cwd=str(NOTEBOOKS[0].parent), env=os.environ | {"PYROBNN_NB_FAST": "1"})
    yield manager
    run_sync(manager.shutdown_kernel)(now=True)
    gc.collect()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_notebook_runs(path, kernel):
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell

    notebook = stored(path)
    notebook.cells.insert(0, new_code_cell("%reset -f"))
    client = NotebookClient(notebook, km=kernel, timeout=300)
    client.execute()
    client.kc.stop_channels()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_notebooks_are_stripped():
    command = [sys.executable, "-m", "nbstripout", "--verify", *map(str, NOTEBOOKS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_notebook_is_stripped_and_has_its_metadata_and_its_twin(path):
    """`jupytext --sync notebooks/*.ipynb` writes the twin, in py:percent; the one and the other have the same cells."""
    import jupytext

    notebook, twin = stored(path), path.with_suffix(".py")
    assert all(cell.get("execution_count") is None and not cell.get("outputs") for cell in notebook.cells)
    assert notebook.metadata.kernelspec.name == "python3"
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert twin.is_file(), f"{twin.name} is missing"
    cells = [[(cell.cell_type, cell.source) for cell in jupytext.read(one).cells] for one in (path, twin)]
    assert cells[0] == cells[1]
    assert notebook.metadata["jupytext"]["formats"] == "ipynb,py:percent"

"""Notebooks: each one runs from top to bottom in fast mode, and is stored with the outputs of its code."""

import gc
import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Jupyter's libraries warn about each other and about the sockets that they leave to the garbage collector.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]


@pytest.fixture(scope="module")
def execute_notebooks():
    """The script; the libraries of notebooks take seconds to import."""
    spec = importlib.util.spec_from_file_location("execute_notebooks", ROOT / "docs" / "execute_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    settings = {"PYROBNN_NB_FAST": "1", "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    run_sync(manager.start_kernel)(cwd=str(NOTEBOOKS[0].parent), env=os.environ | settings)
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


def test_notebooks_are_small():
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 4 * 2**20


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_stored_outputs_are_of_the_stored_code(path, execute_notebooks):
    """After a change of code run `python docs/execute_notebooks.py`."""
    notebook = stored(path)
    assert notebook.metadata["pyrobnn"]["executed"] == execute_notebooks.fingerprint(notebook)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_the_first_cell_shows_a_picture(path, execute_notebooks):
    first = stored(path).cells[0]
    assert f"](attachment:{execute_notebooks.COVER})" in first.source
    assert first.attachments[execute_notebooks.COVER]["image/png"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_notebook_has_its_metadata_and_its_twin(path):
    """`jupytext --sync notebooks/*.ipynb` writes the twin, in py:percent; the one and the other have the same cells."""
    import jupytext

    notebook, twin = stored(path), path.with_suffix(".py")
    assert notebook.metadata.kernelspec.name == "python3"
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert twin.is_file(), f"{twin.name} is missing"
    cells = [[(cell.cell_type, cell.source) for cell in jupytext.read(one).cells] for one in (path, twin)]
    assert cells[0] == cells[1]
    assert notebook.metadata["jupytext"]["formats"] == "ipynb,py:percent"

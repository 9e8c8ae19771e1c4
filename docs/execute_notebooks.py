"""Run the notebooks in full and keep their outputs: `uv run python docs/execute_notebooks.py [01 05 ...]`.

Without numbers all notebooks run whose code has changed since their outputs were made. Pictures are kept with few
colours, so that all notebooks together stay below 4 MB; bars and warnings of other libraries are left out. The picture
of the cell that is tagged "cover" stands below the title too, so that readers see the result first.
"""

import argparse
import base64
import hashlib
import io
import os
import time
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
COVER = "cover.png"
_COLOURS, _WIDEST = 128, 1100


def fingerprint(notebook: Any) -> str:
    """Return a digest of the code of a notebook."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()[:16]


def execute(path: Path) -> None:
    """Run a notebook and write it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(FOLDER)}}).execute()
    cover = None
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        cell.outputs = [kept for output in cell.outputs if (kept := _kept(output)) is not None]
        pictures = [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]
        if pictures and "cover" in cell.metadata.get("tags", []):
            cover = pictures[-1]
    if cover is None:
        raise ValueError(f"{path.name} has no cell tagged 'cover' that makes a picture.")
    title = notebook.cells[0]
    title.attachments = {COVER: {"image/png": cover}}
    notebook.metadata["pyrobnn"] = {"executed": fingerprint(notebook)}
    notebook.metadata.get("language_info", {}).pop("version", None)
    nbformat.write(notebook, path)
    jupytext.write(notebook, path.with_suffix(".py"), fmt="py:percent")


def _kept(output: Any) -> Any:
    """Return an output as it is stored; None for what is written to the error stream."""
    if output.get("name") == "stderr":
        return None
    data = output.get("data", {})
    if "image/png" in data:
        data["image/png"] = _smaller(data["image/png"])
        data.pop("text/plain", None)
    return output


def _smaller(png: str) -> str:
    """Return a picture with few colours and no wider than a page, in base64."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    if image.width > _WIDEST:
        image = image.resize((_WIDEST, round(image.height * _WIDEST / image.width)), Image.Resampling.LANCZOS)
    found = io.BytesIO()
    image.quantize(_COLOURS, dither=Image.Dither.NONE).save(found, "PNG", optimize=True)
    return base64.b64encode(found.getvalue()).decode()


def main() -> None:
    """Run what is asked for, or what has changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", help="first characters of names, such as 01")
    arguments = parser.parse_args()
    os.environ.pop("PYROBNN_NB_FAST", None)
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        is_fresh = notebook.metadata.get("pyrobnn", {}).get("executed") == fingerprint(notebook)
        if path.name.startswith(tuple(arguments.numbers)) if arguments.numbers else not is_fresh:
            started = time.perf_counter()
            execute(path)
            size = path.stat().st_size / 1024
            print(f"{path.name}: {time.perf_counter() - started:.0f} s, {size:.0f} KB", flush=True)


if __name__ == "__main__":
    main()

"""The report of a folder of results: Markdown, pictures, a self-contained page, and rows as CSV and Parquet."""

import base64
import html
import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

import pyrobnn as bnn
from benchmarks.published import load_published
from benchmarks.report.parts import save_picture
from benchmarks.rows import Figure, Table, grid
from benchmarks.store import Record, Store
from benchmarks.suite import get_task

_PAGE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title><style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a;
  background: #fff }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; text-align: left; border-bottom: 1px solid #ddd; vertical-align: top }
th { border-bottom: 2px solid #888 } .wide { overflow-x: auto } img { max-width: 100% }
.note, figcaption { color: #555; font-size: 13px; max-width: 80ch } figure { margin: 2rem 0 }
pre { font-size: 12px; overflow-x: auto; background: #f5f5f5; padding: .6rem }
</style></head><body><h1>{{ title }}</h1>
{% for table in tables %}
<h2>{{ table.title }}</h2><p class="note">{{ table.note }}</p>
<div class="wide"><table><tr>{% for cell in table.header %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ bold(cell) }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endfor %}
{% for figure, picture in figures %}
<figure><img alt="{{ figure.name }}" src="data:image/svg+xml;base64,{{ picture }}">
<figcaption>{{ figure.caption }}</figcaption></figure>
{% endfor %}
<h2>Made with</h2>{% for line in provenance %}<p class="note">{{ line }}</p>{% endfor %}
</body></html>
""")


def write_report(folder: str | Path) -> list[Path]:
    """Write README.md, pictures (PNG), report.html, rows.csv and rows.parquet beside the results of a folder.

    Returns:
        The paths of all but the pictures.

    Raises:
        InputError: no results there.
    """
    folder = Path(folder)
    store = Store(folder)
    last = store.current()
    if not last:
        raise bnn.InputError(f"There are no results in {folder}: run a suite first.")
    rows = [row for record in last for row in record.rows]
    task = get_task(last[0].job.task)
    tables, pictures = task.tables(rows, load_published()), task.figures(rows)
    heading, made = store.title(), _provenance(last, store.num_planned())
    (folder / "README.md").write_text(_markdown(heading, tables, pictures, made), encoding="utf-8")
    (folder / "report.html").write_text(_page(heading, tables, pictures, made), encoding="utf-8")
    frame = _frame(last)
    words = [name for name in frame if not frame[name].map(lambda value: isinstance(value, list)).any()]
    frame[words].drop(columns="manifest").to_csv(folder / "rows.csv", index=False)
    frame.to_parquet(folder / "rows.parquet")
    for picture in pictures:
        save_picture(picture.figure, folder / f"{picture.name}.png")
    return [folder / name for name in ("README.md", "report.html", "rows.csv", "rows.parquet")]


def _provenance(records: list[Record], planned: int | None) -> list[str]:
    """Return how many of the planned jobs are done, and a line for each kind of machine and code that did them."""
    kinds = Counter(
        f"{made['cpu']}, {made['threads']} thread(s) a job, Python {made['python']}, torch {made['torch']}, pyro-ppl "
        f"{made['pyro-ppl']}, numpy {made['numpy']}, pyrobnn {made['pyrobnn']}, code {code}, {made['date'][:10]}"
        for made, code in ((record.manifest, record.job.code) for record in records)
    )
    seconds = sum(record.manifest["seconds"] for record in records)
    share = f" of {planned}" if planned and planned > len(records) else ""
    total = f"{len(records)}{share} jobs, {seconds / 60:.1f} minutes in all"
    return [
        f"{total}; `rows.jsonl` has settings and manifest of each.",
        *(f"{count} jobs: {kind}." for kind, count in kinds.items()),
    ]


def _markdown(title: str, tables: list[Table], figures: list[Figure], provenance: list[str]) -> str:
    blocks = [f"# {title}"]
    for table in tables:
        rows = [[cell.replace("|", "\\|") for cell in row] for row in table.rows]
        blocks += [f"## {table.title}", table.note, "\n".join(grid(table.header, rows))]
    blocks += [f"![{figure.name}]({figure.name}.png)\n\n{figure.caption}" for figure in figures]
    return "\n\n".join([*blocks, "## Made with", *provenance]) + "\n"


def _frame(records: list[Record]) -> pd.DataFrame:
    """Return a line for each row, with the key, the code and the manifest of its job."""
    return pd.DataFrame(
        row | {"key": record.job.key, "code": record.job.code, "manifest": json.dumps(record.manifest)}
        for record in records
        for row in record.rows
    )


def _page(title: str, tables: list[Table], figures: list[Figure], provenance: list[str]) -> str:
    drawn = [(figure, _svg(figure)) for figure in figures]
    return _PAGE.render(title=title, tables=tables, figures=drawn, provenance=provenance, bold=_bold)


def _bold(cell: str) -> Any:
    """Return a cell with **words** in bold, everything else escaped."""
    unbroken = html.escape(cell).replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", unbroken))


def _svg(figure: Figure) -> str:
    """Return the picture as text that is the same for the same rows."""
    drawn = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": figure.name}):
        figure.figure.savefig(drawn, format="svg", metadata={"Date": None})
    return base64.b64encode(drawn.getvalue()).decode()

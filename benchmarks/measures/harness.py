"""What all measures share: their interface, the command line, rows on file, and pages.

A measure is a module of `benchmarks.measures` with the names of `Measure`. Its first line says what it measures. Each
job gives rows, which are appended to `results/NAME.jsonl` when it is done: a measure that was stopped goes on with the
next job. `results/NAME.md` is the page of all rows.

Rows have the machine that gave them, `hardware`, and a digest of the code, `code`, which does not decide whether a job
is done, unlike in suites: most are times, which differ from run to run anyway, and all would have to be measured again
after each change of the library. `--again` measures what a change is about.
"""

import argparse
import importlib
import itertools
import json
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tqdm import tqdm

import pyrobnn as bnn
from benchmarks import RESULTS
from benchmarks.provenance import code_digest, describe_machine
from benchmarks.report.parts import save_picture
from benchmarks.rows import Row, grid
from benchmarks.store import append, whole_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Options = argparse.Namespace


@dataclass(frozen=True)
class Page:
    """The page of a measure: `results/NAME.md` and the pictures beside it.

    Attributes:
        title: the heading.
        about: what a reader must know of the numbers, line by line; it follows the line that names the command.
        lines: the tables, in Markdown.
        pictures: by the end of their names: "" is NAME.png.
        of: the end of the page's name, where a measure has several pages.
        dpi: dots per inch of the pictures.
    """

    title: str
    about: Sequence[str]
    lines: list[str]
    pictures: "Mapping[str, Figure]" = field(default_factory=dict)
    of: str = ""
    dpi: int = 110

    def write(self, name: str, path: Path, failed: Sequence[Row], origins: Mapping[str, Mapping[str, int]]) -> None:
        """Write the page and its pictures.

        Args:
            name: of the measure.
            path: of its rows.
            failed: rows of jobs that failed.
            origins: number of rows by the digest of the code, and by the machine, that gave them.
        """
        path = path.with_name(f"{path.stem}{self.of}.md")
        made = f"Made by `python -m benchmarks measure {name}`, which says what is measured."
        lines = [f"# {self.title}", "", made, *self.about, "", *self.lines]
        lines += ["", "Failed:", "", *(f"- {_words(row)}" for row in failed)] if failed else []
        for origin, counts in origins.items():
            said = "; ".join(f"{count} of {value}" for value, count in counts.items())
            lines += ["", f"Rows by their {origin}: {said}."] if counts else []
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        for end, figure in self.pictures.items():
            save_picture(figure, path.with_name(f"{path.stem}{end}.png"), self.dpi)


def _words(row: Row) -> str:
    return " ".join(", ".join(map(str, row.values())).split())


class Measure(Protocol):
    """The interface of a module of `benchmarks.measures`.

    `run` only returns rows, and `page` only returns what is shown: files are the harness's.
    """

    KEY: tuple[str, ...]
    """Columns that tell rows apart: of several rows with the same values the last counts."""
    OPTIONS: dict[str, Any]
    """Options: a value by default, a list of all choices (several may be given), or a dict of arguments of argparse."""
    jobs: Callable[[Options], Iterable[Row]]
    """From options to jobs, in order: all of KEY, with a list for a column in which the rows of a job differ."""
    run: Callable[[Row, Options], Iterable[Row]]
    """Do a job, and return its rows: one for each combination of the values listed, or more."""
    page: Callable[[list[Row], Options], Page]
    """From all rows on file (never none) to the page."""


def names() -> list[str]:
    """Return the names of all measures."""
    return sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - {"__init__", "harness"})


def listed() -> list[str]:
    """Return a line for each measure: its name, and what it measures."""
    files = {name: Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8") for name in names()}
    return [f"{name:18} {text.splitlines()[0].strip('"')}" for name, text in files.items()]


def load_measure(name: str) -> Measure:
    """Return the module of a measure.

    Raises:
        InputError: no measure of that name.
    """
    if name not in names():
        raise bnn.InputError(f"There is no measure {name!r}. Measures: {', '.join(names())}.")
    module: Measure = importlib.import_module(f"benchmarks.measures.{name}")
    return module


def rows_path(name: str, folder: Path = RESULTS) -> Path:
    """Return the file of the rows of a measure."""
    return folder / f"{name.replace('_', '-')}.jsonl"


def load_rows(name: str, folder: Path = RESULTS) -> list[Row]:
    """Return the rows of a measure on file: the last row of each key, in the order of their first rows."""
    path, key = rows_path(name, folder), load_measure(name).KEY
    rows = map(json.loads, whole_lines(path))
    return list({tuple(row.get(column) for column in key): row for row in rows}.values())


def run_measure(name: str, arguments: Sequence[str]) -> bool:
    """Do the jobs of a measure that have no rows yet, and write its page.

    A job that raises leaves rows that say how it `failed`, and is done again the next time.

    Returns:
        Whether all went well: no job failed, and what rows say of something that it `holds` does.
    """
    module = load_measure(name)
    options = parsed(name, module, arguments)
    path = rows_path(name, options.out)
    with warnings.catch_warnings(action="ignore"):
        rows = [] if options.again else _sound(load_rows(name, options.out))
        done = [] if options.report else _run(module, options, path, rows)
        if rows := load_rows(name, options.out):
            origins = {
                column: Counter(filter(None, [row.pop(column, None) for row in rows]))
                for column in ("code", "hardware")
            }
            failed = [row for row in rows if "failed" in row]
            module.page(_sound(rows), options).write(name, path, failed, origins)
    return all("failed" not in row and row.get("holds", True) for row in done)


def _sound(rows: list[Row]) -> list[Row]:
    return [row for row in rows if "failed" not in row]


def parsed(name: str, module: Measure, arguments: Sequence[str]) -> Options:
    """Return the options of a measure from the words of its command line."""
    command = f"python -m benchmarks measure {name}"
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(command, description=(module.__doc__ or ""), formatter_class=plain)
    for option, default in module.OPTIONS.items():
        if isinstance(default, dict):
            shape: dict[str, Any] = default
        elif isinstance(default, list):
            help_text = f"all by default: {', '.join(map(str, default))}"
            shape = {"nargs": "+", "choices": default, "type": type(default[0]), "metavar": option.upper()}
            shape |= {"default": default, "help": help_text}
        else:
            shape = {"default": default, "type": type(default), "help": f"{default} by default"}
        parser.add_argument(f"--{option}", **shape)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--again", action="store_true", help="do again what has rows, and let the new rows count")
    parser.add_argument("--report", action="store_true", help="only write the page from the rows that there are")
    return parser.parse_args(arguments)


def _run(module: Measure, options: Options, path: Path, rows: list[Row]) -> list[Row]:
    """Do the jobs that are not among the rows on file, and return the rows of these jobs."""
    every, hardware = [], "{cpu}, {cores} cores, {platform}".format(**describe_machine())
    origin = {"code": code_digest(module.__name__), "hardware": hardware}
    missing = [job for job in module.jobs(options) if not all(chosen(rows, **row) for row in expected(job))]
    for job in tqdm(missing, disable=None):
        try:
            done = [*module.run(job, options)]
        except Exception as error:  # whatever a library raises is a result, and the other jobs go on
            traceback.print_exc()
            failed = f"{type(error).__name__}: {str(error).strip()[:500]}"
            done = [row | {"failed": failed} for row in expected(job)]
        tqdm.write("\n".join(map(str, done)))
        append(path, (json.dumps(row | origin, ensure_ascii=False) for row in done))
        every += done
    return every


def expected(job: Row) -> list[Row]:
    """Return the rows that a job must give to be done, with the columns of the job."""
    values = [value if isinstance(value, list) else [value] for value in job.values()]
    return [dict(zip(job, row, strict=True)) for row in itertools.product(*values)]


def short(row: Row, digits: int = 4) -> Row:
    """Return a row with floats of that many significant digits."""
    return {key: float(f"{value:.{digits}g}") if isinstance(value, float) else value for key, value in row.items()}


def chosen(rows: Iterable[Row], /, **values: Any) -> list[Row]:
    """Return the rows that have these values."""
    return [row for row in rows if values.items() <= row.items()]


def plain_page(title: str, about: str, formats: Mapping[str, str]) -> Callable[[list[Row], Options], Page]:
    """Return the function `page` of a measure that shows all columns of its rows.

    Args:
        title: the heading.
        about: what a reader must know of the numbers.
        formats: of columns, as Python has them.
    """

    def page(rows: list[Row], options: Options) -> Page:
        columns = dict.fromkeys(column for row in rows for column in row)
        cells = ([_cell(row.get(column), formats.get(column, "")) for column in columns] for row in rows)
        return Page(title, [about], grid(list(columns), cells))

    return page


def _cell(value: Any, shape: str) -> str:
    return "" if value is None else format(value, shape)

"""The command line: pyrobnn demo, fit, diagnose, compare and predict."""

import os
import signal
import sys
import textwrap
import warnings
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import pyrobnn
from pyrobnn._core.errors import InputError, counted, printable, waiting
from pyrobnn._core.folders import check_writable
from pyrobnn._core.remedies import current_spelling
from pyrobnn.runs.folder import Manifest, check_new_run, new_run_folder, run_folder
from pyrobnn.runs.spec_files import data_of, leave_out, read_spec, sections_of
from pyrobnn.tables.reading import ENDINGS, check_names, ending

_LOADING = "loading torch and Pyro"
_MARKED = {"warning": "yellow", "note": None, "fine": "green"}
_SOURCE = "Spec file, or a CSV, Excel or Parquet file."
_TASK = "regression (numbers, counts) or classification (classes), where the target leaves it open."
_GROUPS = "Column of rows that belong together, such as patients: whole groups are held out."
_LAST = "Share of the rows to hold out from the end of the table, for rows in the order of time, such as 0.2."
_CATEGORIES = "How text becomes numbers, onehot or ordinal, or a column of numbers that are categories."
_SET = typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change the spec; may be repeated.")


class _Terminated(BaseException):
    """SIGTERM asked the process to end."""


class PlainErrors(TyperGroup):
    """Commands whose user errors are one line on stderr and an exit code of 2, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        ctx.call_on_close(partial(current_spelling.reset, current_spelling.set("command")))
        try:
            return super().invoke(ctx)
        except InputError as error:
            _fail(str(error), code=2)
        except OSError as error:
            named = f"{error.filename}: {error.strerror}." if error.filename is not None else error.strerror
            _fail(" ".join([named or str(error), *getattr(error, "__notes__", ())]), code=2)
        except (FloatingPointError, MemoryError, RuntimeError) as error:  # torch has no exception class for memory
            is_memory = isinstance(error, MemoryError) or "allocate" in str(error)
            if not (is_memory or isinstance(error, FloatingPointError)):
                raise
            _fail(f"{'Out of memory, choose smaller settings: ' * is_memory}{' '.join(str(error).split())}", code=1)
        except (KeyboardInterrupt, _Terminated) as error:
            number = signal.SIGTERM if isinstance(error, _Terminated) else signal.SIGINT
            notes = " ".join(getattr(error, "__notes__", ["the same command starts anew."]))
            _fail(f"stopped by {number.name}: {notes}", code=128 + number)


def _fail(text: str, *, code: int) -> None:
    """Say what is wrong, and end the command with a code."""
    said = "\n".join(line.rstrip() for line in printable(text).splitlines() if line.strip())
    typer.echo(f"{typer.style('error:', fg='red', bold=True)} {said}", err=True)
    raise typer.Exit(code) from None


def _such_as(*calls: str) -> str:
    """Return the last lines of a help text, with commands to copy."""
    return "\n".join(["For example:", *(f"pyrobnn {call}" for call in calls)])


app = typer.Typer(
    name="pyrobnn",
    help="Bayesian neural networks on Pyro: fit a table or a spec file, predict, and report.",
    epilog=_such_as("demo", "fit house.csv --target price", "predict runs/house new.csv --out predictions.csv"),
    cls=PlainErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line, with warnings as lines like the other findings, and end the process."""
    warnings.showwarning = lambda message, *_, **__: _say(str(message), "warning", err=True)
    signal.signal(signal.SIGTERM, _terminate)
    if hasattr(signal, "SIGPIPE"):  # a reader that goes away, as `head` does, ends the process quietly
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        app()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done; Python takes a moment to take torch apart


def _terminate(*_: Any) -> None:
    raise _Terminated


def _say(text: str, kind: str = "", *, err: bool = False) -> None:
    """Print text in lines of at most 100 columns, after its kind in a colour."""
    said = "\n".join(map(_broken, printable(f"{kind}: {text}" if kind else text).split("\n")))
    if said:
        start = typer.style(kind, fg=_MARKED[kind], bold=kind == "warning") if kind else ""
        typer.echo(start + said.removeprefix(kind), err=err)


def _broken(line: str) -> str:
    text, mark, command = line.partition(": pyrobnn ")
    if len(line) <= 100 or "  " in line:  # of a table
        return line
    kept = textwrap.fill(line.replace(" %", "\xa0%"), 100, break_long_words=False).replace("\xa0", " ")
    return f"{text}:\n  pyrobnn {command}" if mark else kept


@app.callback(invoke_without_command=True)
def _options(*, version: Annotated[bool, typer.Option("--version", help="Say which.")] = False) -> None:
    if version:
        typer.echo(f"pyrobnn {pyrobnn.__version__}")


@app.command(epilog=_such_as("demo --out runs/demo"))
def demo(
    *,
    out: Annotated[Path, typer.Option(help="Folder for the three run folders.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the fits.")] = 0,
) -> None:
    """Fit three small tables, print the results, and write a report on each (a minute); replaces an earlier one."""
    with waiting(_LOADING):
        from pyrobnn.runs import demo

    demo.demo(out, seed=seed, progress=sys.stderr.isatty(), say=_say)


@app.command(epilog=_such_as("fit house.csv --target price", "fit visits.csv --target score --groups patient"))
def fit(
    source: Annotated[Path, typer.Argument(metavar="SPEC|TABLE", help=_SOURCE, show_default=False)],
    *,
    target: Annotated[str | None, typer.Option(help="Column of the table to predict.")] = None,
    task: Annotated[str | None, typer.Option(help=_TASK)] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Column to leave out; may be repeated.")] = None,
    groups: Annotated[str | None, typer.Option(help=_GROUPS)] = None,
    test_last: Annotated[float | None, typer.Option(help=_LAST)] = None,
    categories: Annotated[list[str] | None, typer.Option(help=_CATEGORIES)] = None,
    sep: Annotated[str | None, typer.Option(help="What separates the columns, if the first lines do not tell.")] = None,
    decimal: Annotated[str | None, typer.Option(help="Mark of decimals: a point, or a comma.")] = None,
    encoding: Annotated[str | None, typer.Option(help="Of a file that is not UTF-8, such as cp1252.")] = None,
    changes: Annotated[list[str] | None, _SET] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/<name of the file> if not given.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run.")] = False,
) -> None:
    """Fit a table or a spec file, and write a run folder. The same command goes on with an interrupted fit by SVI."""
    given = {"target": target, "task": task, "drop": drop, "groups": groups, "test_last": test_last}
    given |= {"categories": categories, "sep": sep, "decimal": decimal, "encoding": encoding}
    folder = new_run_folder(source, overwrite=overwrite) if out is None else out
    given, rest = {key: value for key, value in given.items() if value not in (None, [])}, ["--overwrite"] * overwrite
    tables = sections_of(source, given, changes or (), rest if out is None else ["--out", str(out), *rest])
    check_new_run(folder, overwrite=overwrite)
    tables, lines = leave_out(tables) if ending(source) else (tables, [])
    with waiting(_LOADING):
        from pyrobnn.runs.run import run
        from pyrobnn.runs.spec import RunSpec

    spec = RunSpec.from_dict(tables)
    _say("\n".join(lines))
    _say(run(spec, folder, progress=sys.stderr.isatty(), overwrite=overwrite, tell=_say).summary)


@app.command(epilog=_such_as("diagnose runs/house"))
def diagnose(run_dir: Path) -> None:
    """Show whether to trust the fit of a run, what to do next, and the findings."""
    run_folder(run_dir)
    with waiting(_LOADING):
        from pyrobnn.report.words import concluded
        from pyrobnn.runs.run import read_diagnosis

    diagnosis = read_diagnosis(run_dir)
    _say(concluded(diagnosis, str(run_dir)))
    for finding in diagnosis.told:
        _say(finding.said("command"), finding.kind)


@app.command(epilog=_such_as("compare runs/house runs/no-street"))
def compare(run_dirs: list[Path]) -> None:
    """Compare runs on the test data that they share, example by example."""
    for folder in run_dirs:
        run_folder(folder)
    with waiting("comparing the runs"):
        from pyrobnn.runs.compared import compare_runs

        comparison = compare_runs(run_dirs)
    _say(str(comparison))


@app.command(epilog=_such_as("predict runs/house new.csv --out predictions.csv"))
def predict(
    run_dir: Path,
    table: Path,
    *,
    out: Annotated[Path | None, typer.Option(help="CSV file to write; standard output if not given.")] = None,
) -> None:
    """Predict for the rows of a CSV, Excel or Parquet file with the posterior of a run."""
    written = data_of(read_spec(run_folder(run_dir) / "spec.toml"))
    data = Manifest.read(run_dir).data
    check_names(table, [*(data.feature_names if data.encoder is None else data.encoder["columns"])], written)
    if out is not None:
        _check_out(out, table)
    with waiting(_LOADING):
        from pyrobnn.runs.predict import predict_table, rounded, write_table
        from pyrobnn.runs.run import read_diagnosis

    if (diagnosis := read_diagnosis(run_dir)).mood != "good":
        _say(f"{run_dir}: {diagnosis.conclusion}", err=True)
    predictions = rounded(predict_table(run_dir, table, on_note=partial(_say, err=True)))
    if out is None:
        predictions.to_csv(sys.stdout, index=False)
    else:
        write_table(predictions, out)
        _say(f"Predictions of {counted(len(predictions), 'row')}: {out}")


def _check_out(out: Path, table: Path) -> None:
    """Refuse a file of predictions that could not be written, or would replace a table."""
    problem = ""
    if out.is_file() and not ending(out):
        problem = f"is there already, and is no table ({', '.join(ENDINGS)})"
    elif out.suffix.lower() not in ("", ".csv", ".txt"):
        problem = f"ends in {out.suffix}, and predictions are written as CSV"
    elif not os.path.isdir(out.parent):
        problem = f"is in no folder, {out.parent} is not there"
    elif out.exists() and out.samefile(table):
        problem = "is the table to predict for, and would be replaced"
    if problem:
        raise InputError(f"--out {out} {problem}: choose another name, such as predictions.csv.")
    check_writable(out, "file")

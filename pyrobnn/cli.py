"""The command line: pyrobnn demo, fit, diagnose, compare, predict and data."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from pyrobnn._core.errors import InputError, counted, printable
from pyrobnn._core.folders import check_writable
from pyrobnn._core.waiting import waiting
from pyrobnn.runs import run_folders
from pyrobnn.runs.endings import PlainErrors, ended_by, escaped, kept_of, stopped_cleanly
from pyrobnn.runs.run_folders import check_new_run, is_run_folder, new_run_folder, run_folder
from pyrobnn.runs.spec_files import first_line, left_out, sections_of, target_of
from pyrobnn.tables.files import ENDINGS, check_names, ending

_OF_PREDICTIONS = ("", ".csv", ".txt")
"""Endings of names of files that `predict` writes."""
_LOADING = "loading torch and Pyro"
_UNFINISHED = ".unfinished"
"""Suffix of the name of a run folder until its fit is done."""
_MARKED = {"warning": "[bold yellow]warning[/]", "note": "note", "fine": "[green]fine[/]"}
_SOURCE = "Spec file, or a CSV, Excel or Parquet file."
_CHANGES = "Change the spec; may be repeated."
_CATEGORIES = "How text becomes numbers: onehot (as without it), or ordinal."


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
data_app = typer.Typer(help="Data sets known by name.", epilog=_such_as("data list"), no_args_is_help=True)
app.add_typer(data_app, name="data")


def main() -> None:
    """Run the command line, with warnings as lines like the other findings, and end the process."""
    ended_by(app)


def _version(value: bool) -> bool:  # noqa: FBT001 - the form typer asks for
    if value:
        import pyrobnn

        typer.echo(f"pyrobnn {pyrobnn.__version__}")
        raise typer.Exit
    return value


@app.callback()
def _options(
    *, version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False
) -> None:
    pass


@app.command(epilog=_such_as("demo --out runs/demo"))
def demo(
    *,
    out: Annotated[Path, typer.Option(help="Folder for the three run folders.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the fits.")] = 0,
) -> None:
    """Fit three small tables, print the results, and write a report on each (about a minute).

    An earlier demonstration in the folder is replaced.
    """
    with stopped_cleanly(lambda: f"the finished part is in {out}" if out.exists() else "nothing was done yet"):
        with waiting(_LOADING):
            from pyrobnn.runs import demo

        demo.demo(out, seed=seed, progress=True, console=Console(soft_wrap=False))


@app.command(
    epilog=_such_as("fit house.csv --target price", "fit house.csv --target price --drop street --out runs/no-street"),
)
def fit(
    source: Annotated[Path | None, typer.Argument(metavar="SPEC|TABLE", help=_SOURCE, show_default=False)] = None,
    column: Annotated[str | None, typer.Argument(metavar="TARGET", help="As --target.", show_default=False)] = None,
    *,
    target: Annotated[str | None, typer.Option(help="Column of the table to predict.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help=_CHANGES)] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Column to leave out; may be repeated.")] = None,
    categories: Annotated[str | None, typer.Option(help=_CATEGORIES)] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/<name of the spec> if not given.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run.")] = False,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run, which was interrupted.")] = None,
) -> None:
    """Fit a table or a spec file; score the fit on the test part, and write a run folder."""
    if (source is None) == (resume is None):
        given = "nothing was given" if source is None else "not both"
        raise InputError(f"`fit` needs a table or a spec file, or --resume with a run folder: {given}.")
    changes = [*(changes or ()), *([f"data.drop={json.dumps(drop)}"] if drop else ())]
    changes += [f"data.categories={categories}"] if categories is not None else []
    target = target_of(source, column, target)
    if source is not None:
        _fit_new(source, target, tuple(changes), out, overwrite=overwrite)
    elif target or changes or out or overwrite:
        raise InputError("--resume goes on with the spec of the run: leave out other options.")
    elif resume is not None:
        is_checkpoint = resume.name.endswith(_UNFINISHED) and not is_run_folder(resume)
        folder = resume.with_name(resume.name.removesuffix(_UNFINISHED)) if is_checkpoint else resume
        with stopped_cleanly(lambda: kept_of(folder)):
            with waiting(_LOADING):
                from pyrobnn.runs.run import resume as resume_run

            result = resume_run(folder, progress=True)
        _show(result)


def _fit_new(source: Path, target: str | None, changes: tuple[str, ...], out: Path | None, *, overwrite: bool) -> None:
    """Run a spec; checks without torch come before its import, which takes seconds."""
    folder = new_run_folder(source, overwrite=overwrite) if out is None else out
    tables = sections_of(source, target)
    line = first_line(tables, changes)
    check_new_run(folder, overwrite=overwrite)
    typer.echo(printable(line))
    made, lines = left_out(tables, changes) if ending(source) else ([], [])
    typer.echo(printable("\n".join(lines)), nl=bool(lines))
    with stopped_cleanly(lambda: kept_of(folder)):
        with waiting(_LOADING):
            from pyrobnn.runs.run import run
            from pyrobnn.runs.spec import RunSpec, apply_overrides

        spec = RunSpec.from_dict(apply_overrides(tables, (*changes, *made)))
        result = run(spec, folder, progress=True, overwrite=overwrite, on_prepared=_say_how)
    _show(result)


def _say_how(prepared: Any) -> None:
    typer.echo(printable("\n".join([*prepared.dataset.notes, *prepared.dataset.doubts, prepared.sentence])))


def _show(result: Any) -> None:
    from pyrobnn.report.words import concluded, found
    from pyrobnn.runs.demo import score_table

    said = found(result.scores, result.baselines, result.train, len(result.test), has_test=True)
    lines = said, concluded(result.diagnosis, str(result.path)), result.learned
    typer.echo(printable("\n".join(filter(None, lines))))
    Console().print(score_table(counted(len(result.test), "test example"), result.scores, result.baselines))
    typer.echo(f"Report: {result.path / 'report.html'}")


@app.command(epilog=_such_as("diagnose runs/house"))
def diagnose(run_dir: Path) -> None:
    """Show whether to trust the fit of a run, what to do next, and the findings."""
    run_folder(run_dir)
    with waiting(_LOADING):
        from pyrobnn.report.words import concluded
        from pyrobnn.runs.run import read_diagnosis

    with waiting("checking the fit"):
        diagnosis = read_diagnosis(run_dir)
    typer.echo(printable(concluded(diagnosis, str(run_dir))))
    for finding in diagnosis.findings:
        said = f"{_MARKED[finding.kind]}: {escaped(finding.said('command'))}"
        Console().print(said, highlight=False, soft_wrap=True)
    warnings = counted(num, "warning") if (num := len(diagnosis.warnings)) else "No warnings"
    typer.echo(f"{warnings} from {counted(len(diagnosis.findings), 'check')}.")


@app.command(epilog=_such_as("compare runs/house runs/no-street"))
def compare(run_dirs: list[Path]) -> None:
    """Compare runs on the test data that they share, example by example."""
    for folder in run_dirs:
        run_folder(folder)
    with waiting(_LOADING):
        from pyrobnn.report.words import text
        from pyrobnn.runs.compared import compare_runs

    with waiting("comparing the runs"):
        comparison = compare_runs(run_dirs)
    Console().print(escaped(comparison.verdict), highlight=False, soft_wrap=True)
    for table in comparison.tables:
        Console().print("", table, "", sep="\n")
    names = list(comparison.scores)
    settings = Table("setting", *map(escaped, names), title="differences", title_justify="left")
    for key, values in comparison.specs.items():
        settings.add_row(escaped(key), *(escaped(text(values[name])) for name in names))
    if comparison.specs:
        Console().print(settings)


@app.command(epilog=_such_as("predict runs/house new.csv --out predictions.csv"))
def predict(
    run_dir: Path,
    table: Path,
    *,
    out: Annotated[Path | None, typer.Option(help="CSV file to write; standard output if not given.")] = None,
) -> None:
    """Predict for the rows of a CSV, Excel or Parquet file with the posterior of a run."""
    check_names(table, run_folders.columns_of_run(run_folder(run_dir)))
    if out is not None:
        _check_out(out, table)
    with waiting(_LOADING):
        from pyrobnn.runs.files import predict_table, rounded, write_predictions

    predictions = rounded(predict_table(run_dir, table, on_note=lambda note: typer.echo(printable(note), err=True)))
    if out is None:
        predictions.to_csv(sys.stdout, index=False)
    else:
        write_predictions(predictions, out)
        typer.echo(f"Predictions of {counted(len(predictions), 'row')}: {out}")


def _check_out(out: Path, table: Path) -> None:
    """Refuse a file of predictions that could not be written, or would replace a table."""
    if out.is_file() and not ending(out):
        endings = ", ".join(ENDINGS)
        raise InputError(
            f"--out {out} is there already, and is no table ({endings}): choose another name, or delete it."
        )
    if out.suffix.lower() not in _OF_PREDICTIONS:
        raise InputError(
            f"--out {out} ends in {out.suffix}, and predictions are written as CSV: choose a name that ends in .csv."
        )
    if out.exists() and out.samefile(table):
        raise InputError(f"--out {out} is the table to predict for, and would replace it: choose another name.")
    if not os.path.isdir(out.parent):
        raise InputError(f"There is no folder {out.parent} for --out: make it, or choose another.")
    check_writable(out, "file")


@data_app.command("list", epilog=_such_as("data list"))
def list_data() -> None:
    """List the data sets."""
    from pyrobnn import datasets

    columns = (Column(name, no_wrap=True) for name in ("name", "task", "rows", "cols", "splits", "here"))
    table = Table(*columns, "licence", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for entry in datasets.info():
        cells = *map(str, (entry.rows, entry.columns, entry.splits)), "yes" if entry.available else "no"
        table.add_row(entry.name, entry.task, *cells, entry.licence.partition(" (")[0])
    Console().print(table)


@data_app.command(epilog=_such_as("data fetch yacht energy"))
def fetch(names: list[str]) -> None:
    """Download data sets that are not here yet."""
    from pyrobnn import datasets

    for name in names:
        typer.echo(f"{name}: {datasets.fetch(name)}")

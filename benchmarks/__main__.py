"""The command line: `run SUITE`, `report FOLDER`, `diff A B`, `rerun FOLDER [KEY]`, `measure NAME`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import pyrobnn as bnn

app = typer.Typer(
    help="Run suites of benchmarks, and report and compare their results.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_console = Console(stderr=True)


@app.command()
def run(
    suite: Annotated[Path, typer.Argument(help="Suite file, such as benchmarks/suites/uci-quick.toml.")],
    *,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results; benchmarks/results/SUITE if left out.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Number of jobs at a time.")] = 1,
    any_code: Annotated[bool, typer.Option(help="Keep jobs that other versions of the code have finished.")] = False,
    only: Annotated[str, typer.Option(help="Run only jobs whose label contains this text.")] = "",
    keep: Annotated[Path | None, typer.Option(help="Folder where fits of `mnist` go on after an interruption.")] = None,
) -> None:
    """Do the jobs of a suite that are not finished, and write its report."""
    from benchmarks import RESULTS
    from benchmarks.report.page import write_report
    from benchmarks.runner import run_suite
    from benchmarks.store import Store
    from benchmarks.suite import load_suite

    loaded = load_suite(suite)
    folder = out or RESULTS / loaded.name
    failures = run_suite(loaded, out=folder, keep=keep, workers=workers, any_code=any_code, only=only)
    if Store(folder).current():
        for path in write_report(folder):
            typer.echo(path)
    for label, fault in failures.items():
        _console.print(f"failed: {label}: {fault}", style="red", markup=False, highlight=False)
    if failures:
        raise typer.Exit(1)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="A folder of results.")]) -> None:
    """Write the tables (Markdown, CSV) and the page (HTML) of results on file."""
    from benchmarks.report.page import write_report

    for path in write_report(folder):
        typer.echo(path)


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="A folder of earlier results.")],
    after: Annotated[Path, typer.Argument(help="A folder of later results.")],
) -> None:
    """Compare two runs of a suite, also of other seeds or versions: which scores changed, and by more than chance?"""
    from benchmarks.compare import differences

    typer.echo(differences(before, after))


@app.command()
def rerun(
    folder: Annotated[Path, typer.Argument(help="A folder of results.")],
    key: Annotated[str, typer.Argument(help="Key of a job, or its first characters; all jobs if left out.")] = "",
) -> None:
    """Do finished jobs again from what is on file, and say whether the same rows come out."""
    from benchmarks.compare import compared, find_records
    from benchmarks.runner import rerun as again

    hold = []
    for record in find_records(folder, key):
        judged = compared([record], [again(record)])
        typer.echo(judged.text)
        hold.append(judged.holds)
    if not all(hold):
        raise typer.Exit(1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def measure(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What to measure; all measures are listed where it is left out.")] = "",
) -> None:
    """Do the jobs of a measure that have no rows yet, and write its page; `measure NAME --help` has the options."""
    from benchmarks.measures.harness import listed, run_measure

    if name in ("", "--help"):
        typer.echo("\n".join(listed()))
    elif not run_measure(name, context.args):
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; a refusal is a line without a traceback."""
    try:
        app()
    except bnn.InputError as error:
        _console.print(str(error), style="red", markup=False, highlight=False)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()

"""How commands end: errors and signals in one line on standard error, with an exit code, and no traceback."""

import atexit
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from pyrobnn._core.errors import InputError, nearest, printable
from pyrobnn._core.remedies import reader
from pyrobnn.runs.run_folders import go_on, is_complete, is_run_folder, unfinished_folder

_NoSuchOption: Any = sys.modules[typer.BadParameter.__module__].NoSuchOption
"""The error of click, or of typer's own copy of it, for an unknown option."""


class PlainErrors(TyperGroup):
    """Commands whose user errors are one line on stderr and an exit code of 2, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except _NoSuchOption as error:
            near = nearest(error.option_name, error.possibilities or ())
            error.possibilities = near and [near]
            raise
        except InputError as error:
            fail(error, code=2)
        except OSError as error:
            named = f"{error.filename}: {error.strerror}." if error.filename is not None else error.strerror
            fail(" ".join([named or str(error), *getattr(error, "__notes__", ())]), code=2)
        except FloatingPointError as error:
            fail(error, code=1)
        except KeyboardInterrupt:
            fail("stopped by SIGINT: nothing is kept.", code=128 + signal.SIGINT)
        except (MemoryError, RuntimeError) as error:  # torch has no exception class for memory
            if isinstance(error, RuntimeError) and "allocate" not in str(error):
                raise
            fail(f"Out of memory, choose smaller settings: {error}", code=1)


def ended_by(app: Callable[[], Any]) -> None:
    """Run an app of typer, with warnings as lines like the other findings, and end the process."""
    warnings.showwarning = _warned
    reader.set("command")
    if hasattr(signal, "SIGPIPE"):  # a reader that goes away, as `head` does, ends the process quietly
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        app()
    except SystemExit as left:
        if isinstance(left.code, int):
            _end(left.code)
        raise


def _end(code: int) -> None:
    """End the process at once: Python takes a second or two to take torch apart, object by object."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def _warned(message: Warning | str, *_: Any, **__: Any) -> None:
    Console(stderr=True).print(f"[bold yellow]warning[/]: {escaped(str(message))}", soft_wrap=True, highlight=False)


class _Stopped(BaseException):
    """SIGTERM asked the process to end."""


@contextmanager
def stopped_cleanly(kept: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C or SIGTERM report in one line the files that are kept, and end with the code of the signal.

    A fit puts Python's own Ctrl-C off to the end of a step, and writes a checkpoint.
    """

    def stop(number: int, _frame: Any) -> None:
        raise _Stopped(number)

    in_main = threading.current_thread() is threading.main_thread()  # elsewhere Python takes no handlers
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: stop} if in_main else {}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    except (KeyboardInterrupt, _Stopped) as stopped:
        number = signal.SIGTERM if isinstance(stopped, _Stopped) else signal.SIGINT
        fail(f"stopped by {number.name}: {kept()}.", code=128 + number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def kept_of(folder: Path) -> str:
    """Say whether a run that was stopped is kept, and how it goes on."""
    is_begun = (unfinished_folder(folder) / "spec.toml").exists()
    if is_begun or (is_run_folder(folder) and not is_complete(folder)):
        what = "the last checkpoint" if is_begun else "the fit"
        return f"{what} is kept, go on with `{go_on(folder)}`"
    return "nothing is kept, as there was no result and no checkpoint yet; the same command starts anew"


def fail(error: Exception | str, *, code: int) -> None:
    """Say what is wrong, and end the command with a code."""
    lines = str(error).splitlines() if isinstance(error, InputError) else [" ".join(str(error).split())]
    text = "\n".join(line.rstrip() for line in lines if line.strip())
    Console(stderr=True).print(f"[bold red]error:[/] {escaped(text)}", soft_wrap=True, highlight=False)
    raise typer.Exit(code) from None


def escaped(text: str) -> str:
    """Return text as rich prints it, unchanged but for characters that a terminal would obey."""
    return escape(printable(text))

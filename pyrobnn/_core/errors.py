"""What users are told: errors, warnings, hints for unknown names, and bars where somebody watches."""

import contextlib
import difflib
import multiprocessing
import re
import reprlib
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyrobnn._core.remedies import Remedy, mended

_PASSED_OVER = (str(Path(__file__).parents[1]), contextlib.__file__.removesuffix(".py"))  # no frames of the user's
REFUSALS = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)  # by which nets refuse
MOST_LISTED, _MOST_QUOTED, _MOST_OF_NAME = 10, 200, 60  # names, and characters of a word and of a listed name


class InputError(ValueError):
    """Raised before any work starts; the message names the value, the expectation and a remedy.

    Control characters, as in names of columns, are escaped: a terminal would obey them.

    Args:
        message: the text.
        page: the page of docs/ with details, such as "how-to/priors"; the message then ends with it.

    Examples:
        >>> bnn.InputError("`scale` must be greater than 0, got -1.", page="how-to/priors")
        InputError('`scale` must be greater than 0, got -1. See docs/how-to/priors.md.')
    """

    def __init__(self, message: str, *, page: str | None = None) -> None:
        text = re.sub(rf"(\S{{{_MOST_QUOTED}}})\S+", r"\1...", printable(message))
        super().__init__(text + ("" if page is None else f" See docs/{page}.md."))


class NotCapturable(Exception):
    """The step cannot run as a recorded graph; the message says why, and the fit goes on without."""


class PoorFitWarning(UserWarning):
    """A fit predicts no better than a constant, far worse than a linear model, or still drifts; or it is bound to.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore", category=bnn.PoorFitWarning):  # five steps are too few
        ...     posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(bnn.datasets.sinusoid(), steps=5, seed=0)
    """


class FewDrawsWarning(UserWarning):
    """The mean of predicted targets, or their log score, rests on a few of the draws, and lies far from the others.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore", category=bnn.FewDrawsWarning):
        ...     bnn.Prediction(torch.distributions.Poisson(torch.tensor([[1.0]] * 9 + [[99.0]]))).mean  # of ten draws
        tensor([10.8000])
    """


def warn_user(message: str, category: type[Warning] = UserWarning, *, remedy: Remedy | None = None) -> None:
    """Warn at the line of the user's code that called the package, with what to try."""
    warnings.warn(mended(message, remedy), category, skip_file_prefixes=_PASSED_OVER)


def printable(text: str) -> str:
    """Return text with everything that is not printed, beside spaces and ends of lines, written as an escape."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


_SHORT = reprlib.Repr(maxstring=200, maxother=200, maxlist=10, maxtuple=10, maxdict=10)


def shown(value: Any) -> str:
    """Return a value as messages show it: in one line, and arrays, tensors and data frames by their shape."""
    shape = getattr(value, "shape", None)
    text = f"{type(value).__name__} of shape {tuple(shape)}" if isinstance(shape, tuple) else _SHORT.repr(value)
    return " ".join(text.split())


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the nearest known name, or None if none is near."""
    names = list(known)
    letters = {other.replace("_", "").lower(): other for other in reversed(names)}
    same = letters.get(name.replace("_", "").lower())
    return same or next(iter(difflib.get_close_matches(name, names, n=1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" with the nearest known name, or nothing if none is near."""
    near = nearest(name, known)
    return "" if near is None else f" Did you mean {near!r}?"


def unknown_setting(name: str, known: Sequence[str]) -> str:
    """Say that a setting is unknown, which are known, and which is near."""
    hint = did_you_mean(name, known)
    listed = f"known are {', '.join(known)}" if known else "there are none here"
    return f"unknown setting `{name}`; {listed}{hint and '.'}{hint}"


def listed(values: Iterable[Any], between: str = ", ") -> str:
    """Return values in words: the first ten of a user's, and how many more there are."""
    shown = [name if len(name) <= _MOST_OF_NAME else f"{name[:_MOST_OF_NAME]}..." for name in map(str, values)]
    more = f" and {len(shown) - MOST_LISTED:,} more" if len(shown) > MOST_LISTED else ""
    return between.join(shown[:MOST_LISTED]) + more


def counted(num: int, noun: str) -> str:
    """Return a number with its noun, which has a regular plural: 1 row, 1,200 rows."""
    return f"{num:,} {noun}" if num == 1 else f"{num:,} {noun}{'es' if noun.endswith('s') else 's'}"


def progress_bar(steps: Any = None, *, shown: bool, **options: Any) -> Any:
    """Return a bar of tqdm with its options, drawn if it is to be shown on a terminal or in a notebook."""
    from tqdm.std import tqdm

    in_notebook = type(sys.stderr).__module__.startswith("ipykernel.")
    return tqdm(steps, disable=not (shown and (in_notebook or _has_terminal())), **options)


@contextmanager
def waiting(words: str, *, shown: bool = True) -> Iterator[None]:
    """Show words on a terminal while the block runs."""
    with contextlib.ExitStack() as stack:
        if shown and _has_terminal():
            from rich.console import Console

            stack.enter_context(Console(stderr=True).status(f"{words} ..."))
        yield


def _has_terminal() -> bool:
    return sys.stderr.isatty() and multiprocessing.current_process().name == "MainProcess"

"""The report of a run: a self-contained HTML page."""

from pyrobnn.report.page import RunFacts, render

__all__ = ["RunFacts", "render"]


def __dir__() -> list[str]:
    return __all__

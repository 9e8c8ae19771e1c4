"""The report of a run: a self-contained HTML page."""

from pyrobnn.report.page import Facts, render

__all__ = ["Facts", "render"]


def __dir__() -> list[str]:
    return __all__

"""The report of a run: a self-contained HTML page."""

from pyrobnn.report.page import RunFacts, render

__all__ = ["RunFacts", "render"]
__dir__ = __all__.copy

"""The report of a run: one HTML page that needs nothing but itself."""

from pyrobnn.report.page import Rendered, render

__all__ = ["Rendered", "render"]

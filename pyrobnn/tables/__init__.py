"""Tables of users: files of rows and columns, and frames, read into numbers, categories and dates."""

from pyrobnn.tables.schema import Reading
from pyrobnn.tables.table import Table, read

__all__ = ["Reading", "Table", "read"]

"""Reports: tables and figures of the rows of a suite, with published numbers beside them."""

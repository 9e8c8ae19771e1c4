"""The tasks of a suite, one module each."""

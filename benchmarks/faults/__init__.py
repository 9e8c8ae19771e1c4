"""Parts of the measure `faults`: each breaks something on purpose, many times."""

"""Tasks of suites: each module does the jobs of a kind of suite."""

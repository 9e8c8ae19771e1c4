"""Reproducible benchmarks: suites of jobs, a runner that never does one twice, and reports with published numbers."""

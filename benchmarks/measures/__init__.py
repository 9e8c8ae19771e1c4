"""Measures: a file for each thing that is measured, with its options, jobs, rows and page. `harness` runs them."""

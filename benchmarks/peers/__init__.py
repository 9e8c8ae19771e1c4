"""Engines of other libraries beside pyrobnn: scripts, each run in an environment that has its library.

These environments have neither pyrobnn nor what it needs. Their processes get the repository on PYTHONPATH, so scripts
import from `benchmarks.peers` like everything else; what they import needs nothing but NumPy and their library.
"""

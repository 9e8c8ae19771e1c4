"""Recorded steps as tables of instructions, run by one library that is compiled once for a machine."""

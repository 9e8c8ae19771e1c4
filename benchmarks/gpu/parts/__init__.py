"""The parts of the GPU kit: each module has `checks(setting)`, which yields names of rows and their functions."""

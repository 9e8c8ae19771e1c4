"""The command line as a module: `python -m pyrobnn`, and `torchrun -m pyrobnn` for several processes."""

from pyrobnn.cli import main

main()

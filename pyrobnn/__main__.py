"""The command line as a module: `python -m pyrobnn`."""

import os
import signal
from types import FrameType


def main() -> None:
    """Run the command line; Ctrl-C while it is imported ends the process in one line, too."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, _end)
    from pyrobnn import cli

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


def _end(number: int, _frame: FrameType | None) -> None:
    os.write(2, b"error: stopped by SIGINT: nothing was done yet.\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()

"""The command line of the GPU kit.

    python -m benchmarks.gpu                                  on a card, within 8 minutes
    python -m benchmarks.gpu --device cpu --rehearse          every part small, within 5 minutes on 2 cores
    python -m benchmarks.gpu --only graphs --resume           one part, without the rows that are on file

Writes benchmarks/results/gpu-<name of the device>.{json,md} after each row. Nothing is downloaded. It ends with 1 where
a row failed.
"""

import argparse
import re
import sys
from pathlib import Path

import torch

from benchmarks import RESULTS
from benchmarks.gpu.runner import PARTS, run_parts


def main(arguments: list[str] | None = None) -> int:
    """Run the parts asked for on the command line, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--rehearse", action="store_true", help="every part small: for a machine without a card")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--only", choices=PARTS, metavar="PART", help=f"one of {', '.join(PARTS)}")
    parser.add_argument(
        "--resume", action="store_true", help="go on with an interrupted run: keep the rows that did not fail"
    )
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here: rehearse with --device cpu --rehearse")
    if options.device == "cpu" and not options.rehearse:
        parser.error("the whole kit is for a card: add --rehearse on a CPU")
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    name = "-".join(["gpu", re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-"), *(["rehearsal"] * options.rehearse)])
    parts = {options.only: PARTS[options.only]} if options.only else PARTS
    failures = run_parts(
        parts, options.out / name, device=options.device, rehearse=options.rehearse, resume=options.resume
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

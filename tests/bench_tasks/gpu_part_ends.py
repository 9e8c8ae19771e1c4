"""A part of the GPU kit whose process ends after its first row: at once, or never if GPU_PART_HANGS is set."""

import os
import sys
import time


def checks(setting):
    yield "first", dict
    yield "second", _end


def _end():
    if "GPU_PART_HANGS" in os.environ:
        time.sleep(600)
    print("the device is lost", file=sys.stderr, flush=True)
    os._exit(3)

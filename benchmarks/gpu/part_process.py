"""Does the checks of a part in a process: `python -m benchmarks.gpu.part_process MODULE`.

It reads its setting from standard input and prints rows, all as JSON.
"""

import json
import os
import sys
import warnings
from importlib import import_module

from benchmarks.gpu.check import Setting, rows


def main() -> None:
    """Do the checks of a part."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no row
    warnings.simplefilter("ignore")
    request = json.loads(sys.stdin.read())
    setting = Setting(**request["setting"])
    checks = import_module(sys.argv[1]).checks(setting)
    for row in rows(checks, setting, set(request["skip"])):
        print(json.dumps(row), file=answers, flush=True)


if __name__ == "__main__":
    main()

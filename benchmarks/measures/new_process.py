"""Calls a function in a new process: `python -m benchmarks.measures.new_process MODULE NAME ARGUMENTS`.

Arguments and result are JSON. Nothing is imported beside that module, so the function sees a process that is new.
"""

import json
import sys
import warnings
from importlib import import_module

if __name__ == "__main__":
    module, name, arguments = sys.argv[1:]
    with warnings.catch_warnings(action="ignore"):
        print(json.dumps(getattr(import_module(module), name)(*json.loads(arguments))))

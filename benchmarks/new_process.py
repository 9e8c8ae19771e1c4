"""Calls a function in a new process: `python -m benchmarks.new_process MODULE NAME ARGUMENTS`.

Arguments and result are JSON. Nothing is imported beside that module, so the function sees a process that is new.
"""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def in_process(function: Callable[..., Any], *arguments: Any, launcher: Sequence[str] = (), **environment: str) -> Any:
    """Return the result of a function that runs in a new process; arguments and result are JSON values.

    Args:
        function: what to call, by its name and module.
        arguments: of the function.
        launcher: arguments of the interpreter before those that start the function.
        environment: variables to set.
    """
    words = [function.__module__, function.__name__, json.dumps(arguments)]
    command = [sys.executable, *launcher, "-m", "benchmarks.new_process", *words]
    done = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    module, name, arguments = sys.argv[1:]
    with warnings.catch_warnings(action="ignore"):
        print(json.dumps(getattr(import_module(module), name)(*json.loads(arguments))))

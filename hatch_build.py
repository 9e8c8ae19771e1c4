"""Compiles the library that runs recorded steps when the package is installed where there is a C++ compiler.

Without one the wheel is pure Python, and the library is compiled at first use. `CXX=false uv build` makes a wheel for
all machines.
"""

import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = "pyrobnn/tape/build.py"


class CompiledLibrary(BuildHookInterface):
    """Puts the library beside its source, and into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it."""
        spec = importlib.util.spec_from_file_location("build", Path(self.root) / BUILD)
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        build.INSTALLED.mkdir(exist_ok=True)
        for old in build.INSTALLED.iterdir():
            old.unlink()
        library = build.INSTALLED / build.file_name()
        try:
            build.compile_library(library)
        except build.BuildError as error:
            print(f"pyrobnn compiles its library at first use: {error}", file=sys.stderr)
            return
        if version != "editable":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data |= {"pure_python": False, "tag": f"py3-none-{platform}"}
            build_data["artifacts"].append(str(library.relative_to(self.root)))

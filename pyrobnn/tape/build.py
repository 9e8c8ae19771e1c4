"""Compiling the library that runs tables of instructions: at installation (`hatch_build.py`), or at first use.

It imports the standard library alone, since neither torch nor pyrobnn is there when a wheel is built.
"""

import hashlib
import os
import platform
import shlex
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("tape.cpp")
INSTALLED = Path(__file__).with_name("lib")
"""Where the installation puts the library: beside modules, tools that walk a package would import it."""
_CPUINFO = Path("/proc/cpuinfo")
_OPTIONS = ("-std=c++17", "-O2", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_ATTEMPTS = (("-ftree-vectorize", "-fvect-cost-model=dynamic", "-fopenmp"), ("-ftree-vectorize", "-fopenmp"), ())
"""More options: of GCC, of Clang with OpenMP, and of any compiler."""
_LEVELS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "bmi2", "fma", "f16c"},
    "x86-64-v3": {"avx2", "bmi2", "fma", "f16c", "movbe"},
    "x86-64": set[str](),
}
"""Vector instructions of x86 processors by the names of compilers, with flags by which Linux shows them."""


class BuildError(Exception):
    """There is no C++ compiler that works."""


def level() -> str | None:
    """Return the vector instructions of this processor, as `-march` takes them; None where there is one kind."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    lines = _CPUINFO.read_text(encoding="utf-8").splitlines() if _CPUINFO.exists() else []
    flags = next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set[str]())
    return next(name for name, needed in _LEVELS.items() if needed <= flags)


def file_name() -> str:
    """Return the name of the library for this system, its kind of processor, and this source."""
    parts = (_OPTIONS, _ATTEMPTS, SOURCE.read_text(encoding="utf-8"))
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return f"tape-{platform.system()}-{level() or platform.machine()}-{digest}.so".lower()


def compile_library(library: Path) -> None:
    """Write the library for this processor; raise `BuildError` without a C++ compiler that works."""
    compiler, target = shlex.split(os.environ.get("CXX", "c++")), level()
    march = [] if target is None else [f"-march={target}"]
    for more in _ATTEMPTS:
        try:
            command = [*compiler, *_OPTIONS, *march, *more, str(SOURCE), "-o", str(library)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except (OSError, IndexError) as error:
            raise BuildError(f"there is no C++ compiler {shlex.join(compiler)!r} ({error})") from None
        if done.returncode == 0:
            return
    raise BuildError(f"the C++ compiler {compiler[0]!r} failed ({(done.stderr.splitlines() or [''])[0]})")

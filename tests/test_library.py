"""The compiled library: built with the package or at first use, kept where only this user may write, found again."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pyrobnn.tape import build, runner

ROOT = Path(__file__).parents[1]
X86 = pytest.mark.skipif(build.level() is None, reason="the processor has one kind of vector instructions")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_folders", lambda: iter([tmp_path / "cache" / "compiled"]))
    library = tmp_path / "library.so"
    library.write_bytes(b"code")
    return library


def test_a_kept_library_lies_in_a_private_folder(cache):
    kept = runner.keep("name", cache)
    assert runner.find("name") == kept
    assert kept.read_bytes() == b"code"
    assert stat.S_IMODE(kept.parent.stat().st_mode) == stat.S_IRWXU
    assert [path.name for path in kept.parent.iterdir()] == ["name"]
    assert runner.find("other") is None


OPENED = {
    "library open": lambda kept, library: kept.chmod(0o777),
    "folder open": lambda kept, library: kept.parent.chmod(0o777),
    "cache open": lambda kept, library: kept.parent.parent.chmod(0o777),
    "library linked": lambda kept, library: (kept.unlink(), kept.symlink_to(library)),
}


@pytest.mark.parametrize("name", OPENED)
def test_a_library_that_others_may_have_written_is_not_loaded(name, cache, caplog):
    kept = runner.keep("name", cache)
    OPENED[name](kept, cache)
    assert runner.find("name") is None
    assert "linked" in name or str(kept) in caplog.text


def test_no_library_is_kept_in_a_folder_of_another_owner_or_without_room(cache, monkeypatch):
    kept, lstat = runner.keep("name", cache), Path.lstat

    def of_another(path):
        fields = list(lstat(path))
        fields[4] = 12345 if path == kept.parent.parent else fields[4]
        return os.stat_result(fields)

    def fail(*args, **kwargs):
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", of_another)
        assert runner.find("name") is None
        assert runner.keep("name", cache) == cache
    monkeypatch.setattr(runner.tempfile, "mkstemp", fail)
    assert runner.keep("name", cache) == cache


NOT_INSTALLED = """
import sys
from pathlib import Path
from pyrobnn.tape import build, runner
build.INSTALLED = Path("no such folder")
"""
LOAD = NOT_INSTALLED + "print(runner.library()._name)"


def environment(cache, **more):
    return os.environ | {"XDG_CACHE_HOME": str(cache), **more}


def load(cache, code=LOAD, **more):
    """Return the path of the library that a new process loads, and what it logs."""
    command, env = [sys.executable, "-P", "-c", code], environment(cache, **more)
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return done.stdout.strip(), done.stderr


def kept(cache):
    return [*(cache / "pyrobnn" / "compiled").glob("*.so")]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A cache folder with the library, and its path."""
    cache = tmp_path_factory.mktemp("compiled")
    return cache, Path(load(cache)[0])


@pytest.mark.slow
def test_processes_that_start_together_have_one_library_which_is_found_again(tmp_path):
    command = [sys.executable, "-c", LOAD]
    starts = [subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    names = {start.communicate()[0].strip() for start in starts}
    (library,) = kept(tmp_path)
    assert names == {str(library)}
    assert stat.S_IMODE(library.parent.stat().st_mode) == stat.S_IRWXU
    assert load(tmp_path, CXX="false")[0] == str(library)


@pytest.mark.slow
def test_a_process_killed_while_it_writes_the_library_leaves_nothing_that_is_loaded(tmp_path, compiled):
    half_way = """
import os, signal
from pyrobnn.tape import runner
runner.os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
build.compile_library = lambda made: made.write_bytes(Path(sys.argv[1]).read_bytes())
"""
    code = NOT_INSTALLED + half_way + "runner.library()"
    killed = subprocess.run([sys.executable, "-c", code, compiled[1]], env=environment(tmp_path), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert kept(tmp_path) == []
    assert load(tmp_path)[0] == str(kept(tmp_path)[0])


@pytest.mark.slow
def test_a_damaged_library_is_compiled_anew(tmp_path, compiled):
    library = tmp_path / "pyrobnn" / "compiled" / compiled[1].name
    library.parent.mkdir(parents=True, mode=0o700)
    library.write_bytes(b"no library")
    name, logged = load(tmp_path)
    assert name == str(library)
    assert f"{library} cannot be loaded and is compiled anew" in logged
    assert library.read_bytes() == compiled[1].read_bytes()


@X86
@pytest.mark.slow
def test_machines_of_other_vector_instructions_may_share_a_folder(tmp_path, compiled):
    """The home folder of a cluster, say: each kind of processor has a library."""
    shutil.copytree(compiled[0], tmp_path, dirs_exist_ok=True)
    code = NOT_INSTALLED + "build.level = lambda: 'x86-64'\nprint(runner.library()._name)"
    older = load(tmp_path, code)[0] if build.level() != "x86-64" else load(tmp_path)[0]
    assert Path(older).exists()
    assert len(kept(tmp_path)) == (1 if build.level() == "x86-64" else 2)
    assert load(tmp_path, CXX="false")[0] == str(tmp_path / "pyrobnn" / "compiled" / compiled[1].name)


@X86
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu sse sse2", "x86-64"),
        ("sse2 avx avx2 fma bmi2 f16c movbe", "x86-64-v3"),
        ("avx2 fma bmi2 f16c movbe avx512f avx512bw avx512cd avx512dq avx512vl", "x86-64-v4"),
        ("avx2 fma bmi2 f16c movbe avx512f avx512cd", "x86-64-v3"),
    ],
)
def test_vector_instructions_are_read_off_the_system(flags, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_CPUINFO", tmp_path / "cpuinfo")
    assert build.level() == "x86-64"  # a system that does not tell
    build._CPUINFO.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t:\n")
    assert build.level() == expected
    assert expected.lower() in build.file_name()


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A copy of what a wheel is made of."""
    folder = tmp_path_factory.mktemp("sources")
    shutil.copytree(ROOT / "pyrobnn", folder / "pyrobnn", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    return folder


def wheel(sources, folder, **more):
    """Return the path of the wheel, and what its build says."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=sources, env=os.environ | more, check=True, capture_output=True, text=True)
    (path,) = folder.glob("*.whl")
    return path, done.stderr


@pytest.mark.slow
def test_a_wheel_has_the_library_where_there_is_a_compiler(sources, tmp_path):
    path, _ = wheel(sources, tmp_path / "dist")
    assert "none-any" not in path.name
    zipfile.ZipFile(path).extractall(tmp_path / "installed")
    folder = tmp_path / "installed" / "pyrobnn" / "tape" / "lib"
    assert [file.name for file in folder.iterdir()] == [build.file_name()]
    code = "from pyrobnn.tape import runner; print(runner.library()._name)"
    used, _ = load(tmp_path / "cache", code, PYTHONPATH=str(tmp_path / "installed"), CXX="false")
    assert used == str(folder / build.file_name())
    assert kept(tmp_path / "cache") == []


@pytest.mark.slow
def test_a_wheel_without_a_compiler_is_for_every_machine_and_says_so(sources, tmp_path):
    path, said = wheel(sources, tmp_path / "dist", CXX="no-such-compiler")
    assert path.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(path).namelist() if name.endswith(".so")]
    assert "pyrobnn compiles its library at first use: there is no C++ compiler 'no-such-compiler'" in said

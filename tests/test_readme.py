"""What the README says can be run: its Python in order, its commands by name."""

import contextlib
import io
import re
import shlex
import warnings
from pathlib import Path

import pytest
import typer

from pyrobnn.inference.svi.capture.compiler import interpret

README = Path(__file__).parent.parent / "README.md"


def blocks(*languages):
    """The fenced blocks of the README in these languages, with the line where each starts."""
    text = README.read_text(encoding="utf-8")
    found = re.finditer(rf"^```({'|'.join(languages)})\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [(text[: match.start()].count("\n") + 2, match.group(2)) for match in found]


@pytest.mark.slow
def test_python_blocks_run(tmp_path, monkeypatch):
    """All in one namespace and in order, as a reader would run them; numbers may differ from those in comments."""
    assert blocks("python")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pyrobnn.inference.svi.capture.compiler.compile_graph", interpret)
    namespace = {}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for line, code in blocks("python"):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Estimated shape parameter", category=UserWarning)
                exec(compile("\n" * (line - 1) + code, str(README), "exec"), namespace)


def commands():
    lines = [line for _, block in blocks("sh", "bash", "console") for line in block.splitlines()]
    words = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    calls = [line[line.index("pyrobnn") + 1 :] for line in words if "pyrobnn" in line]
    return [call for call in calls if call]


@pytest.mark.parametrize("call", commands(), ids=" ".join)
def test_command_exists(call):
    from pyrobnn.cli import app

    group = typer.main.get_command(app)
    name, *arguments = call
    if name.startswith("-"):
        return
    assert name in group.commands, f"the README names the command {name!r}; there are {sorted(group.commands)}"
    options = {option for parameter in group.commands[name].params for option in parameter.opts} | {"--help"}
    used = {word.split("=")[0] for word in arguments if word.startswith("-")}
    assert used <= options, f"{name} has no option {sorted(used - options)}; it has {sorted(options)}"

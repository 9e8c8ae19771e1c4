"""Private names of torch: all are there, one file takes them, and the package imports and fits without."""

import ast
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pyrobnn
from pyrobnn._torch import private
from pyrobnn._torch.transforms import vmap_or_loop

PACKAGE = Path(pyrobnn.__file__).parent


@pytest.mark.parametrize("name", private.PLACES)
def test_torch_has_it(name):
    assert private.private(name) is not None


def test_what_torch_lacks_is_named(monkeypatch):
    monkeypatch.setitem(private.PLACES, "gone", "torch._C:gone")
    with pytest.raises(private.MissingFromTorch, match=r"has no torch._C.gone, which torch 2.15 has: use that"):
        private.private("gone")


def private_uses(tree):
    """The dotted names of torch with a part that begins with an underscore, which a module imports or reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            dotted = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        else:
            dotted = [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
        yield from (name for name in dotted if re.fullmatch(r"torch(\.\w+)*\._[a-zA-Z]\w*(\.\w+)*", name))


@pytest.mark.slow
def test_one_file_takes_them():
    assert not [(path, use) for path in PACKAGE.rglob("*.py") for use in private_uses(ast.parse(path.read_text()))]


WITHOUT = """
import importlib, pkgutil, sys, warnings
import torch
import pyrobnn as bnn

original = importlib.import_module

def refusing(name):
    if "_pytree" not in name:
        raise ImportError(name)
    return original(name)

importlib.import_module = refusing
import pyrobnn._torch.private
importlib.import_module = original

for module in pkgutil.walk_packages(bnn.__path__, "pyrobnn."):
    if not module.name.endswith("__main__"):
        original(module.name)

x = torch.linspace(-1, 1, 20)[:, None]
model = bnn.BNN(bnn.MLP(1, [4], 1), prior="normal", likelihood="gaussian")
for engine in ("auto", "captured"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = bnn.fit(model, bnn.Data(x, x[:, 0]), bnn.SVI(steps=20), seed=0, engine=engine, progress=False)
    assert posterior.predict(x, num_draws=3).mean.isfinite().all()
    try:
        bnn.load(bnn.save(posterior, f"{sys.argv[1]}/{engine}"))
    except ImportError as error:
        assert "TorchDispatchMode" in str(error)
    else:
        raise AssertionError("loaded without a bound")
    print(engine, posterior.record.engine.used, [str(w.message) for w in caught if "eagerly" in str(w.message)])
"""


@pytest.mark.slow
def test_the_package_imports_and_fits_without(tmp_path):
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    auto, captured = done.stdout.splitlines()
    assert auto == "auto eager []"
    assert captured.startswith("captured eager ['The fit runs eagerly, since")
    assert "has no torch." in captured


def mapped(function):
    return torch.func.vmap(function), lambda x: torch.stack([function(row) for row in x])


def branching(x):
    return x if x.sum() > 0 else -x


def full(x):
    raise torch.OutOfMemoryError("no memory is left")


NUMBERS = torch.arange(9.0).view(3, 3)
ODD = torch.tensor([[1.0, math.inf, -math.inf, math.nan]])
KEPT = {
    "what it takes": (*mapped(torch.sin), torch.ones(2, 3)),
    "infinities and what is no number": (torch.Tensor.clone, torch.Tensor.contiguous, ODD),
    "noise, which is not compared": (torch.rand_like, torch.zeros_like, torch.ones(3)),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_vmap_takes_stays_without_a_word(name):
    fast, slow, x = KEPT[name]
    assert vmap_or_loop(fast, slow, x) is fast


def backward_of_cdist():
    """Its batching rule is wrong in torch 2.15."""
    a, b = torch.arange(8.0).view(4, 2), torch.arange(6.0).view(3, 2).sin()
    pull = torch.func.vjp(lambda rows: torch.cdist(rows, b), a)[1]
    return mapped(lambda gradient: pull(gradient)[0])


LOOPED = {
    "a branch": (*mapped(branching), torch.ones(2, 3), "vmap does not take the model, which therefore runs in a slow"),
    "cdist": (*backward_of_cdist(), torch.arange(24.0).view(2, 4, 3).cos(), "vmap gives other numbers for the model"),
    "turned": (lambda x: x.mT, torch.clone, NUMBERS, "vmap gives other numbers"),
    "another shape": (lambda x: x[:, None], torch.clone, NUMBERS, "vmap gives other numbers"),
    "another value": (lambda x: 1.01 * x, torch.clone, NUMBERS, "vmap gives other numbers"),
    "no number": (lambda x: 0 / x - 1 + x, torch.clone, NUMBERS, "vmap gives other numbers"),
}


@pytest.mark.parametrize("name", LOOPED)
def test_what_vmap_does_not_take_or_gets_wrong_runs_in_a_loop_with_a_warning(name):
    fast, slow, x, message = LOOPED[name]
    with pytest.warns(UserWarning, match=message):
        assert vmap_or_loop(fast, slow, x) is slow


def test_errors_of_the_function_are_raised():
    with pytest.raises(RuntimeError, match="mat1 and mat2|size mismatch"):
        vmap_or_loop(*mapped(lambda row: torch.ones(2, 5) @ row), torch.ones(2, 3))
    with pytest.raises(torch.OutOfMemoryError, match="no memory is left"):
        vmap_or_loop(full, branching, torch.ones(2, 3))

"""Every public name has an example in its docstring, and every example runs and shows what it says.

Whoever adds a public name adds an example, two to six lines under `Examples:`. It sees `bnn` and `torch` as if they
were imported, runs in an empty folder, and takes well under a second: few rows, a tiny network, `steps=20`. Its output
has to be the same on every machine, so it shows shapes, names and rounded numbers. Warnings are errors.
"""

import ast
import doctest
import importlib
import inspect
import io
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import pyrobnn as bnn

MODULES = ["", "datasets", "guides", "likelihoods", "metrics", "plots", "priors", "report", "testing"]
METHODS = {
    "BNN": ["fit", "sample_prior_predictive", "with_parts"],
    "BNNClassifier": ["partial_fit", "predict_proba", "save"],
    "BNNRegressor": ["partial_fit", "predict", "predict_dist", "predict_interval", "set_params"],
    "Data": ["parts", "split"],
    "Mixture": ["draw", "predict", "save"],
    "Posterior": ["draw", "from_draws", "from_guide", "map_draws", "mean", "predict", "save"],
    "Prediction": ["cdf", "class_probs", "interval", "log_prob", "mutual_information", "quantile", "sample"],
    "datasets.Dataset": ["split"],
    "guides.Laplace": ["around"],
}
"""Methods that need an example too."""
FEWEST = 190
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public(module):
    return importlib.import_module(f"pyrobnn.{module}" if module else "pyrobnn")


def find(name):
    """The object of a dotted name below `pyrobnn`."""
    value = bnn
    for part in name.split("."):
        value = getattr(value, part) if not inspect.isclass(value) else inspect.getattr_static(value, part)
    return value.__func__ if isinstance(value, classmethod) else value


def docstring(name):
    value, (module, _, short) = find(name), name.rpartition(".")
    if not inspect.isclass(value) and not inspect.isfunction(value) and not isinstance(value, property):
        return below(public(module), short)
    return inspect.cleandoc(value.__doc__ or "")


def below(module, name):
    """The string below an assignment in the files of a module: the docstring of what is no class and no function."""
    for path in sorted(Path(module.__file__).parent.glob("*.py")):
        for node, after in pairwise(ast.parse(path.read_text(encoding="utf-8")).body):
            given = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
            is_found = given is not None and ast.unparse(given) == name
            if is_found and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                return inspect.cleandoc(after.value.value)
    return ""


def names():
    dotted = [f"{module}.{name}".lstrip(".") for module in MODULES for name in public(module).__all__]
    methods = [f"{owner}.{name}" for owner, own in METHODS.items() for name in own]
    return [name for name in dotted if not inspect.ismodule(find(name))] + methods


NAMES = names()


def test_every_public_name_has_an_example():
    assert not [name for name in NAMES if ">>> " not in docstring(name)]
    assert len(NAMES) >= FEWEST


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", NAMES)
def test_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = doctest.DocTestParser().get_doctest(docstring(name), {"bnn": bnn, "torch": torch}, name, None, None)
    told = io.StringIO()
    result = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=told.write)
    assert result.attempted
    assert not result.failed, told.getvalue()

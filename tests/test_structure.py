"""The rules of the code base: imports point down, light start, small modules, every refusal tested, tools clean."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pyrobnn

PACKAGE = Path(pyrobnn.__file__).parent
ROOT = PACKAGE.parent
MODULES = sorted(PACKAGE.rglob("*.py"))

FLOORS = [
    {"data", "distributions", "stored"},  # and the private modules, except those in HELPERS
    {"priors", "likelihoods", "guides", "nets", "datasets", "optimizers"},
    {"bnn"},
    {"prediction", "curvature"},
    {"posterior"},
    {"mixture", "linearized", "baselines"},
    {"inference", "metrics", "weights"},
    {"diagnostics", "spec", "storage"},
    {"plots"},
    {"report", "testing"},
    {"runs"},
    {"cli", "estimators"},
]
HELPERS = {"_spec_data": "spec", "_overrides": "spec", "_manifest": "runs", "_compared": "runs", "_demo": "cli"}
"""Private modules that are a part of one public module, and stand on its floor."""
UPWARD = {("bnn", "inference"), ("guides", "inference"), ("posterior", "storage"), ("mixture", "storage")}
"""The imports upwards, inside `BNN.fit`, `Laplace.around` and `save`."""


def unit(path):
    """The module or package of pyrobnn to which a file belongs."""
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return HELPERS.get(name, name)


UNITS = {unit(path) for path in MODULES}


def floor(name):
    return 0 if name.startswith("_") else next((i for i, names in enumerate(FLOORS) if name in names), None)


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_units(tree):
    """The units that a module imports, with whether the import stands inside a function."""
    exempt = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if id(node) in exempt:
            continue
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "pyrobnn":
            dotted = [f"pyrobnn.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            dotted = [node.module]
        elif isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        else:
            continue
        for name in dotted:
            if name.startswith("pyrobnn."):
                first = name.split(".")[1]
                yield HELPERS.get(first, first), id(node) in top


def violations(path, tree):
    own = unit(path)
    for target, at_top in imported_units(tree):
        if target == own or ((own, target) in UPWARD and not at_top):
            continue
        above = floor(target) is None or floor(target) > floor(own)
        sibling = floor(target) == floor(own) and floor(own) > 0
        if above or sibling:
            yield f"{own} imports {target}"


def test_every_module_has_a_floor():
    assert {name for name in UNITS if floor(name) is None} <= {"__init__", "__main__", "py"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    if unit(path) not in ("__init__", "__main__"):
        assert not list(violations(path, parse(path)))


@pytest.mark.parametrize(
    ("module", "line", "caught"),
    [
        ("priors/normal.py", "from pyrobnn.bnn import BNN", True),
        ("priors/normal.py", "import pyrobnn.likelihoods.base", True),
        ("priors/normal.py", "from pyrobnn import guides", True),
        ("priors/normal.py", "from pyrobnn.priors.base import registry", False),
        ("priors/normal.py", "from pyrobnn._errors import InputError", False),
        ("priors/normal.py", "from pyrobnn._spec_data import DataSpec", True),
        ("priors/normal.py", "from pyrobnn import __version__", False),
        ("bnn.py", "from pyrobnn.inference import fit_svi", True),
        ("bnn.py", "def fit():\n    from pyrobnn.inference import fit_svi", False),
        ("bnn.py", "def fit():\n    from pyrobnn.report import render", True),
        ("bnn.py", "if TYPE_CHECKING:\n    from pyrobnn.posterior import Posterior", False),
        ("_checks.py", "from pyrobnn.bnn import BNN", True),
    ],
)
def test_the_rule_on_imports_can_fail(module, line, caught):
    assert bool(list(violations(PACKAGE / module, ast.parse(line)))) is caught


HEAVY = ["arviz", "matplotlib", "sklearn", "torchmetrics", "pandas", "pooch"]
NEEDS_MORE = ("plots", "report", "BNNClassifier", "BNNRegressor")


def test_import_is_light():
    """Neither the package nor what most people use of it needs the libraries of pictures, tables and tests."""
    used = f"[getattr(pyrobnn, name) for name in pyrobnn.__all__ if name not in {NEEDS_MORE}]"
    code = f"import sys, pyrobnn; {used}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_import_costs_less_than_that_of_pyro():
    """It brings neither Pyro nor torch until a name is used."""
    code = "import sys, pyrobnn; print([name for name in ('torch', 'pyro', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_are_small(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


# Every refusal is tested

LENGTH = 10
"""Characters of a message that a test has to name."""


def literals(node):
    """The literal pieces of a string or f-string."""
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def refusals():
    for path in MODULES:
        raised = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Raise)]
        for node in raised:
            if isinstance(node.exc, ast.Call) and node.exc.args and ast.unparse(node.exc.func) == "InputError":
                pieces = [piece for piece in literals(node.exc.args[0]) if len(piece.strip()) >= LENGTH]
                if pieces:
                    yield pytest.param(pieces, id=f"{path.relative_to(PACKAGE)}:{node.lineno}")


def expectations():
    """Strings in `match=`, in tables of cases, and looked for in a message, of all tests."""
    found = []
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "match":
                found += [text.replace("\\", "") for text in literals(node.value)]
            elif isinstance(node, (ast.Tuple, ast.List, ast.Dict)):
                found += [text.replace("\\", "") for child in ast.iter_child_nodes(node) for text in direct(child)]
            elif isinstance(node, ast.Compare) and any(isinstance(op, ast.In) for op in node.ops):
                found += literals(node.left)
    return "\0".join(found)


def direct(node):
    return literals(node) if isinstance(node, (ast.Constant, ast.JoinedStr)) else []


EXPECTED = expectations()


def is_expected(pieces):
    windows = (piece[i : i + LENGTH] for piece in pieces for i in range(len(piece) - LENGTH + 1))
    return any(window in EXPECTED for window in windows)


@pytest.mark.parametrize("pieces", list(refusals()))
def test_every_refusal_is_tested(pieces):
    assert is_expected(pieces), f"no test expects {' ... '.join(pieces)!r}: add a case"


def test_the_rule_on_refusals_can_fail():
    assert not is_expected(["`zebras`" + " are no quaggas"])


# Tools


PLACES = ["pyrobnn", "tests", "notebooks"]
"""What is formatted; the Python of the README is laid out by hand."""
COMMANDS = {
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", *PLACES],
    "mypy": ["mypy"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_tool_is_clean(name):
    command = [sys.executable, "-m", *COMMANDS[name]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

"""The rules of the code base: imports point down, a light start, tools clean, and the size of each room and of all.

Private names of torch: all are there, one file takes them, and the package imports and fits without.
"""

import ast
import functools
import graphlib
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pyrobnn
from pyrobnn import inference
from pyrobnn._torch import private
from pyrobnn._torch.transforms import vmap_or_loop

PACKAGE = Path(pyrobnn.__file__).parent
ROOT = PACKAGE.parent
MODULES = sorted(PACKAGE.rglob("*.py"))
ARCHITECTURE = ROOT / "docs" / "architecture.md"


def floors(section):
    """The floor of each room, from the table in a section of the page on architecture."""
    text = ARCHITECTURE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = re.finditer(r"^\| (\d+) \| ([^|]+) \|", text, re.MULTILINE)
    return {room: int(row[1]) for row in rows for room in re.findall(r"`(\w+)`", row[2])}


FLOOR = floors("Floors")
INSIDE = {"inference": floors("Inside `inference`")}
"""The floors of the files and rooms in a room."""


def unit(path):
    """The room of pyrobnn to which a file belongs."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


UNITS = {unit(path) for path in MODULES} - {"__init__", "__main__"}


@functools.cache
def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


UPWARD = {
    "bnn.py": {"inference.fit.fit_svi", "inference.around.predict_from_prior"},
    "guides/laplace.py": {"curvature.kinds.check_structure"},
    "guides/map.py": {"inference.around.around"},
    "posterior/base.py": {"storage.save.save"},
    "posterior/posterior.py": {"inference.around.from_draws", "inference.around.from_guide"},
}
"""Functions of rooms above that a class offers as a method too: imported where they are called."""
TYPES = {
    "bnn.py": {"posterior.posterior.Posterior", "posterior.prediction.Prediction"},
    "guides/map.py": {"posterior.posterior.Posterior"},
}
"""Classes above a file that it imports for the type checker alone: results of calls upward."""


def imported(path, tree):
    """The modules of pyrobnn that a module imports, inside its functions and for types too, but for calls upward."""
    name = path.relative_to(PACKAGE).as_posix()
    exempt = {f"pyrobnn.{target}" for target in UPWARD.get(name, set()) | TYPES.get(name, set())}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if isinstance(node, ast.Import):
                dotted = [alias.name for alias in node.names]
            else:
                assert node.level == 0, f"relative import of {node.module}"
                dotted = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in dotted if name.startswith("pyrobnn.") and name not in exempt)


FAMILIES = ("guides", "priors", "likelihoods")
METHODS = {type(inference.method.registry.resolve(name)).__name__ for name in inference.method.registry.names}
KNOWS_CLASSES = {
    "diagnostics/convergence.py": {"SVI"},  # goes on with a fit by it
    "diagnostics/cross_validation.py": {"SVI"},  # fits it side by side
    "diagnostics/importance.py": {"MaskedPoint"},  # the distribution of one site
    "inference/scales/evidence_framework.py": {"Laplace"},  # reads and changes its fields
    "inference/several/ensemble.py": {"SVI"},  # refuses its patience
    "inference/several/replicates.py": {"SVI"},  # fits it side by side
    "inference/svi/svi.py": {"MeanField"},  # an optimiser of its mu and rho
    "inference/capture/objective.py": {"RealPart"},  # the distribution of one site
}
"""Classes of guides, priors, likelihoods and methods that a file outside their family asks for, and why."""


def classes_asked_for(tree):
    """Names of classes of parts in calls of isinstance and issubclass."""
    members, modules = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyrobnn"):
            for alias in node.names:
                family = f"{node.module}.{alias.name}".split(".")[1]
                if family in FAMILIES or (family == "inference" and alias.name in METHODS):
                    (modules if alias.name in FAMILIES else members).add(alias.asname or alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            for part in ast.walk(node.args[1]):
                if isinstance(part, ast.Name) and part.id in members:
                    yield part.id
                elif isinstance(part, ast.Attribute) and getattr(part.value, "id", "") in modules:
                    yield part.attr


def test_classes_of_parts_are_asked_for_inside_their_family_alone():
    found = {path.relative_to(PACKAGE).as_posix(): {*classes_asked_for(parse(path))} for path in MODULES}
    assert {name: own for name, own in found.items() if own and name.split("/")[0] not in FAMILIES} == KNOWS_CLASSES


def violations(path, tree):
    own, inner, *_ = *path.relative_to(PACKAGE).with_suffix("").parts, ""
    for name in imported(path, tree):
        room, inside, *_ = *name.split(".")[1:], ""
        if room not in (own, "__version__") and FLOOR.get(room, math.inf) >= FLOOR[own]:
            yield f"{own} imports {name}"
        floor = INSIDE.get(own, {}) if room == own else {}
        if inside != inner and inner in floor and floor.get(inside, math.inf) >= floor[inner]:
            yield f"{inner} in {own} imports {name}"


def test_every_room_has_a_floor():
    assert set(FLOOR) == UNITS
    for room, floor in INSIDE.items():
        assert set(floor) == {path.stem for path in (PACKAGE / room).glob("[!_]*")}


def test_imports_point_down():
    assert not [found for path in MODULES if unit(path) in UNITS for found in violations(path, parse(path))]


@pytest.mark.parametrize("name", UPWARD)
def test_calls_upward_are_those_listed(name):
    inside = {
        f"{node.module}.{alias.name}"
        for function in ast.walk(parse(PACKAGE / name))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyrobnn.")
        for alias in node.names
    }
    assert inside == {f"pyrobnn.{target}" for target in UPWARD[name]}


def test_no_modules_import_each_other_in_a_circle():
    name_of = {path: ".".join(("pyrobnn", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in MODULES}
    names = {name.removesuffix(".__init__") for name in name_of.values()}
    graph = {}
    for path, name in name_of.items():
        found = (target if target in names else target.rpartition(".")[0] for target in imported(path, parse(path)))
        graph[name.removesuffix(".__init__")] = {target for target in found if target != "pyrobnn"}
    graphlib.TopologicalSorter(graph).prepare()


HEAVY = ("arviz", "jinja2.environment", "matplotlib", "sklearn", "torchmetrics", "pandas", "pooch")
NEED_MORE = ("plots", "report", "BNNClassifier", "BNNRegressor")
COMPILERS = ("sympy", "torch.utils.flop_counter", "torch._dynamo")
"""Each takes half a second; torch imports them for gradients in given directions, for instance."""
FIT = "import torch, pyrobnn as bnn; x = torch.rand(20, 1); "
LEFT_OUT = {
    "the package": ("import pyrobnn", ("torch", "pyro", "numpy")),
    "all names": (
        f"import pyrobnn; [getattr(pyrobnn, name) for name in pyrobnn.__all__ if name not in {NEED_MORE}]",
        HEAVY,
    ),
    "a fit": (
        FIT + "known = {'prior': bnn.priors.Normal(1.0), 'likelihood': bnn.likelihoods.Gaussian(0.1)}; "
        "bnn.BNN(bnn.MLP(1, [2], 1), **known).fit(x, x[:, 0], steps=200, progress=False)",
        COMPILERS,
    ),
    "a regressor": (
        FIT + "bnn.BNNRegressor(method=bnn.EvidenceFramework(likelihoods=['laplace'])).fit(x, x[:, 0]).predict(x)",
        COMPILERS,
    ),
    "a classifier": (
        FIT + "bnn.BNNClassifier(method=bnn.EvidenceFramework()).fit(x, x[:, 0] > 0.5).predict(x)",
        COMPILERS,
    ),
}
"""Code, and the modules that it does not import: Pyro and torch come when a name is used."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "the package")) for n in LEFT_OUT])
def test_what_is_not_needed_is_not_imported(name):
    code, modules = LEFT_OUT[name]
    code = f"{code}; import sys; print([name for name in {modules} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


COMMANDS = {
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "pyrobnn", "tests", "notebooks"],  # the README is laid out by hand
    "mypy": ["mypy"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_tool_is_clean(name):
    command = [sys.executable, "-m", *COMMANDS[name]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


BUDGETS = re.findall(r"^\| (.+?) \| ([\d,]+) (lines|files) \|", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)
"""Names of rooms and of folders, of which those after a "without" do not count, and what they may have at most."""


def files_of(text):
    counted, left_out = (re.findall(r"`([\w/]+)`", part) for part in text.partition(" without ")[::2])
    without = {path for name in left_out for path in files_in(name)}
    return sorted({path for name in counted for path in files_in(name)} - without)


def files_in(name):
    """Python files of a room, or of a folder beside the package."""
    place = next((place for place in (PACKAGE / name, ROOT / name) if place.is_dir()), None)
    found = [PACKAGE / f"{name}.py"] if place is None else sorted(place.rglob("*.py"))
    assert found, name
    return found


@pytest.mark.parametrize(("text", "most", "unit"), BUDGETS, ids=[f"{row[0]} {row[2]}" for row in BUDGETS])
def test_it_keeps_to_its_budget(text, most, unit):
    """Before more lines, look for what they replace."""
    size = sum(1 if unit == "files" else path.read_bytes().count(b"\n") for path in files_of(text))
    assert size <= int(most.replace(",", ""))


def test_every_file_of_the_package_counts_once_in_a_room():
    rooms = [path for text, _, unit in BUDGETS if unit == "lines" for path in files_of(text) if PACKAGE in path.parents]
    of_all = [*PACKAGE.rglob("*.py")]
    assert sorted(rooms) == sorted([*of_all, *of_all])  # in its room, and in the sum


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
    assert not [(path, use) for path in MODULES for use in private_uses(parse(path))]


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

"""README and the pages of the site: their code runs, also in two processes, and their commands and links exist."""

import contextlib
import functools
import importlib.util
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
import textwrap
import warnings
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

import pyrobnn as bnn

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<title>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
OTHERS = [ROOT / "docs" / "coming-from" / f"{library}.md" for library in ("numpyro", "torch-uncertainty", "tyxe")]
WITH_OTHERS = {path: [path.stem.replace("-", "_")] for path in OTHERS} | {
    ROOT / "docs" / "how-to" / "conformal.md": ["mapie"],
    ROOT / "docs" / "how-to" / "save-and-load.md": ["fastapi", "httpx", "onnxscript", "onnxruntime"],
    ROOT / "docs" / "how-to" / "hugging-face.md": ["transformers", "peft"],
}
"""Pages with code of other libraries, and the modules that it needs."""
OWN_PART = ROOT / "docs" / "how-to" / "own-part.md"
OWN_LOOP = ROOT / "docs" / "how-to" / "own-loop.md"
"""Its blocks of other libraries run in `tests/test_prepared.py`."""
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
VARIES = "Numbers differ between machines"
"""In the title of a block: any numbers will do, only words are compared."""


class Block(NamedTuple):
    """A fenced block: its language, title and code, and the line where the code starts."""

    language: str
    title: str
    code: str
    line: int


def blocks(path, *languages):
    text = path.read_text(encoding="utf-8")
    found = (
        Block(match["language"], match["title"], textwrap.dedent(match["code"]), text[: match.start()].count("\n") + 2)
        for match in FENCE.finditer(text)
    )
    return [block for block in found if not languages or block.language in languages]


def pages_outputs(path):
    """The block of text that follows a block of Python at once, by the line of the code."""
    return {one.line: out for one, out in pairwise(blocks(path)) if (one.language, out.language) == ("python", "text")}


def shows(shown, printed, *, any_numbers=False):
    """Whether a page shows what its code prints: decimals up to one in their last place, `...` for any text."""
    shown, printed = (re.sub(r"(?<=[\[(])\s+|\s+(?=[\])])", "", text).strip() for text in (shown, printed))
    parts = re.split(rf"(\.\.\.|{NUMBER}|\s+)", shown)
    numbers = [one for one in parts if re.fullmatch(NUMBER, one) and (any_numbers or not one.lstrip("+-").isdigit())]
    found = re.fullmatch("".join(pattern(part, numbers) for part in parts), printed, re.DOTALL)
    return bool(found) and (any_numbers or all(map(is_near, numbers, found.groups())))


def pattern(part, numbers):
    if part in numbers:
        return f"({NUMBER})"
    return ".*?" if part == "..." else r"\s+" if part.isspace() else re.escape(part)


def is_near(shown, printed):
    last = Decimal(shown).as_tuple().exponent
    return abs(Decimal(shown) - Decimal(printed)) <= Decimal(10) ** last


@contextlib.contextmanager
def no_figure_left():
    import matplotlib.pyplot as plt

    try:
        yield
    finally:
        plt.close("all")


def name(path):
    return str(path.relative_to(ROOT))


def untold(caught, path):
    """The warnings about bad fits whose first clause is not on the page: readers take examples for good fits."""
    page = " ".join(path.read_text(encoding="utf-8").split())
    texts = {str(one.message) for one in caught if issubclass(one.category, bnn.PoorFitWarning)}
    return [text for text in texts if re.search(r"The fits? (.*?)[,.(:;]", f"{text}.")[1].strip() not in page]


@pytest.mark.slow
@pytest.mark.measured
@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning")
@pytest.mark.parametrize("path", [path for path in PAGES if blocks(path, "python")], ids=name)
def test_python_blocks_run(path, tmp_path, monkeypatch):
    """All blocks of a page share one namespace, print what it shows, and warn of what it says; parts are forgotten."""
    from pyrobnn import guides, likelihoods, priors

    for registry in (guides.registry, likelihoods.registry, priors.registry):
        monkeypatch.setattr(registry, "_classes", dict(registry._classes))
    monkeypatch.chdir(tmp_path)
    namespace, outputs, wrong = {"__name__": "page"}, pages_outputs(path), []
    with no_figure_left(), contextlib.redirect_stderr(io.StringIO()):
        for block in blocks(path, "python"):
            with contextlib.redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", bnn.PoorFitWarning)
                exec(compile("\n" * (block.line - 1) + block.code, str(path), "exec"), namespace)
            output = outputs.get(block.line)
            if output and not shows(output.code, printed.getvalue(), any_numbers=VARIES in output.title):
                wrong.append(f"Line {output.line} shows\n{output.code}The code prints\n{printed.getvalue()}")
            wrong += [f"Line {block.line} warns, and the page does not say so: {text}" for text in untold(caught, path)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.nightly
@pytest.mark.parametrize("path", WITH_OTHERS, ids=name)
def test_blocks_of_other_libraries_run(path, tmp_path):
    """In a process of their own: what JAX starts on its import would be in the way of other tests that fork."""
    missing = [module for module in WITH_OTHERS[path] if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    page, languages = tmp_path / "page.py", ("py",) if path in OTHERS else ("python", "py")
    page.write_text("\n".join(block.code for block in blocks(path, *languages)))
    ended = subprocess.run([sys.executable, page], check=False, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.slow
def test_parts_in_a_file_pass_the_checks_of_the_page(tmp_path):
    *parts, _ = blocks(OWN_PART, "python")
    [test] = blocks(OWN_PART, "py")
    (tmp_path / "my_parts.py").write_text("\n".join(block.code for block in parts))
    (tmp_path / "test_my_parts.py").write_text(test.code)
    command = [sys.executable, "-m", "pytest", "-q"]
    ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-3000:]


def test_other_pages_have_only_code_that_runs_with_the_page():
    assert {path for path in PAGES if blocks(path, "py")} == {*WITH_OTHERS, OWN_PART, OWN_LOOP}


def commands():
    """Each call of `pyrobnn` on any page."""
    lines = [
        line
        for path in PAGES
        for block in blocks(path, "sh", "bash", "console")
        for line in block.code.replace("\\\n", " ").splitlines()
    ]
    words = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    calls = [tuple(line[line.index("pyrobnn") + 1 :]) for line in words if "pyrobnn" in line]
    return sorted({call for call in calls if call})


@pytest.mark.parametrize("call", commands(), ids=" ".join)
def test_command_exists(call):
    import typer

    from pyrobnn.cli import app

    group = typer.main.get_command(app)
    while hasattr(group, "commands"):
        if not call or call[0].startswith("-"):
            return
        command, *call = call
        assert command in group.commands, f"a page names the command {command!r}; there are {sorted(group.commands)}"
        group = group.commands[command]
    options = {option for parameter in group.params for option in parameter.opts} | {"--help"}
    used = {word.split("=")[0] for word in call if word.startswith("-")}
    assert used <= options, f"{group.name} has no option {sorted(used - options)}; it has {sorted(options)}"


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere_in_the_repository(path):
    """The build of the site checks its own links; these are followed where the repository is browsed."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    headings = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)$", text, re.M)}
    headings |= set(re.findall(r"\{ *#([\w-]+) *\}", text))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings, f"{name(path)} has no heading for {target}"
        elif not target.startswith(("http", "mailto:")):
            assert (path.parent / target.split("#")[0]).exists(), f"{name(path)} names {target}, which is not there"


def test_pages_that_code_names_exist():
    """Docstrings name docs/x.md; errors take the page as an argument."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "pyrobnn").rglob("*.py"))
    named = re.findall(r"docs/([\w/-]+)\.md", code)
    named += re.findall(r"(?:page=|PAGE = |_NETWORKS = )\"([\w/-]+)\"", code)
    assert len(named) > 30
    for page in set(named):
        assert (ROOT / "docs" / f"{page}.md").exists(), page


@pytest.mark.parametrize("folder", ["benchmarks", "coming-from", "explanations", "how-to", "notebooks", "reference"])
def test_an_index_lists_all_pages_of_its_folder(folder):
    """It is the page at the address of the folder, which has none without it."""
    index = ROOT / "docs" / folder / "index.md"
    text = index.read_text(encoding="utf-8")
    pages = {path.name for path in index.parent.glob("*.md")} - {"index.md"}
    pages |= {f"../../notebooks/{path.name}" for path in (ROOT / folder).glob("*.ipynb")}
    assert {page for page in pages if f"]({page})" in text} == pages
    assert f": {folder}/index.md\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_lists_of_members_in_the_reference_are_complete():
    """A page that orders the members of a class names all of them: those that it leaves out would be on no page."""
    text = (ROOT / "docs" / "reference" / "pyrobnn.md").read_text(encoding="utf-8")
    lists = re.findall(r"^::: pyrobnn\.(\w+)\n(?:    .*\n)*?      members: \[([^\]]*)\]", text, re.MULTILINE)
    assert len(lists) == 7
    for owner, members in lists:
        kind = getattr(bnn, owner)
        defined = {
            member
            for base in kind.__mro__
            if base.__module__.startswith("pyrobnn.")
            for member, value in vars(base).items()
            if inspect.isroutine(value) or isinstance(value, property | functools.cached_property | classmethod)
        }
        public = {one for one in defined if not one.startswith("_") and not one.endswith("_request")}  # of scikit-learn
        assert not public - set(re.findall(r"\w+", members)), owner


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    """Links between pages, anchors and names of the reference are checked by the build."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    pytest.importorskip("material", reason="needs the group docs")
    with warnings.catch_warnings(action="ignore"):
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    assert (tmp_path / "index.html").stat().st_size > 1000
    assert not [*tmp_path.rglob("*.pyc")]
    for page in tmp_path.rglob("*.html"):
        assert "mathjax" not in page.read_text(encoding="utf-8").lower(), f"{page} needs a script from elsewhere"


CHECKS = """
def parameters(of):
    return torch.cat([parameter.detach().reshape(-1) for parameter in of.parameters()])


def of_all(values):
    gathered = [torch.empty_like(values) for _ in range(2)]
    dist.all_gather(gathered, values.contiguous())
    return gathered


def moved(together, x, y):
    point = bnn.prepare(model, bnn.SVI(guide="map"), num_data=256, like=(data.x, data.y), seed=0)
    stepped = DistributedDataParallel(point) if together else point
    descent = torch.optim.SGD(point.parameters(), lr=0.01)
    for _ in range(10):
        descent.zero_grad()
        stepped((x, y)).backward()
        descent.step()
    return parameters(point)


first, second = of_all(parameters(fit))
assert torch.equal(first, second)

rank = dist.get_rank()
shares, whole = moved(True, data.x[rank::2], data.y[rank::2]), moved(False, data.x, data.y)
torch.testing.assert_close(shares, whole, rtol=1e-4, atol=1e-5)
assert not torch.allclose(moved(False, data.x[rank::2], data.y[rank::2]), whole, rtol=1e-4, atol=1e-5)

fit.zero_grad()
torch.manual_seed(rank)
wrapped((data.x, data.y)).backward()
averaged = torch.cat([parameter.grad.reshape(-1) for parameter in fit.parameters()])
each = []
for seed in range(2):
    fit.zero_grad()
    torch.manual_seed(seed)
    fit.loss((data.x, data.y)).backward()
    each.append(torch.cat([parameter.grad.reshape(-1) for parameter in fit.parameters()]))
torch.testing.assert_close(averaged, (each[0] + each[1]) / 2, rtol=1e-4, atol=1e-6)
"""
"""Parameters are equal; steps of a point are those with all rows; the gradient is the mean of two draws."""


@pytest.mark.slow
def test_two_processes_take_the_steps_of_all_their_rows(tmp_path):
    (recipe,) = [block.code for block in blocks(OWN_LOOP, "py") if "DistributedDataParallel" in block.code]
    end = "dist.destroy_process_group()\n"
    assert recipe.endswith(end)
    (tmp_path / "train.py").write_text(recipe.removesuffix(end) + CHECKS + end)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(bnn.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    posterior, data = bnn.load(tmp_path / "posterior"), bnn.datasets.sinusoid(256)
    assert posterior.predict(data.x, seed=0).log_prob(data.y).mean() > -2.0  # of N(0, sd of y): -3.4

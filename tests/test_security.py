"""Nothing that a user reads is executed, leaves its folder, or speaks to the terminal or the browser for itself."""

import ast
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import pyrobnn as bnn
from pyrobnn.cli import app
from pyrobnn.posterior.record import FitRecord

PACKAGE = Path(bnn.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
EXECUTING = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml", "xml", "lxml"}
"""Modules that execute or expand what they read."""
EXEMPT = {"testing/checks.py": {"pickle"}}
"""Checks that settings survive being pickled: what they read they have written themselves."""
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "tempfile.mktemp", "torch.load", "torch.save",
    "torch.jit.load", "torch.hub.load", "pd.read_pickle", "pandas.read_pickle", "np.fromfile", "pd.read_html",
    "pd.read_xml", "pd.eval", "urlopen", "urllib.request.urlopen",
}  # fmt: skip


def calls_in(tree):
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def options_of(call):
    return {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def dangers(tree, exempt=frozenset()):
    """What a module does that could execute data, as text."""
    yield from (f"import {name}" for name in imported(tree) if name in EXECUTING - exempt)
    for name, call in calls_in(tree):
        options = options_of(call)
        if name in FORBIDDEN_CALLS:
            yield name
        if name.startswith("subprocess.") and options.get("shell", "False") != "False":
            yield f"{name}(shell=...)"
        if name in ("np.load", "numpy.load") and options.get("allow_pickle") != "False":
            yield f"{name} without allow_pickle=False"
        if name.endswith("jinja2.Environment") and options.get("autoescape") != "True":
            yield f"{name} without autoescape"
        if name.endswith(("Markup", "mark_safe")):
            yield name


@pytest.mark.slow
def test_no_module_executes_what_it_reads():
    trees = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
    found = {name: list(dangers(tree, EXEMPT.get(name, frozenset()))) for name, tree in trees.items()}
    assert not {name: dangerous for name, dangerous in found.items() if dangerous}


def test_the_template_switches_escaping_off_nowhere():
    template = (PACKAGE / "report" / "report.html.j2").read_text(encoding="utf-8")
    assert "safe" not in template
    assert "autoescape" not in template
    for attribute in ('class="mark {{ finding.kind }}"', 'alt="{{ heading }}: {{ caption }}"'):
        assert attribute in template  # the only values inside tags besides pictures, and in quotes


def test_nothing_is_downloaded_without_a_checksum():
    calls = [
        (path.name, options_of(call))
        for path in MODULES
        for name, call in calls_in(ast.parse(path.read_text(encoding="utf-8")))
        if name.endswith(("retrieve", "urlopen", "requests.get"))
    ]
    assert [name for name, _ in calls] == ["published.py"]
    assert all("sha256" in options["known_hash"] for _, options in calls)


HOSTILE = [
    "<script>alert(1)</script>", '"onload="alert(1)', "'><img src=x onerror=alert(1)>", "</style></title><b>",
    "javascript:alert(1)", "{{ 7 * 7 }}{% raw %}", "$x_$ \\frac{", "\x1b]0;owned\x07", "&lt;i&gt;",
]  # fmt: skip
"""What a name in a file might be; none has a dot, which the page offers as a place to break the line."""


class Structure(HTMLParser):
    """The elements of a page with their attributes, without its pictures, and its texts."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.texts = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, [(name, value) for name, value in attrs if name != "src"]))

    def handle_data(self, data):
        self.texts.append(data.strip())


def page(names):
    """The page of a classification all of whose names are those given, with the same words everywhere."""
    from pyrobnn.diagnostics.diagnosis import Diagnosis
    from pyrobnn.metrics import Score
    from pyrobnn.report import RunFacts, render
    from pyrobnn.verdict.evidence import Evidence
    from pyrobnn.verdict.finding import Finding

    x = torch.linspace(-1, 1, 24)[:, None]
    data = bnn.Data(x, (x[:, 0] > 0).long(), feature_names=names[:1], target_name=names[1])
    model = bnn.BNN(bnn.MLP(1, [2], 2), likelihood="categorical", prior=bnn.priors.Normal(1.0))
    posterior = model.fit(data, steps=2, seed=0, engine="eager", progress=False)
    posterior.record = FitRecord(method={"type": names[6], "guide": {"type": "mean_field"}})
    return render(
        Evidence(posterior, data, class_names=names[:2]),
        Diagnosis((Finding("copy", "care", p=float("nan"), facts={"columns": names[3]}),), 0.05),
        {names[2]: Score(float("nan"), float("inf"), higher_is_better=True)},
        facts=RunFacts(
            spec={"data": {"path": names[4], names[5]: [names[6], float("nan")]}, "prior": {names[7]: {}}},
            manifest={names[8]: names[0]},
        ),
    ).html


@pytest.mark.slow
def test_no_element_or_attribute_of_the_page_comes_from_data_and_names_are_shown_as_they_are():
    hostile, harmless = (Structure(page(names)) for names in (HOSTILE, [f"name{i}" for i in range(len(HOSTILE))]))
    assert hostile.elements == harmless.elements
    assert len(hostile.texts) == len(harmless.texts)
    text = "\n".join(hostile.texts)
    assert all(name in text for name in HOSTILE)
    assert "nan" in text


def table(path, names, rows=24):
    values = np.random.default_rng(0).normal(size=(rows, len(names)))
    lines = [names, *(map(str, row) for row in values)]
    path.write_text("\n".join(",".join(f'"{cell}"' for cell in line) for line in lines), encoding="utf-8")
    return path


def spec(folder, **data):
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in data.items())
    path = folder / "spec.toml"
    rest = '[net]\nhidden = [2]\n[fit]\nsteps = 2\nengine = "eager"\n[predict]\nnum_draws = 5'
    path.write_text(f"[data]\n{lines}\n{rest}\n")
    return path


@pytest.mark.one_in(5, 2)
@pytest.mark.parametrize("target", ["\x1b]0;owned\x07", "[/]", "[bold red]x", "a\u202eb", "\r\x08 error: fine"])
def test_names_cannot_speak_to_the_terminal(target, tmp_path):
    path = table(tmp_path / "t.csv", ["\x1b[31mred", "b"])
    given = spec(tmp_path, path=str(path), target=target)
    done = CliRunner().invoke(app, ["fit", str(given), "--out", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.isprintable()
    assert r"\x1b[31mred" in line
    assert str(bnn.InputError(f"no column {target!r}")).removeprefix("no column ") in line


@pytest.mark.slow
def test_a_spec_writes_nowhere_but_into_its_run_folder(tmp_path, monkeypatch):
    """Names of columns, classes and files, and paths in a spec, are never names of files that are written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    path = table(tmp_path / "in" / "..data.csv", ["../../x", "/etc/passwd", "../y"])
    before = sorted(tmp_path.rglob("*"))
    given = spec(tmp_path, path=str(path), target="../y")
    done = CliRunner().invoke(app, ["fit", str(given), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.stderr
    new = [path for path in sorted(tmp_path.rglob("*")) if path not in before and path != given]
    assert all(path.is_relative_to(tmp_path / "run") for path in new)
    names = {path.name for path in new if path.is_file()}
    assert names <= {
        "spec.toml", "manifest.json", "metrics.json", "diagnosis.json", "posterior.nc", "report.html", "posterior",
        "observed_vs_predicted.png", "elbo.png", "weights.png", "pit.png",
        "predictive_check.png", "sparsification.png", "coverage.png", "surface.png", "epistemic.png",
        "confusion.png", "confidence.png", "importance.png", "held_out.csv",
    }  # fmt: skip
    assert not [path for path in new if path.is_symlink()]


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", "a/../../b", "\0"])
def test_a_data_set_by_name_is_no_path(name):
    with pytest.raises(bnn.InputError, match="Unknown data set"):
        bnn.datasets.load(name)


@pytest.mark.parametrize("error", [MemoryError("too much"), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_fit_that_does_not_fit_into_memory_ends_in_one_line(error, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("pyrobnn.runs.spec.RunSpec.from_dict", fail)
    (tmp_path / "spec.toml").write_text('[data]\nname = "sinusoid"\n', encoding="utf-8")
    done = CliRunner().invoke(app, ["fit", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "run")])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: Out of memory, choose smaller settings: ")
    assert len(done.stderr.splitlines()) == 1

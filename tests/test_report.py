"""The report: one page that stands alone, escapes what it shows, and warns when there is reason to."""

import base64
import dataclasses
import math
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import torch
from helpers import quick
from matplotlib.figure import Figure
from matplotlib.text import Text

import pyrobnn as bnn
from pyrobnn._core.remedies import Remedy
from pyrobnn.diagnostics.diagnosis import Diagnosis
from pyrobnn.diagnostics.predictive_checks import Deviation
from pyrobnn.metrics import Score, score
from pyrobnn.report import RunFacts, render, words
from pyrobnn.report.page import Rendered
from pyrobnn.verdict.evidence import Evidence
from pyrobnn.verdict.finding import Finding

HOSTILE = "<script>alert('x')</script>"
GOOD = Diagnosis((Finding("epistemic", "fine", 0.2),), 0.01)
NARROW = Deviation(1.6, 1.0, 0.1, 1e-9).finding("spread", 0.01)
BAD = Diagnosis((NARROW, *GOOD.findings), 0.01)
GAINS = {"rows": "24 held-out examples"}
CONSTANT = Finding("constant", "warning", 0.01, error=0.02, facts=GAINS)
MANIFEST = {"pyrobnn": "0.1.0", "git": {"commit": "abc", "changed": None}, "note": HOSTILE}


def fitted(data, likelihood, outputs=1, guide="mean_field", hidden=(3,), **arguments):
    model = bnn.BNN(bnn.MLP(data.x.shape[1], hidden, outputs), likelihood=likelihood, prior=bnn.priors.Normal(1.0))
    return quick(model, bnn.SVI(guide=guide, steps=20), data, **arguments)


def report(posterior, train, test=None, spec=None, **arguments):
    scored = train if test is None else test
    scores = score(posterior.predict(scored.x, num_draws=50), scored.y)
    return render(Evidence(posterior, train, test, **arguments), GOOD, scores, facts=RunFacts(spec, MANIFEST))


@pytest.fixture(scope="module")
def regression():
    train = bnn.Data(torch.linspace(-1, 1, 12)[:, None], torch.linspace(-2, 2, 12), target_name=f"y {HOSTILE}")
    return train, fitted(train, bnn.likelihoods.Gaussian(scale=0.5))


@pytest.fixture(scope="module")
def page(regression):
    train, posterior = regression
    return report(posterior, train, spec={"net": {"type": HOSTILE}, "fit": {"lr": 0.01, "tags": ["a", "b"]}})


@pytest.fixture(scope="module")
def classification():
    x = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
    names = (f"width {HOSTILE}", "height")
    data = bnn.Data(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long(), feature_names=names)
    train, test = data.split(0.25, seed=0)
    return train, test, fitted(train, "categorical", 3, validation=test)


@pytest.fixture
def drawn(monkeypatch):
    """The figures of pages, none of which is written."""
    figures = []

    def note(figure, stream, **kwargs):
        figures.append(figure)
        stream.write(b"\x89PNG")

    monkeypatch.setattr(Figure, "savefig", note)
    return figures


class Page(HTMLParser):
    """Tags, addresses and text of a page."""

    def __init__(self, rendered: Rendered) -> None:
        super().__init__()
        self.tags, self.links, self.images, self.text = [], [], [], ""
        self.feed(rendered.html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        values = dict(attrs)
        self.links += [values[name] for name in ("href", "src", "srcset", "action") if name in values]
        if tag == "img":
            self.images.append(values["src"])

    def handle_data(self, data):
        self.text += data


def flat_text(rendered):
    return " ".join(Page(rendered).text.split())


def test_the_page_needs_nothing_but_itself(page):
    parsed = Page(page)
    assert parsed.links == parsed.images
    assert all(image.startswith("data:image/png;base64,") for image in parsed.images)
    assert not {"script", "link", "iframe"} & set(parsed.tags)
    assert not re.search(r"url\(|@import", page.html)
    assert "http" not in re.sub(r"base64,[^\"]*", "", page.html)


def test_figures_are_the_pngs_of_the_page(page):
    inside = [base64.b64decode(image.partition(",")[2]) for image in Page(page).images]
    assert inside == list(page.figures.values())
    assert list(page.figures) == ["fit.png", "coverage.png", "elbo.png"]
    assert all(png.startswith(b"\x89PNG\r\n") and len(png) > 5000 for png in inside)


def test_scores_stand_with_standard_error_and_meaning(regression, drawn):
    train, posterior = regression
    scores = {"rmse": Score(1.2345, 0.056, higher_is_better=False), "own": Score(3.0, 1.0, higher_is_better=True)}
    passed = Diagnosis((*GOOD.findings, Deviation(1.0, 1.0, 0.1, 0.9).finding("spread", 0.01)), 0.01)
    text = flat_text(render(Evidence(posterior, train), passed, scores))
    assert f"typical error (RMSE) ↓1.234± 0.056{words.meaning('rmse')[1]}" in text
    assert "own ↑3.0± 1.0" in text
    assert not re.search("Manifest|p value", text)  # the tests that found nothing are told as one
    assert "Gaussian(scale=0.5)" in text
    posterior.history, history = None, posterior.history
    without = render(Evidence(posterior, train), GOOD, {})
    posterior.history = history
    assert "None were computed." in without.html
    assert list(without.figures) == ["fit.png", "coverage.png"]


def test_baselines_stand_beside_the_scores_and_the_verdict_above_all(regression, drawn):
    train, posterior = regression
    scores, simple = scored(rmse=1.0, r2=0.5), scored(rmse=2.346)
    worse = Diagnosis((CONSTANT, *BAD.findings), 0.01)
    text = flat_text(render(Evidence(posterior, train), worse, scores, {"constant": simple}))
    assert "± standard errorconstantmeaning" in text
    assert "± 0.10constant 2.35Root mean" in text
    assert "± 0.10Share of" in text
    first = text.index(f"Do not trust it yet: {CONSTANT.in_plain_words} (2 of 3 checks warn).")
    assert first < text.index(CONSTANT.said("command")) < text.index(NARROW.said("command"))
    assert first < text.index("uncertain weights")


def test_classification_has_a_reliability_diagram(classification, drawn):
    train, test, posterior = classification
    twice = train._with(weights=torch.full((len(train),), 2.0))  # copies of rows with gaps have weights, too
    rendered = report(posterior, twice, test, class_names=("a", "b", "c"))
    assert list(rendered.figures) == ["surface.png", "epistemic.png", "reliability.png", "elbo.png"]
    assert [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()] == ["a", "b", "c"]
    counts = zip("abc", [2 * num for num in train.class_counts(3)], test.class_counts(3), strict=True)
    assert "examples to train on36" in flat_text(rendered)
    assert "".join(f"class {name}{a} + {b}" for name, a, b in counts) in re.sub(" (?=class)", "", flat_text(rendered))
    assert "Scores on 6 held-out examples" in flat_text(rendered)


def test_the_audit_is_elbo_report(regression, page):
    train, posterior = regression
    audit = bnn.elbo_report(posterior, train, num_draws=300)
    text = flat_text(page)
    assert f"ELBO {audit.elbo} nats" in text
    assert all(str(site.kl) in text and site.name in text for site in audit.sites)
    assert f"{audit.kl_exact:.2f}" in text


def scored(**values):
    return {name: Score(value, 0.1, higher_is_better=True) for name, value in values.items()}


@pytest.mark.parametrize(
    ("likelihood", "scores", "baselines", "shares"),
    [
        (
            "log_normal",
            scored(log_likelihood=-1.0, r2=0.954),
            {"constant": scored(r2=-0.3), "linear": scored(r2=0.66)},
            ["95", "66"],
        ),
        (
            "categorical",
            scored(log_likelihood=-0.18, accuracy=0.94, auroc=0.84),
            {"constant": scored(accuracy=0.94), "linear": scored(accuracy=0.94, auroc=0.81)},
            ["84", "81"],
        ),
        ("gaussian", scored(r2=-0.2), {"constant": scored(r2=-0.3), "linear": scored(r2=-0.1)}, []),
        ("gaussian", scored(r2=-0.2, rmse=8.53), {"constant": scored(r2=-2.3, rmse=14.44)}, []),
        ("gaussian", scored(r2=math.nan, own=1.0), {}, None),
    ],
    ids=["r2", "rare", "none", "errors", "nothing"],
)
def test_the_first_sentence_says_what_was_found(likelihood, scores, baselines, shares):
    data = bnn.Data(torch.zeros(30, 1), torch.zeros(30), target_name="{0} # %s")
    model = SimpleNamespace(bnn=bnn.BNN(bnn.MLP(1, [2], 2), likelihood=likelihood))
    tested, trained = (words.found(scores, baselines, Evidence(model, data, part), 30) for part in (data, None))
    assert re.findall(r"(\d+) %(?!s)", tested) == (shares or [])
    assert ("typical error (RMSE) of 8.53" in tested and "14.4" in tested) == ("rmse" in scores)
    assert ("ordinary linear model" in tested) == (likelihood == "log_normal")
    assert ("30 held-out examples" in tested) == ("its own 30 training examples" in trained) == (shares is not None)


KEEP = Remedy("keep the linear model", ("net.hidden=[]",))
NEAR = Finding("near linear", "note", 0.2, error=0.1, facts=GAINS)
OPEN = Finding("few", "open", 0.02, error=0.1, remedy=Remedy("hold out more"), facts=GAINS | {"examples": "24 rows"})
AS_GOOD = Finding("like linear", "note", 0.2, error=0.1, remedy=KEEP, facts=GAINS)
ASKED = Finding("copy", "care", remedy=Remedy("leave it out"), facts={"columns": "'a'"})
SHARED = Finding("shared", "note", facts={"columns": "'a', 'b'"})
FEW = Finding("few held-out data", "care", 9, facts={"examples": "9 rows"})
NONE = Finding("no held-out data", "unjudged", 0)
UNSURE = dataclasses.replace(NARROW, p=0.004)
MISSED = Finding("classes", "note", 12, facts={"missed": "'yes'", "num": 200})
TRUSTED = "It can be trusted for data like these: none of {} checks warns."


@pytest.mark.parametrize(
    ("findings", "sentence"),
    [
        (GOOD.findings, TRUSTED.format(1)),
        (BAD.findings, "Do not trust it yet: the predictions are too narrow (1 of 2 checks warns)."),
        (
            [UNSURE, *GOOD.findings],
            "Use it with care: the predictions are too narrow, though this may be chance (1 of 2 checks warns).",
        ),
        ([UNSURE, CONSTANT, FEW], f"Do not trust it yet: {CONSTANT.in_plain_words} (2 of 3 checks warn)."),
        ([NEAR, *GOOD.findings], f"{TRUSTED.format(2)[:-1]}, but {NEAR.in_plain_words}."),
        ([AS_GOOD, NEAR], f"{TRUSTED.format(2)[:-1]}, but {AS_GOOD.in_plain_words}, and {NEAR.in_plain_words}."),
        ([FEW, AS_GOOD], f"Use it with care: {FEW.in_plain_words}. {AS_GOOD.lead}."),
        ([ASKED, *GOOD.findings], f"Use it with care: {ASKED.in_plain_words}."),
        (
            [SHARED, *GOOD.findings],
            f"{TRUSTED.format(2)[:-1].replace('data like these', 'rows that share values with these')}, but "
            f"{SHARED.in_plain_words}.",
        ),
        ([OPEN, *GOOD.findings], "Whether it is of use is open: 24 rows are too few to tell it from a constant."),
        ([NONE, NEAR], "Whether it can be trusted is open: no data were held out."),
        (
            [MISSED, *GOOD.findings],
            f"{TRUSTED.format(2)[:-1].replace('It can', 'Its probabilities can')}, but {MISSED.in_plain_words}.",
        ),
    ],
)
def test_the_verdict_says_whether_to_trust_the_fit_and_is_the_first_line(findings, sentence):
    diagnosis = Diagnosis(tuple(findings), 0.05)
    assert diagnosis.verdict == " ".join([diagnosis.conclusion, *diagnosis.details]) == sentence
    assert str(diagnosis).splitlines()[0] == sentence
    *said, _, _ = words.concluded(Diagnosis((*findings, *GOOD.findings), 0.05), "a").partition("\nNext: ")
    assert len(said[0].splitlines()) == 1 + len(diagnosis.details)


def test_the_next_step_mends_the_cause_before_its_effects(tmp_path):
    longer = Remedy("train longer", ("fit.steps=9",))
    effects = tuple(dataclasses.replace(one, remedy=Remedy(one.name)) for one in (NARROW, CONSTANT))
    facts = {"steps": 9, "rate": 0.01, "tolerance": 0.5}
    both = Diagnosis((*effects, Finding("elbo", "warning", 9.0, error=0.1, remedy=longer, facts=facts)), 0.05)
    assert both.next_step is longer
    assert str(both).splitlines()[1] == "Next: train longer, `steps=9`."
    assert words.next_step(both, "python") == ("train longer, `steps=9`", "")
    run = tmp_path / "my-run"
    said = ("train longer", f"pyrobnn fit {run}/spec.toml --set fit.steps=9 --out {run}-2")
    assert words.next_step(both, "command", str(run)) == said
    (tmp_path / "my-run-2").mkdir()
    assert words.next_step(both, "command", str(run))[1].endswith("my-run-3")
    assert words.next_step(both, "command", str(tmp_path / "my-run-2"))[1].endswith("my-run-3")
    assert words.next_step(Diagnosis(effects, 0.05), "command") == ("spread", "")
    limit = dataclasses.replace(MISSED, remedy=Remedy("say 'yes' above 0.1"))
    kept = "pyrobnn fit runs/a/spec.toml --set 'net.hidden=[]' --out runs/a-2"
    assert words.next_step(Diagnosis((AS_GOOD, limit), 0.05), "command", "runs/a") == ("keep the linear model", kept)
    assert Diagnosis((FEW, *effects, ASKED), 0.05).next_step.words == "leave it out"
    assert Diagnosis((OPEN, limit), 0.05).next_step.words == "say 'yes' above 0.1"
    other = Finding("k-hat", "note", 2.0, 0.7, remedy=Remedy("widen"))
    assert words.next_step(Diagnosis((other,), 0.05), "python")[0].startswith("predict new")
    predict = "pyrobnn predict runs/a NEW.csv --out predictions.csv"
    assert words.next_step(GOOD, "command", "runs/a") == ("predict new rows", predict)
    assert words.next_step(GOOD, "estimator") == ("predict new rows, `model.predict(X)`", "")


def sections(rendered):
    """What of a page is seen at once, and what is folded away."""
    folded = "".join(re.findall(r"<details>.*?</details>", rendered.html, re.DOTALL))
    return re.sub(r"<details>.*?</details>", "", rendered.html, flags=re.DOTALL), folded


def titles(html):
    return re.findall(r'<img alt="([^:"]*):', html)


def test_tables_show_the_importance_of_their_columns(drawn):
    """Columns of one category stand together; no picture for one column, few rows or a wide table."""
    x = torch.linspace(-1, 1, 24)[:, None]
    table = bnn.Data(x.repeat(1, 3), x[:, 0], feature_names=["size", "kind_a", "kind_b"], target_name="price")
    posterior = fitted(table, bnn.likelihoods.Gaussian(scale=0.5))
    columns = {"size": [0], "kind": [1, 2]}
    seen, folded = sections(report(posterior, table, columns=columns))
    first = ["Which columns matter", "How the prediction changes"]
    assert titles(seen) == ["Predictions", "Calibration", *first, "Simulated data", "Training"]
    assert not titles(folded)
    assert drawn[3].get_supylabel() == "mean of price"
    names = [label.get_text() for label in drawn[2].axes[0].get_yticklabels()]
    expected = bnn.metrics.permutation_importance(posterior, table, groups=columns, num_shuffles=3, num_draws=50)
    assert names == list(expected.index)
    assert "importance.png" not in report(posterior, table[:19]).figures
    assert "importance.png" not in report(posterior, table, columns={"all": [0, 1, 2]}).figures


def test_classes_show_their_confusion_first(drawn):
    generator = torch.Generator().manual_seed(0)
    table = bnn.Data(torch.randn(24, 3, generator=generator), torch.arange(24) % 2, target_name="colour")
    seen, folded = sections(report(fitted(table, "categorical", 2), table, class_names=("red", "blue")))
    assert titles(seen)[:2] == ["Confusion of classes", "Calibration"]
    assert not titles(folded)
    assert {"predicted colour", "observed colour", "red", "blue"} <= {one.get_text() for one in drawn[0].findobj(Text)}

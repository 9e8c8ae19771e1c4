"""The report: one page that stands alone, escapes what it shows, and warns when there is reason to."""

import base64
import dataclasses
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from helpers import quick

import pyrobnn as bnn
from pyrobnn.diagnostics import FunctionConvergence
from pyrobnn.diagnostics.chains import Chains, chains_of
from pyrobnn.diagnostics.findings import Diagnosis, Finding
from pyrobnn.diagnostics.training_checks import chain_findings
from pyrobnn.metrics import Score, score
from pyrobnn.report import Rendered, render, words

HOSTILE = "<script>alert('x')</script>"
GOOD = Diagnosis((Finding("elbo", "fine", "The ELBO is flat.", 0.5),), 0.01)
BAD = Diagnosis((Finding("spread", "warning", "Predictions are too narrow.", 1e-9), *GOOD.findings), 0.01)
MANIFEST = {"pyrobnn": "0.1.0", "git": {"commit": "abc", "changed": None}, "note": HOSTILE}


def fitted(data, likelihood, outputs=1, guide="mean_field", hidden=(3,), **arguments):
    model = bnn.BNN(bnn.MLP(data.x.shape[1], hidden, outputs), likelihood=likelihood, prior=bnn.priors.Normal(1.0))
    return quick(model, bnn.SVI(guide=guide, steps=20), data, **arguments)


def report(posterior, train, test=None, spec=None, **arguments):
    scored = train if test is None else test
    scores = score(posterior.predict(scored.x, num_draws=50), scored.y)
    arguments = {"diagnosis": GOOD, "spec": spec, "manifest": MANIFEST} | arguments
    return render(posterior, train=train, test=test, scores=scores, **arguments)


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
    assert "url(" not in page.html
    assert "@import" not in page.html
    assert "http" not in re.sub(r"base64,[^\"]*", "", page.html)


def test_figures_are_the_pngs_of_the_page(page):
    inside = [base64.b64decode(image.partition(",")[2]) for image in Page(page).images]
    assert inside == list(page.figures.values())
    assert list(page.figures) == ["fit.png", "elbo.png", "weights.png"]
    assert all(png.startswith(b"\x89PNG\r\n") and len(png) > 5000 for png in inside)


def test_it_says_what_was_fitted_and_shows_settings_and_manifest(page):
    text = flat_text(page)
    assert "network with 10 uncertain weights (MLP 1-3-1, relu; normal prior; gaussian likelihood)" in text
    assert f"fitted to 12 examples of y {HOSTILE} with a mean field guide, in 20 steps." in text
    for fact in ("fit.lr0.01", "fit.tagsa, b", "git.commitabc", "git.changed–", "test examplesnone"):
        assert fact in text


def test_scores_stand_with_standard_error_and_meaning(regression):
    train, posterior = regression
    scores = {"rmse": Score(1.2345, 0.056, higher_is_better=False), "own": Score(3.0, 1.0, higher_is_better=True)}
    rendered = render(posterior, train=train, test=None, scores=scores, diagnosis=GOOD, spec=None, manifest={})
    text = flat_text(rendered)
    assert f"rmse1.234± 0.056{words.SCORE_MEANINGS['rmse']}" in text
    assert "own3± 1Higher is better." in text
    assert "Manifest" not in text
    assert "Gaussian(scale=0.5)" in text
    posterior.history, history = None, posterior.history
    without = render(posterior, train=train, test=None, scores={}, diagnosis=GOOD, spec=None, manifest={})
    posterior.history = history
    assert "None were computed." in without.html
    assert list(without.figures) == ["fit.png", "weights.png"]


def _score(value):
    return Score(value, 0.1, higher_is_better=False)


def test_baselines_stand_beside_the_scores_and_the_verdict_above_all(regression):
    train, posterior = regression
    scores, simple = {"rmse": _score(1.0), "r2": _score(0.5)}, {"rmse": _score(2.345)}
    worse = Diagnosis((Finding("baseline", "warning", "No better than a constant."), *BAD.findings), 0.01)
    options = {"train": train, "test": None, "scores": scores, "spec": None, "manifest": {}, "diagnosis": worse}
    text = flat_text(render(posterior, baselines={"constant": simple}, **options))
    assert "standard errorconstantmeaning" in text
    assert "± 0.12.345Root mean" in text
    assert "± 0.1–Share of" in text
    first = text.index("Read this first")
    assert first < text.index("No better than a constant.") < text.index("Predictions are too narrow.")
    assert first < text.index("uncertain weights")


def test_every_score_has_its_meaning(regression, classification):
    train, posterior = regression
    _, test, classifier = classification
    names = [*score(posterior.predict(train.x), train.y), *score(classifier.predict(test.x), test.y)]
    assert set(names) | {"energy_score"} == set(words.SCORE_MEANINGS)


def test_classification_has_a_reliability_diagram(classification):
    train, test, posterior = classification
    rendered = report(posterior, train, test, class_names=("a", "b", "c"))
    assert list(rendered.figures) == ["reliability.png", "elbo.png", "weights.png"]
    assert "classes (3)a, b, c" in flat_text(rendered)
    assert "Scores on the 6 test examples" in flat_text(rendered)


@pytest.mark.slow
def test_more_inputs_have_observed_against_predicted_and_standardised_units():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    train = bnn.Data(x, 100 * x.sum(1), standardize=True)
    rendered = report(fitted(train, "gaussian"), train)
    assert next(iter(rendered.figures)) == "observed_vs_predicted.png"
    assert "The model saw standardised targets: subtract" in flat_text(rendered)


def test_the_audit_is_elbo_report(regression, page):
    train, posterior = regression
    audit = bnn.elbo_report(posterior, train, num_draws=300)
    text = flat_text(page)
    assert f"ELBO {audit.elbo} nats" in text
    assert all(str(site.kl) in text and site.name in text for site in audit.sites)
    assert f"{audit.kl_exact:.2f}" in text


@pytest.mark.slow
def test_a_long_audit_is_cut_to_its_total(regression):
    train, _ = regression
    rendered = report(fitted(train, bnn.likelihoods.Gaussian(scale=0.5), hidden=(1,) * 15), train)
    text = flat_text(rendered)
    assert "it has 32 rows, more than 30" in text
    assert "28.weight" not in text
    assert "total" in text


# warnings


@pytest.mark.slow
def test_warnings_come_first_and_only_with_reason(regression):
    train, posterior = regression
    quiet, loud = (report(posterior, train, diagnosis=one) for one in (GOOD, BAD))
    assert "Read this first" not in quiet.html
    assert "None of 1 checks gave a warning" in flat_text(quiet)
    assert loud.html.index("Read this first") < loud.html.index("too narrow") < loud.html.index("Scores on")
    assert "1 of 2 checks gave a warning" in flat_text(loud)
    assert "fineThe ELBO is flat. p = 0.5" in flat_text(loud)
    assert "Mend what the warnings name" in flat_text(loud)
    assert "Hold out data" in flat_text(quiet)


@pytest.mark.slow
def test_a_laplace_approximation_shows_its_evidence(regression):
    train, _ = regression
    posterior = fitted(train, bnn.likelihoods.Gaussian(scale=0.5), guide=bnn.guides.Laplace(structure="diag"))
    text = flat_text(report(posterior, train))
    parts = posterior.info["laplace"]
    assert f"Log evidence {parts['log_evidence']:.2f} nats" in text
    assert "Gaussian of 10 weights" in text


@pytest.mark.slow
def test_a_point_estimate_is_called_one(regression):
    train, _ = regression
    net = torch.nn.Sequential(torch.nn.Linear(1, 1))
    model = bnn.BNN(net, likelihood=bnn.likelihoods.Gaussian(scale=0.5), prior=bnn.priors.Normal(1.0))
    posterior = quick(model, bnn.SVI(guide="map", steps=2), train)
    assert "2 uncertain weights (Sequential; normal prior" in words.sentence(posterior, train)
    text = flat_text(report(posterior, train, diagnosis=bnn.diagnose(posterior, train)))
    assert "The epistemic part of the predictive variance is zero" in text
    assert "with a map guide" in text


# other methods than SVI


def ensemble(train, guide):
    model = bnn.BNN(bnn.MLP(1, (3,), 1), likelihood=bnn.likelihoods.Gaussian(scale=0.5), prior=bnn.priors.Normal(1.0))
    method = bnn.Ensemble(bnn.SVI(guide=guide, steps=60), members=2)
    return quick(model, method, train)


@pytest.mark.slow
def test_a_mixture_has_the_elbo_of_each_member_up_to_a_number(regression, monkeypatch):
    train, _ = regression
    mixture = ensemble(train, "mean_field")
    rendered = report(mixture, train)
    text = flat_text(rendered)
    assert "was fitted to 12 examples" in text
    assert "by an ensemble of 2 fits with a mean field guide, in 60 steps." in text
    for number, member in enumerate(mixture.members, 1):
        audit = bnn.elbo_report(member, train, num_draws=300)
        assert f"{number}{audit.elbo}{audit.log_likelihood}{audit.kl}{audit.kl_exact:.2f}" in text
    assert "The audited ELBO" not in text
    assert "Markov" not in text
    assert list(rendered.figures) == ["fit.png", "elbo.png"]
    assert "the mean over the members" in text
    monkeypatch.setattr("pyrobnn.report.page._MOST_ROWS", 1)
    assert "These are 1 of the 2 members." in flat_text(report(mixture, train))


@pytest.fixture(scope="module")
def sampled():
    model = bnn.BNN(
        torch.nn.Linear(1, 1).double(), likelihood=bnn.likelihoods.Gaussian(scale=0.5), prior=bnn.priors.Normal(1.0)
    )
    data = bnn.Data(torch.linspace(-1, 1, 30).double()[:, None], torch.linspace(-2, 2, 30).double())
    method = bnn.HMC(step_size=0.15, trajectory_length=0.45, num_draws=60, warmup=20, num_chains=2)
    return data, quick(model, method, data)


@pytest.mark.slow
def test_markov_chains_have_their_own_section(sampled):
    data, posterior = sampled
    rendered = report(posterior, data)
    text = flat_text(rendered)
    rows = torch.linspace(0, 29, 20).round().long()
    found = bnn.function_rhat(posterior, data.x[rows])
    assert "by HMC with 2 chains of 60 draws, in 80 steps." in text
    assert "means that they predict at 20 training inputs" in text
    for fact in (
        "chains2",
        f"largest R-hat{found.rhat.max():.3f}",
        f"smallest ESS, bulk{found.ess_bulk.min():.0f}",
        f"smallest ESS, tail{found.ess_tail.min():.0f}",
        "divergent draws0 of 120",
        f"acceptance rate{posterior.guide.sample_stats()['acceptance_rate'].mean():.2f}",
    ):
        assert fact in text
    assert "audited ELBO" not in text
    assert list(rendered.figures) == ["fit.png", "pit.png", "predictive_check.png", "weights.png", "sparsification.png"]


def chains(rhat=1.0, ess=500.0, diverging=0):
    shape = np.ones((3, 1))
    found = FunctionConvergence(rhat * shape, ess * shape, ess * shape)
    return Chains(4, 1000, 3, found, diverging, 0.8)


def test_chains_are_judged_by_rhat_size_and_divergences():
    def texts(*found):
        return [finding.text for finding in chain_findings(*found) if finding.kind == "warning"]

    assert texts(chains()) == []
    assert "largest R-hat is 1.020, above 1.01" in texts(chains(rhat=1.02))[0]
    assert "worth as little as 399 independent ones" in texts(chains(ess=399.0))[0]
    assert "They are stuck" in texts(chains(rhat=math.nan))[0]
    assert "3 of 4000 draws diverged" in texts(chains(diverging=3))[0]
    assert texts(dataclasses.replace(chains(), num_diverging=None)) == []
    assert len(texts(chains(rhat=1.02, diverging=3))) == 2


def test_a_single_chain_cannot_be_judged(sampled):
    data, posterior = sampled
    alone = dataclasses.replace(chains(), num_chains=1, convergence=None, num_diverging=None, acceptance_rate=None)
    assert "R-hat needs two or more of at least 4 draws, here there are 1 of 1000" in chain_findings(alone)[0].text
    assert [name for name, *_ in alone.rows()] == ["chains"]
    guide = bnn.guides.Empirical(num_chains=1, num_draws=60).build(posterior.bnn, *posterior.example)
    scalers = {"x_scaler": posterior.x_scaler, "y_scaler": posterior.y_scaler}
    single = bnn.Posterior(posterior.bnn, guide, example=posterior.example, **scalers, seed=0)
    assert chains_of(single, data).convergence is None

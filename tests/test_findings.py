"""The table of checks, the sentences of all findings, and the page that is made from them."""

import dataclasses
import re
import string
from pathlib import Path
from typing import get_args

import findings_page
import pytest
import torch

import pyrobnn as bnn
from pyrobnn._core.remedies import Remedy, Spelling
from pyrobnn.diagnostics.checks import ALL_CHECKS
from pyrobnn.diagnostics.diagnosis import Diagnosis
from pyrobnn.diagnostics.predictive_checks import Deviation
from pyrobnn.verdict.checks import findings
from pyrobnn.verdict.evidence import Evidence
from pyrobnn.verdict.finding import WORDS, Finding, templates
from pyrobnn.verdict.remedies import RULES, Rule, first

SENTENCES = Path(__file__).parent / "findings.txt"
NAMES = {
    "num": 40, "rows": "40 held-out examples", "examples": "15 examples of class 'yes'", "rival": "a linear model",
    "reason": "not converged within max_steps=9", "where": "", "missed": "'yes'", "columns": "'id'",
}  # fmt: skip
NUMBERS = dict.fromkeys(("linear", "gain", "rhat", "ess", "off", "elbo", "tolerance", "rate", "draws", "steps"), 3)


def example(key):
    """A finding of a key, with numbers for all that its template takes."""
    template = templates()[key]
    expected = 2.0 if key.endswith(" low") or key in ("missed", "error", "k-hat", "k-hat fine") else 0.5
    signs = {"measure": template.measure or "the bias", "sign": "targets lie above the predictions", "name": "bias"}
    facts = NAMES | NUMBERS | signs | {"passed": "bias 0.5 (0.49 ± 0.02)"}
    facts |= {"linear_error": 3} if "Log score" in template.rest and key != "memorised" else {}
    return Finding("some", template.severities[0], 1.0, expected, 0.1, 1e-4, facts=facts, key=key)


def test_every_sentence_is_the_one_on_file():
    """To change them, write the lines again: `python tests/test_findings.py`."""
    assert SENTENCES.read_text(encoding="utf-8") == sentences()


def sentences():
    return "".join(f"{example(key)}\n" for key in templates())


def test_the_page_is_made_from_the_table():
    """To change it, write it again: `python tests/findings_page.py`."""
    _, own, _ = findings_page.parts(findings_page.PAGE.read_text(encoding="utf-8"))
    assert own == findings_page.generated()


def test_every_template_belongs_to_a_check_and_every_remedy_is_known():
    keys = {key for row in findings_page.ROWS for key in row.keys}
    keys |= {"chains", "weak sign", "nothing against", "calibration"}
    ends = re.compile(" (fine|note|unknown|low|high)$")
    assert {ends.sub("", key) for key in templates()} == {ends.sub("", key) for key in keys}
    assert [*ALL_CHECKS] == [*dict.fromkeys(row.check for row in findings_page.ROWS)]
    assert {name for template in templates().values() for name in template.tries} <= {*RULES} == {*WORDS["remedies"]}
    data = bnn.Data(torch.randn(20, 2), torch.rand(20) + 0.1)
    evidence = Evidence(bnn.BNN(bnn.MLP(2, [3], 1)).fit(data, steps=1, progress=False), data)
    for name in {name for template in templates().values() for name in template.tries}:
        found = first(evidence, (name,))
        assert found is None or found.said("python") != found.said("command") or not found.settings
    grouped = dataclasses.replace(evidence, train=bnn.Data(data.x, data.y, groups=range(20)))
    found = [first(one, (name,)) for one in (evidence, grouped) for name in ("median", "sampled_groups")]
    assert [each and each.settings for each in found] == [None, None, None, ("fit.type=nuts",)]
    fits = [bnn.BNN(bnn.MLP(2, [20], 1)).fit(data, guide=guide, steps=1) for guide in ("map", "dropout")]
    assert [first(Evidence(fit, data), ("smaller",)) is None for fit in fits] == [False, True]  # fewer units are worse
    held_out = first(evidence, ("hold_out",))
    assert held_out.said("estimator") == "hold rows out, `train_test_split(X, y, test_size=0.25)`"


@pytest.mark.parametrize(
    ("settings", "python", "command"),
    [
        (("fit.type=nuts",), '`method="nuts"`', "--set fit.type=nuts"),
        (("guide.type=laplace",), '`guide="laplace"`', "--set guide.type=laplace"),
        (("fit.steps=9", "net.hidden=[10]"), "`steps=9`, `hidden=[10]`", "--set fit.steps=9 --set 'net.hidden=[10]'"),
        (("data.standardize=true",), "`standardize=True`", "--set data.standardize=true"),
        (("data.test=0.3",), "`data.split(0.3)`", "--set data.test=0.3"),
        (('data.drop=["a", "b c"]',), "", "--drop a --drop 'b c'"),
        (("data.groups=patient",), "`groups=`", "--groups patient"),
        (("data.missing=impute",), '`missing="impute"`', "--set data.missing=impute"),
        (('data.categories=["zip"]',), '`categories=["zip"]`', "--categories zip"),
        (("data.decimal=,",), '`decimal=","`', "--decimal ,"),
        (("data.test_last=0.2",), "", "--test-last 0.2"),
    ],
)  # fmt: skip
def test_a_remedy_is_spelled_for_python_and_for_the_command_line(settings, python, command):
    remedy = Remedy("try this", settings)
    assert remedy.said("python") == ("try this, " + python if python else "try this")
    assert remedy.said("command") == f"try this ({command})"


def test_a_verdict_is_the_worst_finding():
    order = ["warning", "unjudged", "care", "open", "note", "fine"]
    found = [Finding("mean", severity, 1.0, facts=NUMBERS | {"num": 9}) for severity in order]
    for index, worst in enumerate(found):
        assert Diagnosis(tuple(found[index:][::-1]), 0.05).worst == worst
    chance = Finding("bias", "warning", 1.0, 0.5, 0.1, p=0.002, key="bias high")
    assert Diagnosis((chance, found[0]), 0.05).worst == found[0]
    assert (Diagnosis((chance,), 0.05).mood, Diagnosis((found[0],), 0.05).mood) == ("care", "bad")
    assert repr(Diagnosis((found[0],), 0.05)).startswith("Diagnosis('Do not trust it yet: ")


def test_tests_that_found_nothing_are_told_in_one_line_with_what_is_expected():
    passed = [Deviation(1.0, 0.996, 0.21, 0.5).finding(name, 0.01) for name in ("spread", "surprise")]
    found = Diagnosis((Finding("mean", value=1.0, facts=NUMBERS | NAMES), *passed), 0.05)
    *_, line, _ = str(found).splitlines()
    assert line.endswith(": spread 1 (0.996 ± 0.21), surprise 1 (0.996 ± 0.21).")
    assert [one.name for one in found.told] == ["mean", "calibration"]
    assert [one.name for one in found.findings] == ["mean", "spread", "surprise"]


def test_each_warning_has_a_remedy_in_each_spelling_whatever_was_tried():
    """For each the last one is open to every fit."""
    data = bnn.Data(torch.randn(20, 2), torch.randn(20))
    evidence = Evidence(bnn.BNN(bnn.MLP(2, [3], 1)).fit(data, steps=1, progress=False), data)
    for key in templates():
        if example(key).severity != "warning":
            continue
        always = any(RULES[name].applies is Rule().applies for name in templates()[key].tries)
        assert templates()[key].otherwise or always, key
        (found,) = findings({key: lambda _, key=key: example(key)}, evidence)
        assert all(found.remedy.said(spelling) for spelling in get_args(Spelling)), key


def test_a_finding_of_a_severity_that_its_words_are_not_for_is_an_error():
    assert Finding("elbo", "fine", facts=NUMBERS).lead == "Training longer gains nothing that matters"
    with pytest.raises(AssertionError, match="no words for 'divergences' of the severity 'fine'"):
        str(Finding("divergences", "fine", 0.0, facts=NUMBERS))


def test_templates_take_no_other_names():
    known = {*NAMES, *NUMBERS, "linear_error", "measure", "sign", "name", "passed", "value", "expected", "error"}
    for template in templates().values():
        names = string.Formatter().parse(template.lead + template.rest + WORDS["sentences"]["@linear model"])
        assert {name for _, name, *_ in names if name} <= known


if __name__ == "__main__":
    SENTENCES.write_text(sentences(), encoding="utf-8")

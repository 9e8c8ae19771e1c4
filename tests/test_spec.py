import copy
import dataclasses

import numpy as np
import pandas as pd
import pytest

import pyrobnn as bnn
from pyrobnn import InputError
from pyrobnn.inference.defaults import choose
from pyrobnn.inference.parts import PARTS, Facts
from pyrobnn.posterior.record import ChoiceRecord
from pyrobnn.runs.spec import DataSpec, FitSpec, RunSpec, apply_overrides
from pyrobnn.verdict.evidence import Evidence
from pyrobnn.verdict.remedies import RULES

FULL = """
[data]
name = "diabetes"
split = 3
validation = 0.2
[net]
type = "mlp"
hidden = [5, 4]
activation = "tanh"
[prior]
"*.bias" = "normal"
"*" = {type = "scale_mixture", pi = 0.25, learnable = true}
[likelihood]
type = "gaussian"
scale = 2.5
[guide]
"4.*" = {type = "auto", name = "AutoMultivariateNormal"}
"*" = "mean_field"
[fit]
type = "svi"
steps = 7
lr = 1e-5
batch_size = 16
optimizer = {type = "adamw", weight_decay = 0.01}
schedule = "cosine_annealing_lr"
seed = 4
device = "cpu"
[predict]
num_draws = 9
"""


DIABETES = '[data]\nname = "diabetes"\n'


def read(tmp_path, text, *overrides):
    (tmp_path / "spec.toml").write_text(text, encoding="utf-8")
    return RunSpec.from_toml(tmp_path / "spec.toml", overrides=overrides)


def test_every_section_is_read(tmp_path):
    spec = read(tmp_path, FULL)
    assert spec.data == DataSpec(name="diabetes", split=3, validation=0.2)
    assert spec.net == bnn.MLP(hidden=(5, 4), activation="tanh")
    mixture = bnn.priors.ScaleMixture(pi=0.25, learnable=True)
    assert spec.prior == bnn.priors.resolve({"*.bias": "normal", "*": mixture})
    assert spec.likelihood == bnn.likelihoods.Gaussian(scale=2.5)
    assert spec.guide == bnn.guides.resolve({"4.*": "AutoMultivariateNormal", "*": "mean_field"})
    assert (spec.fit.seed, spec.fit.device, spec.predict.num_draws) == (4, "cpu", 9)
    assert spec.fit.method == bnn.SVI(
        guide=spec.guide,
        steps=7,
        lr=1e-5,
        batch_size=16,
        optimizer={"type": "adamw", "weight_decay": 0.01},
        schedule="cosine_annealing_lr",
    )


@pytest.mark.parametrize("text", [FULL, '[data]\nname = "wine"\n', '[data]\nname = "wine"\n[prior]\n"*" = "none"\n'])
def test_it_reads_back_as_it_was(text, tmp_path):
    spec = read(tmp_path, text)
    again = read(tmp_path, spec.to_toml())
    assert again == spec
    assert again.to_toml() == spec.to_toml()


def test_defaults(tmp_path):
    spec = read(tmp_path, DIABETES)
    assert spec.fit == FitSpec(method=None, seed=0, device="auto")
    assert spec.data == DataSpec(name="diabetes", split=0, standardize=True, validation=None)
    assert spec.predict.num_draws == 500
    prepared = spec.prepare()
    assert prepared.spec.likelihood == bnn.likelihoods.Gaussian(scale="tuned")
    assert prepared.validation is None
    assert prepared.train.standardize
    assert not read(tmp_path, DIABETES, "data.standardize=false").prepare().train.standardize
    assert (len(prepared.train), len(prepared.test)) == (398, 44)


@pytest.mark.parametrize(
    ("changes", "is_open"), [({}, True), ({"fit": {"steps": 9}}, False), ({"guide": {"type": "map"}}, False)]
)
def test_a_fit_without_a_number_of_steps_is_announced(changes, is_open):
    told = []
    RunSpec.from_dict({"data": {"name": "sinusoid"}, "guide": {"type": "low_rank"}} | changes).prepare(told.append)
    until = "fitting until it has converged, or for some steps, `steps=5000` ..."
    assert told[-1] == (until if is_open else "fitting ...")


LEFT_OUT = {
    "nothing": {}, "prior": {"prior": {"type": "laplace"}}, "guide": {"guide": {"type": "map"}},
    "settings": {"fit": {"steps": 7, "lr": 0.1}},
}  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("tables", LEFT_OUT.values(), ids=LEFT_OUT)
@pytest.mark.parametrize(("name", "estimator"), [("diabetes", bnn.BNNRegressor), ("wine", bnn.BNNClassifier)])
def test_what_is_left_out_is_what_the_estimators_take(name, estimator, tables):
    spec = RunSpec.from_dict({"data": {"name": name}} | tables)
    resolved = spec.prepare().spec
    own = estimator(**{key: table["type"] for key, table in tables.items() if key != "fit"} | tables.get("fit", {}))
    facts = Facts.of(own.TASK, bnn.datasets.load(name).data, own._given(), num_classes=3)
    (parts,) = choose(facts).candidates
    assert resolved.fit.method == parts.method
    assert (resolved.prior, resolved.likelihood) == (PARTS["prior"].resolve(parts.prior), parts.likelihood)
    widths = {"in_features": resolved.net.in_features, "out_features": resolved.net.out_features}
    assert resolved.net == dataclasses.replace(parts.net, **widths)
    assert RunSpec.from_dict(resolved.as_dict()) == resolved
    assert RunSpec.from_dict(spec.as_dict()) == spec


def test_a_likelihood_says_whether_integers_are_numbers(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n" + "\n".join(f"{i},{i % 17}" for i in range(60)), encoding="utf-8")
    data = {"path": str(tmp_path / "t.csv"), "target": "b"}
    with pytest.raises(InputError, match="'b' holds 17 different whole numbers, 0 to 16: say whether they are counts"):
        RunSpec.from_dict({"data": data}).prepare()
    counts = RunSpec.from_dict({"data": data, "likelihood": "poisson"}).prepare()
    assert counts.dataset.task == "regression"
    assert str(counts.choice).startswith("40 rows of counts: ")
    classes = RunSpec.from_dict({"data": data, "likelihood": "categorical"}).prepare()
    assert (classes.dataset.task, classes.spec.net.out_features) == ("classification", 17)
    asked = RunSpec.from_dict({"data": data | {"task": "regression"}}).prepare()
    assert asked.spec.likelihood == bnn.likelihoods.Gaussian()
    assert str(asked.choice).startswith("40 rows of counts: ")


def test_validation_is_taken_from_the_training_part_and_chooses_no_likelihood(tmp_path, monkeypatch):
    monkeypatch.setattr("pyrobnn.runs.spec.settled", lambda choice, *_: (choice.candidates[0], ChoiceRecord("", "")))
    with pytest.raises(InputError, match="is followed along the steps of svi, and .* has evidence_framework"):
        read(tmp_path, DIABETES, "data.validation=0.25").prepare()
    prepared = read(tmp_path, DIABETES, "data.validation=0.25", "fit.type=svi").prepare()
    assert [len(part) for part in (prepared.train, prepared.validation, prepared.test)] == [298, 100, 44]


def test_the_share_of_the_test_part_is_given_where_no_splits_are_published(tmp_path):
    frame = pd.DataFrame({"0": np.arange(40) / 7, "1": np.arange(40) + 0.5})
    frame.to_csv(tmp_path / "t.csv", index=False)
    table = {"path": str(tmp_path / "t.csv"), "target": "1"}
    for data, sizes in ((table, (28, 12)), ({"name": "diabetes"}, (309, 133))):
        prepared = RunSpec.from_dict({"data": data | {"test": 0.3}, "likelihood": "gaussian"}).prepare()
        assert (len(prepared.train), len(prepared.test)) == sizes
        assert read(tmp_path, prepared.spec.to_toml()).data.test == 0.3
    with pytest.raises(InputError, match="`test` draws another split, and sinusoid has its own: leave it out"):
        RunSpec.from_dict({"data": {"name": "sinusoid", "test": 0.3}}).prepare()


@pytest.mark.parametrize("name", ["sinusoid", "quartic"])
def test_toy_sets_have_new_points_as_their_test_part(name):
    prepared = RunSpec(data=DataSpec(name=name)).prepare()
    made = getattr(bnn.datasets, name)
    assert prepared.train.x.equal(made().x)
    assert prepared.train.y.equal(made().y)
    assert prepared.test.y.equal(made(200, seed=1).y)
    assert len(prepared.dataset.checksum) == 64


OVERRIDES = {
    "number": ("fit.seed=5", lambda s: s.fit.seed == 5),
    "float": ("fit.lr=1e-4", lambda s: s.fit.method.lr == 1e-4),
    "list": ("net.hidden=[3]", lambda s: s.net.hidden == (3,)),
    "bare text": ("net.activation=relu", lambda s: s.net.activation == "relu"),
    "quoted text": ('net.activation="relu"', lambda s: s.net.activation == "relu"),
    "whole part": ("guide=map", lambda s: s.guide == bnn.guides.Map()),
    "type from patterns": ("guide.type=map", lambda s: s.guide == bnn.guides.Map()),
    "pattern in other quotes": ("prior.'*.bias'.type=normal", lambda s: s.prior.choices[0][1] == bnn.priors.Normal()),
    "quoted pattern": ('prior."*.bias".type=scale_mixture', lambda s: s.prior.choices[0][1].pi == 0.5),
    "below text": ('guide."*".init_rho=-1', lambda s: s.guide.choices[1][1].init_rho == -1.0),
    "optimizer": ("fit.optimizer.type=sgd", lambda s: s.fit.method.optimizer.as_dict() == {"type": "sgd"}),
    "schedule": ("fit.schedule.T_max=3", lambda s: s.fit.method.schedule.options["T_max"] == 3),
    "method": ("fit.type=svi", lambda s: s.fit.seed == 4 and s.fit.method.steps == 7),
    "spaces": (" predict.num_draws = 30 ", lambda s: s.predict.num_draws == 30),
}


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("override", "holds"), OVERRIDES.values(), ids=OVERRIDES.keys())
def test_an_override(override, holds, tmp_path):
    spec, tables = read(tmp_path, FULL, override), read(tmp_path, FULL).as_dict()
    assert holds(spec)
    section = override.split("=")[0].split(".")[0].strip()
    assert spec.as_dict() | {section: None} == tables | {section: None}
    before = copy.deepcopy(tables)
    apply_overrides(tables, [override])
    assert tables == before


def test_another_type_drops_the_options_beside_it(tmp_path):
    text = '[data]\nname = "wine"\n[prior]\ntype = "scale_mixture"\npi = 0.3\n'
    assert read(tmp_path, text, "prior.scale=2.0", "prior.type=normal").prior == bnn.priors.Normal(scale=2.0)
    assert read(tmp_path, text, "prior.type=scale_mixture").prior == bnn.priors.ScaleMixture(pi=0.3)


def test_another_way_to_hold_rows_out_takes_the_place_of_the_first():
    table = {"path": "t.csv", "target": "y"}
    for data, change in ((table | {"test": 0.2}, "test_last=0.3"), (table | {"test_last": 0.2}, "groups=a")):
        changed = apply_overrides({"data": data}, [f"data.{change}"])["data"]
        assert set(changed) == {*table, change.partition("=")[0]}
        DataSpec(**changed)
    both = apply_overrides({"data": table}, ["data.test=0.2", "data.test_last=0.3"])["data"]
    with pytest.raises(InputError, match="holds the last rows out: leave out `test`"):
        DataSpec(**both)


def test_another_likelihood_has_its_own_number_of_outputs(tmp_path):
    """A spec that a run has filled in names the outputs of its likelihood; a number that is given stays."""
    filled = read(tmp_path, FULL).prepare().spec.as_dict()
    changed = apply_overrides(filled, ["likelihood.type=gaussian", "likelihood.scale=heteroscedastic"])
    assert RunSpec.from_dict(changed).prepare().spec.net.out_features == 2
    changed = apply_overrides(filled, ["likelihood.type=mixture_density", "net.out_features=5"])
    assert changed["net"]["out_features"] == 5


REFUSED = {
    "not toml": ("[data", "", r"is not valid TOML"),
    "no data": ("[net]\nhidden = [3]\n", "", r"needs a section \[data\]"),
    "section not a table": ("data = 3\n", "", r"\[data\] must be a table in the spec, got 3"),
    "part not a table": ('guide = 3\n[data]\nname = "wine"\n', "", r"\[guide\] must be a table in the spec, got 3"),
    "no source": ("[data]\nsplit = 1\n", "", r"\[data\] needs a `name`, or a `path` with a `target`"),
    "no target": ('[data]\npath = "b.csv"\n', "", r"\[data\] needs a `name`, or a `path` with a `target`"),
    "target of a name": ('[data]\nname = "wine"\ntarget = "c"\n', "", r"\[data\] `target` belongs to a `path`"),
    "gaps of a name": (DIABETES, 'data.missing="impute"', r"\[data\] `missing` belongs to a `path`"),
    "no equals": (DIABETES, "fit.seed", r"must read section.key=value, got 'fit.seed'"),
    "top level": (DIABETES, "type=map", r"Unknown section \[type\]"),
    "section": (DIABETES, "fitt.seed=1", r"Unknown section \[fitt\] in the spec\. Did you mean 'fit'\?"),
    "key": (DIABETES, "fit.stepz=1", r"\[fit\] unknown setting `stepz`; known are .*\. Did you mean 'steps'\?"),
    "guide in fit": (DIABETES, "fit.guide=map", r"\[fit\] unknown setting `guide`"),
    "data key": (DIABETES, "data.splitt=1", r"\[data\] unknown setting `splitt`; known are path, target"),
    "type not a name": (DIABETES, "guide.type=3", r"\[guide\] The type of a guide must be a name, got 3"),
    "method": (DIABETES, "fit.type=nutz", "Unknown method 'nutz'. Did you mean 'nuts'.*sghmc, sgld, svi"),
    "negative seed": (DIABETES, "fit.seed=-1", r"\[fit\] `seed` must be greater than or equal to 0, got -1"),
    "no type": (DIABETES, "likelihood.scale=1.0", r"\[likelihood\] A likelihood given as a table needs a `t"),
}


@pytest.mark.parametrize(("text", "override", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_file_and_a_bad_change_are_refused(text, override, message, tmp_path):
    with pytest.raises(InputError, match=message):
        read(tmp_path, text, *filter(None, [override]))


WINE = '[data]\nname = "wine"\n'
UNFIT = {
    "no such split": (DIABETES, "data.split=20", "splits 0 to 19, got 20"),
    "wrong width": (DIABETES, "net.in_features=3", "network does not take inputs of shape"),
    "wrong outputs": (DIABETES, "net.out_features=3", r"needs 1 network output for"),
    "classes needed": (DIABETES, "likelihood.type=bernoulli", "The targets are numbers, and Bernoulli.* for classes"),
    "no pattern matches": (DIABETES, 'prior={"9.*"="normal", "*"="normal"}', "pattern '9.\\*' matches nothing"),
    "no such device": (DIABETES, "fit.device=abacus", "Device 'abacus' cannot be used here"),
    "numbers needed": (WINE, "likelihood.type=gaussian", "wine: The targets are classes, and Gaussian"),
    "too few outputs": (WINE, "net.out_features=2", "2 network outputs needs labels from 0 to 1"),
}


@pytest.mark.parametrize(("text", "override", "message"), UNFIT.values(), ids=UNFIT.keys())
def test_what_does_not_fit_is_refused_when_prepared(text, override, message, tmp_path):
    with pytest.raises(InputError, match=message):
        read(tmp_path, text, override).prepare()


def test_remedies_are_changes_of_a_spec():
    data = bnn.Data([[0.0], [1.0]], [0.0, 1.0])
    model = bnn.BNN(bnn.MLP(1, [2], 1), prior=bnn.priors.Normal(1.0))
    evidence = Evidence(model.fit(data, guide="map", steps=1, progress=False), data)

    def given(settings):
        return settings(evidence) if callable(settings) else settings

    changes = [change for rule in RULES.values() for change in given(rule.settings)]
    assert {"likelihood.scale=tuned", "fit.steps=4", "prior.scale=0.3"} <= {*changes}
    for change in changes:
        is_of_chains = change.startswith(("fit.num_chains", "fit.target", "fit.num_draws", "fit.warmup"))
        method = ["fit.type=nuts"] if is_of_chains else []
        tables = {"data": {"path": "t.csv", "target": "y"}, "likelihood": {"type": "gaussian"}}
        tables["prior"] = {"type": "normal", "scale": 1.0}
        RunSpec.from_dict(apply_overrides(tables, [*method, change]))


def test_parts_that_are_not_settings_cannot_be_written():
    import torch

    spec = RunSpec(data=DataSpec(name="diabetes"), net=torch.nn.Linear(10, 1))
    with pytest.raises(InputError, match="cannot be written to a spec file"):
        spec.prepare()

"""Methods, guides and likelihoods of a spec: read, written, changed, and refused where they do not fit each other."""

import json
import tomllib

import pytest

import pyrobnn as bnn
from pyrobnn import InputError
from pyrobnn.inference.method import guide_of
from pyrobnn.runs.spec import DataSpec, FitSpec, RunSpec

SVI = '[fit]\ntype = "svi"\nsteps = 7\nlr = 0.1\nseed = 4\n'
ENSEMBLE = '[fit]\ntype = "ensemble"\nmembers = 3\nseed = 4\n[fit.method]\nsteps = 7\n'
NUTS = '[fit]\ntype = "nuts"\nnum_draws = 10\n'
LOW_RANK = '[guide]\ntype = "low_rank"\nrank = 2\n'
SWAG = '[fit]\ntype = "swag"\nrank = 3\nsteps = 30\nevery = 10\n[fit.method]\nsteps = 7\n'


def read(tmp_path, text, *overrides):
    (tmp_path / "spec.toml").write_text('[data]\nname = "sinusoid"\n' + text, encoding="utf-8")
    return RunSpec.from_toml(tmp_path / "spec.toml", overrides=overrides)


READ = {
    "svi": (SVI, bnn.SVI(steps=7, lr=0.1)),
    "ensemble of points": (ENSEMBLE, bnn.Ensemble(bnn.SVI(guide="map", steps=7), members=3)),
    "ensemble with a guide": (
        ENSEMBLE + LOW_RANK,
        bnn.Ensemble(bnn.SVI(guide=bnn.guides.LowRank(rank=2), steps=7), members=3),
    ),
    "swag": (SWAG, bnn.SWAG(bnn.SVI(guide="map", steps=7), rank=3, steps=30, every=10)),
    "multi-swag with settings": (
        '[fit]\ntype = "ensemble"\n[fit.method]\ntype = "swag"\nrank = 3\n[fit.method.method]\nlr = 0.1\n',
        bnn.Ensemble(bnn.SWAG(bnn.SVI(guide="map", lr=0.1), rank=3)),
    ),
    "nuts": (NUTS, bnn.NUTS(num_draws=10)),
    "mclmc": ('[fit]\ntype = "mclmc"\nthinning = 2\n', bnn.MCLMC(thinning=2)),
    "mile": (
        '[fit]\ntype = "mile"\nnum_chains = 3\n[fit.method]\nsteps = 7\n',
        bnn.MILE(num_chains=3, method=bnn.SVI(guide="map", steps=7)),
    ),
    "sgld": ('[fit]\ntype = "sgld"\nstep_size = 1e-3\nschedule = "cosine_annealing_lr"\n', None),
    "sghmc": ('[fit]\ntype = "sghmc"\nstep_size = 1e-3\nbatch_size = 8\n', bnn.SGHMC(step_size=1e-3, batch_size=8)),
}


@pytest.mark.parametrize(("text", "expected"), READ.values(), ids=READ.keys())
def test_a_method_is_read_and_written(text, expected, tmp_path):
    spec = read(tmp_path, text)
    assert spec.fit.method == (expected or bnn.SGLD(step_size=1e-3, schedule="cosine_annealing_lr"))
    assert spec.guide == guide_of(spec.fit.method)
    assert RunSpec.from_dict(tomllib.loads(spec.to_toml())) == spec
    assert RunSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec
    assert ("guide" in spec.as_dict()) == (spec.guide is not None)
    assert "guide" not in json.dumps(spec.as_dict()["fit"])


def test_a_method_in_python_keeps_its_guide():
    spec = RunSpec(data=DataSpec(name="sinusoid"), fit=FitSpec(method=bnn.SVI(guide="map")))
    assert spec.guide == bnn.guides.Map()
    assert RunSpec.from_dict(spec.as_dict()) == spec
    with pytest.raises(InputError, match="`guide` and `settings` are for the default method: set them in the"):
        FitSpec(method=bnn.SVI(), guide="map")


CHANGED = {
    "svi to ensemble": (SVI + LOW_RANK, ["fit.type=ensemble"], {"members": 5, "seed": 4}, {"lr": 0.02}),
    "without a section": ("", ["fit.type=ensemble"], {"members": 5, "seed": 0}, {"lr": 0.02}),
    "ensemble to svi": (ENSEMBLE, ["fit.steps=7", "fit.type=svi"], {"steps": 7, "seed": 4}, None),
    "ensemble of swag": (ENSEMBLE, ["fit.method.type=swag"], {"members": 3}, {"type": "swag", "steps": 2500}),
    "the method inside": (ENSEMBLE, ["fit.method.lr=0.5"], {"members": 3}, {"lr": 0.5, "steps": 7}),
    "svi to nuts": (SVI + LOW_RANK, ["fit.num_draws=10", "fit.type=nuts"], {"num_draws": 10, "seed": 4}, None),
}


@pytest.mark.parametrize(("text", "overrides", "outer", "inner"), CHANGED.values(), ids=CHANGED.keys())
def test_a_change_of_method(text, overrides, outer, inner, tmp_path):
    table = read(tmp_path, text, *overrides).as_dict()["fit"]
    assert outer.items() <= table.items()
    assert ("method" in table) == (inner is not None)
    assert (inner or {}).items() <= table.get("method", {}).items()


def test_a_change_of_method_keeps_the_guide_where_there_is_one(tmp_path):
    assert read(tmp_path, SVI + LOW_RANK, "fit.type=ensemble").fit.method.method.guide == bnn.guides.LowRank(rank=2)
    assert read(tmp_path, SVI + LOW_RANK, "fit.type=nuts").guide is None
    assert read(tmp_path, SVI + LOW_RANK, "fit.type=swag", "guide.type=map").guide == bnn.guides.Map()


def test_a_type_inside_a_prior_is_looked_up_among_priors(tmp_path):
    text = '[prior]\ntype = "anchored"\nprior = {type = "scale_mixture", pi = 0.3}\n'
    assert read(tmp_path, text, "prior.prior.type=normal").prior == bnn.priors.Anchored(bnn.priors.Normal())


REFUSED = {
    "guide for nuts": (NUTS + LOW_RANK, r"^\[guide\] nuts draws from the posterior itself and trains no guide, got L"),
    "guide for swag": (SWAG + LOW_RANK, r"^\[guide\] SWAG: .*averages points: its method needs guide='map', got Low"),
    "guide inside": (ENSEMBLE + 'guide = "map"\n', r"\[fit\] `method`: unknown setting `guide`.*a separate section"),
    "setting of the inside": ('[fit]\ntype = "ensemble"\nsteps = 3\n', r"unknown setting `steps`; known are type,"),
    "seed inside": (ENSEMBLE + "seed = 3\n", r"\[fit\] `method`: unknown setting `seed`; known are type, steps"),
    "unknown inside": ('[fit]\ntype = "ensemble"\nmethod = "nutz"\n', r"\[fit\] `method`: Unknown method 'nutz'"),
    "patience inside": (ENSEMBLE + "patience = 3\n", r"\[fit\] Ensemble: .*members run the same number of steps"),
    "of another method": ("[fit]\nstarts = 2\n", "`starts` is a setting of evidence_framework: name the method by"),
    "validation": (
        NUTS,
        r"^\[data\] `validation` is followed along the steps of svi, and \[fit\] has nuts",
        "data.validation=0.2",
    ),
    "fewer draws than members": (
        ENSEMBLE,
        r"\[predict\] `num_draws` must be at least 3, one of each member or chain, got 2",
        "predict.num_draws=2",
    ),
    "fewer draws than members by default": ("", "chain that the default may have, got 4", "predict.num_draws=4"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_the_method_is_refused(case, tmp_path):
    text, message, *overrides = case
    with pytest.raises(InputError, match=message):
        read(tmp_path, text, *overrides)


def table(tmp_path, values):
    rows = [f"{i / 10},{value}" for i, value in enumerate(values)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b", *rows]), encoding="utf-8")
    return tmp_path / "t.csv"


COUNTS = [0, 1, 3, 2] * 10
TARGETS = {"classes": ["no", "yes", "may"] * 13, "counts": COUNTS, "real values": [0.5 * i for i in range(40)]}
NUMBERS = ["beta", "censored_gaussian", "gamma", "gaussian", "laplace", "log_normal", "mixture_density"]
NUMBERS += ["negative_binomial", "poisson", "student_t", "zero_inflated"]
PAIRS = {
    **{("classes", kind): "'b' must be numeric for a regression, and holds text, such as 'no'" for kind in
       NUMBERS},
    **{("real values", kind): f"t: The targets are numbers, and {name}.* is for classes" for kind, name in
       {"categorical": "Categorical", "bernoulli": "Bernoulli", "ordinal": "Ordinal"}.items()},
    **{("counts", kind): "t: The targets are numbers" for kind in ("categorical", "bernoulli", "ordinal")},
    **{("real values", kind): f"t: {name} needs whole-number counts, got values such as" for kind, name in
       {"poisson": "Poisson", "negative_binomial": "NegativeBinomial", "zero_inflated": "ZeroInflated"}.items()},
    **{("real values", kind): f"t: {name} needs positive targets, got 0" for kind, name in
       {"log_normal": "LogNormal", "gamma": "Gamma"}.items()},
    ("real values", "beta"): "t: Beta needs targets above 0 and below 1, got 0 to 19: divide percentages by 100",
    ("classes", "bernoulli"): "t: Bernoulli needs targets 0 and 1",
    ("classes", "categorical"): None,
    ("classes", "ordinal"): "Ordered labels need an order, and texts such as",
    **{("counts", kind): None for kind in
       ("gaussian", "poisson", "negative_binomial", "zero_inflated", "censored_gaussian")},
    **{("real values", kind): None for kind in
       ("gaussian", "student_t", "laplace", "censored_gaussian", "mixture_density")},
}  # fmt: skip


@pytest.mark.parametrize(("pair", "message"), PAIRS.items(), ids=[" and ".join(pair) for pair in PAIRS])
def test_likelihood_and_targets_fit_or_are_refused(pair, message, tmp_path):
    targets, kind = pair
    options = {"censored_gaussian": {"lower": 0.0}, "ordinal": {"num_classes": 3}}.get(kind, {})
    data = {"path": str(table(tmp_path, TARGETS[targets])), "target": "b"}
    data |= {} if targets == "classes" else {"task": "regression"}
    spec = RunSpec.from_dict({"data": data, "likelihood": {"type": kind} | options, "net": {"hidden": [2]}})
    if message is not None:
        with pytest.raises(InputError, match=message):
            spec.prepare()
    else:
        assert spec.prepare().spec.likelihood == spec.likelihood

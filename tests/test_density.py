"""The likelihood that nobody chose: another than the default where rows held out say so, and nowhere else."""

import numpy as np
import pytest

import pyrobnn as bnn
from pyrobnn.inference import density
from pyrobnn.inference.default_parts import parts_for
from pyrobnn.inference.density import better_density
from pyrobnn.inference.method import Run
from pyrobnn.runs.spec import RunSpec

RUN = Run(seed=0, progress=False)
SHORT = bnn.EvidenceFramework(starts=1)


def table(name, rows=450, seed=0):
    """Return x and y: a line and normal noise, two branches, or noise that grows from 0.1 to 1.7."""
    rng = np.random.default_rng(seed)
    x, noise = rng.uniform(-2, 2, size=(rows, 2)), rng.normal(size=rows)
    y = {
        "normal": x[:, 0] + 0.5 * noise,
        "branches": np.where(rng.random(rows) < 0.5, 1, -1) * (1 + x[:, 0] / 4) + 0.1 * noise,
        "growing": x[:, 0] + (0.1 + 0.8 * np.abs(x[:, 1])) * noise,
    }
    return x, y[name]


def chosen(x, y, **options):
    default = parts_for("regression", num_data=len(y), num_inputs=2) | {"method": SHORT}
    return better_density(bnn.Data(x, y, standardize=True, **options), default, RUN)


@pytest.mark.slow
def test_two_branches_and_growing_noise_are_seen_and_normal_noise_is_left():
    """Log scores of the truth are above those of the best normal: by 1.2 nats, and by 0.2."""
    branches, growing = (chosen(*table(name)) for name in ("branches", "growing"))
    assert isinstance(branches.parts["likelihood"], bnn.likelihoods.MixtureDensity)
    assert 1 < branches.gain < 2.2
    assert (growing.gain, growing.error) == ((again := chosen(*table("growing"))).gain, again.error)
    assert growing.gain > max(0.05, 2 * growing.error)
    assert f"{growing.gain:.2f} ± {growing.error:.2f} nats a row better" in growing.reason
    assert all(chosen(*table("normal", seed=seed)) is None for seed in range(3))


def test_tables_that_are_not_suited_cost_nothing(monkeypatch):
    monkeypatch.setattr(density, "_quick", None)
    x, y = table("branches")
    assert chosen(x[:299], y[:299]) is None
    assert chosen(x, y.round(1)) is None  # a density would pile up on values that repeat
    assert chosen(x, np.stack([y, y], 1)) is None
    assert chosen(x, y, weights=np.ones(len(y))) is None


@pytest.mark.parametrize(
    "given",
    [{"likelihood": "gaussian"}, {"steps": 20}, {"prior": bnn.priors.Normal(1.0)}, {"method": SHORT}, {}],
    ids=str,
)
def test_what_is_given_is_obeyed(given, monkeypatch):
    """The estimator compares only where no part and no setting is given, and for no fit that others follow."""

    def compared(*_):
        raise InterruptedError

    monkeypatch.setattr("pyrobnn.estimators.base.better_density", compared)
    x, y = table("branches", 30)
    monkeypatch.setattr("pyrobnn.estimators.base.make_model", stopped)
    regressor = bnn.BNNRegressor(random_state=0, **given)
    with pytest.raises(StopIteration if given else InterruptedError):
        regressor.fit(x, y)
    with pytest.raises(StopIteration):
        regressor.partial_fit(x, y)


def stopped(*_):
    """End a fit before its work."""
    raise StopIteration


@pytest.mark.slow
def test_estimator_and_table_take_the_same_kind_of_density_and_say_so(tmp_path, capsys):
    x, y = table("branches", 600)
    regressor = bnn.BNNRegressor(random_state=0, verbose=True).fit(x[:400], y[:400])
    assert "nats a row better on rows held out" in capsys.readouterr().err
    assert isinstance(regressor.posterior_.bnn.settings["likelihood"], bnn.likelihoods.MixtureDensity)
    score = float(regressor.predict_dist(x[400:]).log_prob(y[400:]).mean())
    normal = bnn.BNNRegressor(random_state=0, likelihood="gaussian").fit(x[:400], y[:400])
    usual = float(normal.predict_dist(x[400:]).log_prob(y[400:]).mean())
    assert score > usual + 1
    inside, outside = (regressor.predict_dist(place).epistemic_std.mean() for place in (x[400:], 4 * x[400:]))
    assert outside > 4 * inside
    regressor.partial_fit(x[400:500], y[400:500])
    assert float(regressor.predict_dist(x[500:]).log_prob(y[500:]).mean()) > usual + 0.5

    path = tmp_path / "table.csv"
    np.savetxt(path, np.column_stack([x, y]), delimiter=",", header="a,b,y", comments="")
    prepared = RunSpec.from_dict({"data": {"path": str(path), "target": "y"}}).prepare()
    assert isinstance(prepared.spec.likelihood, bnn.likelihoods.MixtureDensity)
    assert "nats a row better on rows held out than the default (`--set likelihood.type=gaussian`" in prepared.sentence
    again = RunSpec.from_dict(prepared.spec.as_dict()).prepare()
    assert again.density is None
    assert again.spec == prepared.spec
    told = RunSpec.from_dict({"data": {"path": str(path), "target": "y"}, "likelihood": {"type": "gaussian"}}).prepare()
    assert told.density is None

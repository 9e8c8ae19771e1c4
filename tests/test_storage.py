"""A posterior that was saved and loaded is the one that was saved: draws, predictions, record, everything."""

import dataclasses
import json
from functools import partial

import numpy as np
import pytest
import safetensors
import torch
from torch import nn

import pyrobnn as bnn
from pyrobnn._core.tree_files import read_tree, write_tree
from pyrobnn.inference import History
from pyrobnn.storage import load

X = torch.linspace(-1, 1, 12)[:, None].repeat(1, 2) * torch.tensor([1.0, 30.0])
Y = 100 + 5 * X[:, 0].sin()
LABELS = (X[:, 0] > 0).long()
MIXTURE = bnn.priors.ScaleMixture(sigma1=1.0, sigma2=0.1, learnable=True)


def fitted(net=None, *, guide="mean_field", y=Y, standardize=True, seed=3, **parts):
    model = bnn.BNN(net or bnn.MLP(2, [4], 1), **parts)
    settings = {"engine": "eager", "device": "cpu", "progress": False}
    return model.fit(X, y, guide=guide, steps=3, seed=seed, standardize=standardize, **settings)


ROUND_TRIPS = {
    "mean_field": fitted,
    "map": lambda: fitted(guide="map"),
    "autoguide": lambda: fitted(guide="AutoMultivariateNormal"),
    "flow": lambda: fitted(guide="AutoIAFNormal"),
    "by name": lambda: fitted(guide={"2.*": "AutoMultivariateNormal", "*": "mean_field"}),
    "priors by name": lambda: fitted(prior={"*.bias": None, "*": MIXTURE}),
    "raw units": lambda: fitted(standardize=False),
    "two columns": lambda: fitted(bnn.MLP(2, [4], 2), y=torch.stack([Y, 2 * Y], 1)),
    "classes": lambda: fitted(bnn.MLP(2, [4], 3), y=LABELS, likelihood="categorical"),
}


def assert_same_record(history, expected):
    for field in dataclasses.fields(History):
        mine, theirs = (getattr(record, field.name) for record in (history, expected))
        assert np.array_equal(mine, theirs) if isinstance(theirs, np.ndarray) else mine == theirs, field.name


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:for .*copying from a non-meta parameter:UserWarning")
@pytest.mark.parametrize("make", ROUND_TRIPS.values(), ids=ROUND_TRIPS.keys())
def test_a_loaded_posterior_predicts_the_same_bits_and_goes_to_the_device_asked_for(make, tmp_path):
    """There is no GPU to test on. The meta device refuses to compute with a tensor that was left behind on the CPU."""
    posterior = make()
    loaded = bnn.load(bnn.save(posterior, tmp_path / "p"))
    for seed in (None, 8):
        before, after = (p.predict(X, num_draws=5, seed=seed) for p in (posterior, loaded))
        assert torch.equal(before.draw_means, after.draw_means)
        y = LABELS if before.is_classification else before.mean
        assert torch.equal(before.draw_log_prob(y), after.draw_log_prob(y))
    assert loaded.seed == posterior.seed
    assert loaded.record == posterior.record
    assert loaded.bnn.settings == posterior.bnn.settings
    assert torch.equal(loaded.x_scaler.scale, posterior.x_scaler.scale)
    assert_same_record(loaded.history, posterior.history)
    assert len(loaded.history) == 3
    assert loaded.history.elbo.dtype == np.float64

    away = bnn.load(tmp_path / "p", device="meta")
    draws = away.draw(2)
    tensors = [*away.bnn.state_dict().values(), *away.guide.state_dict().values(), *away.example, *draws.values()]
    outputs = away.bnn.outputs({name: draws[name][0] for name in away.bnn.site_names}, away.example[0])
    assert {value.device.type for value in [*tensors, outputs]} == {"meta"}


def test_the_file_is_safetensors_without_code(tmp_path):
    bnn.save(fitted(prior=MIXTURE), tmp_path / "p")
    with pytest.raises(bnn.InputError, match=r"holds its own network, MLP\(in_features=2, .*: leave out `net`"):
        bnn.load(tmp_path / "p", net=nn.Linear(2, 1))
    before = torch.random.get_rng_state()
    bnn.load(tmp_path / "p")
    assert torch.equal(before, torch.random.get_rng_state())
    with safetensors.safe_open(tmp_path / "p", "pt") as file:
        tree = json.loads(file.metadata()["tree"])
    assert tree["format_version"] == load.FORMAT_VERSION
    mixture = {"type": "scale_mixture", "pi": 0.5, "sigma1": 1.0, "sigma2": 0.1, "learnable": True}
    assert tree["parts"]["prior"] == mixture
    assert "likelihood.scale_unconstrained" in tree["model_state"]


def test_a_net_of_ones_own_comes_back_if_it_is_passed(tmp_path):
    def net():
        return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()

    posterior = fitted(net())
    bnn.save(posterior, tmp_path / "p")
    loaded = bnn.load(tmp_path / "p", net=net())
    assert torch.equal(posterior.predict(X).mean, loaded.predict(X).mean)
    with pytest.raises(bnn.InputError, match="your own network, Sequential: pass it"):
        bnn.load(tmp_path / "p")
    with pytest.raises(bnn.InputError, match=r"net.0.weight is float64\(3, 2\) in the file and float64\(4, 2\) here"):
        bnn.load(tmp_path / "p", net=nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double())
    with pytest.raises(bnn.InputError, match=r"net.2.weight is float64.* here; and 2 more\. A network must be that of"):
        bnn.load(tmp_path / "p", net=net().float())
    with pytest.raises(bnn.InputError, match=r"net.2.weight is float64\(1, 3\) in the file and missing here"):
        bnn.load(tmp_path / "p", net=nn.Sequential(nn.Linear(2, 3)).double())
    with pytest.raises(bnn.InputError, match=r"net.1.running_mean is missing in the file and float64\(3,\) here"):
        bnn.load(tmp_path / "p", net=nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double())


class Scaled(nn.Module):
    """Its attributes and its buffer, which no state holds, make another function of the same parameters."""

    def __init__(self, activation=torch.tanh, scale=1.0, shift=0.0):
        super().__init__()
        self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 1)
        self.activation, self.scale, self.calls, self.seen = activation, scale, 0, None
        self.register_buffer("shift", torch.tensor(shift), persistent=False)

    def forward(self, x):
        self.calls, self.seen = self.calls + 1, self.a(x)
        return self.b(self.activation(self.scale * self.seen + self.shift))


class Other(Scaled):
    def forward(self, x):
        return self.b(self.a(x).relu())


def layers(activation):
    return nn.Sequential(nn.Linear(2, 3), activation, nn.Linear(3, 1))


NETS = {
    "activation": (lambda: layers(nn.Tanh()), lambda: layers(nn.ReLU())),
    "a layer more": (lambda: layers(nn.Tanh()), lambda: nn.Sequential(*layers(nn.Tanh()), nn.Tanh())),
    "a setting of a layer": (lambda: layers(nn.ELU(0.5)), lambda: layers(nn.ELU(2.0))),
    "function": (Scaled, lambda: Scaled(torch.relu)),
    "lambda": (lambda: Scaled(lambda z: z.sin()), lambda: Scaled(lambda z: z.cos())),
    "partial": (lambda: Scaled(partial(torch.clamp, min=-1)), lambda: Scaled(partial(torch.clamp, min=-2))),
    "number": (Scaled, lambda: Scaled(scale=2.0)),
    "buffer": (Scaled, lambda: Scaled(shift=0.5)),
    "code": (Scaled, Other),
}


@pytest.mark.parametrize("name", NETS)
def test_another_network_of_the_same_parameters_is_refused_by_its_outputs(name, tmp_path):
    net, other = NETS[name]
    posterior = fitted(net().double())
    bnn.save(posterior, tmp_path / "p")
    with pytest.raises(bnn.InputError, match="for the same weights its outputs differ"):
        bnn.load(tmp_path / "p", net=other().double())
    loaded = bnn.load(tmp_path / "p", net=net().double())
    assert torch.equal(posterior.predict(X).mean, loaded.predict(X).mean)
    bnn.load(loaded.save(tmp_path / "again"), net=net().double())
    tree = read_tree(tmp_path / "p")
    del tree["answers"]
    write_tree(tmp_path / "older", tree | {"network": {"the list of layers": "0"}})
    bnn.load(tmp_path / "older", net=net().double())


def test_what_is_not_a_setting_is_not_saved(tmp_path):
    from pyro.infer.autoguide import AutoNormal

    posterior = fitted(guide=lambda model: AutoNormal(model, init_scale=0.1))
    with pytest.raises(bnn.InputError, match="guide was not fitted from a setting"):
        bnn.save(posterior, tmp_path / "p")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_every_precision_comes_back(dtype, tmp_path):
    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).to(dtype)

    posterior = fitted(net(), likelihood=bnn.likelihoods.Gaussian(scale=0.5))
    loaded = bnn.load(posterior.save(tmp_path / "p"), net=net())
    assert torch.equal(loaded.predict(X, num_draws=3).draw_means, posterior.predict(X, num_draws=3).draw_means)
    inferred = torch.float64 if dtype == torch.float64 else torch.float32
    assert all(value.dtype == inferred for value in loaded.draw(1).values())


def test_numbers_that_are_not_finite_and_the_order_of_keys_come_back(tmp_path):
    posterior = fitted()
    score = {"b": [float("inf"), -1e-300], "a": float("-inf")}
    posterior.record.extra.update({"score": score, "none": None, "text": "\x00é\ud800", "nan": float("nan")})
    posterior.history.validation_scores[:] = [float("-inf"), 1.5]
    posterior.history.validation_steps[:] = [2, 3]
    loaded = bnn.load(posterior.save(tmp_path / "p"))
    assert np.isnan(loaded.record.extra["nan"])
    assert loaded.record.extra | {"nan": 0} == posterior.record.extra | {"nan": 0}
    assert list(loaded.record.extra["score"]) == ["b", "a"]
    assert_same_record(loaded.history, posterior.history)


@pytest.mark.parametrize("value", [{1: 2}, {"__tensor__": "0"}, [print]], ids=repr)
def test_what_the_file_cannot_hold_is_refused_before_anything_is_written(value, tmp_path):
    posterior = fitted()
    posterior.record.extra.update({"mine": {"a": value}})
    with pytest.raises(bnn.InputError, match=r"`info\.extra\.mine\.a.*` cannot be saved, it is"):
        posterior.save(tmp_path / "p")
    assert not list(tmp_path.iterdir())


def test_a_mixture_comes_back_with_the_records_of_its_members(tmp_path):
    ensemble = bnn.Ensemble(bnn.SVI(guide="map", steps=2), members=2)
    model = bnn.BNN(bnn.MLP(2, [3], 1), prior=bnn.priors.Normal(1.0))
    mixture = bnn.fit(model, (X, Y), ensemble, seed=0, engine="eager", progress=False)
    loaded = bnn.load(mixture.save(tmp_path / "m"))
    assert torch.equal(loaded.predict(X, num_draws=4).draw_means, mixture.predict(X, num_draws=4).draw_means)
    assert_same_record(loaded.history, mixture.history)
    for mine, theirs in zip(loaded.members, mixture.members, strict=True):
        assert_same_record(mine.history, theirs.history)
    assert loaded.record == mixture.record
    assert loaded.seed == mixture.seed


@pytest.mark.filterwarnings("ignore:Laplace:UserWarning")
def test_pruned_updated_anchored_and_tuned_posteriors_come_back(tmp_path):
    first, data = fitted(), bnn.Data(X, Y, standardize=True)
    laplace = fitted(guide=bnn.guides.Laplace(structure="diag"))
    tuned = {f"tuned by {per}": bnn.tune_prior(laplace, data, per=per) for per in ("site", "weight")}
    later = bnn.update_prior(first).fit(X, Y, steps=2, seed=1, engine="eager", progress=False)
    anchored = fitted(prior=bnn.priors.Anchored(bnn.priors.ScaleMixture()))
    parts = fitted(guide={"*.bias": "map", "*": "mean_field"}, prior="hierarchical")
    pruned = {"pruned": bnn.prune(first, 0.5), "pruned by name": bnn.prune(parts, 0.3)}
    for name, posterior in (pruned | tuned | {"updated": later, "anchored": anchored}).items():
        loaded = bnn.load(bnn.save(posterior, tmp_path / name))
        assert torch.equal(loaded.predict(X, num_draws=3).draw_means, posterior.predict(X, num_draws=3).draw_means)
        assert loaded.record == posterior.record
        if name not in pruned:  # which have no ELBO
            elbos = [bnn.elbo_report(each, bnn.Data(X, Y), num_draws=3, seed=0).elbo for each in (loaded, posterior)]
            assert elbos[0] == elbos[1]  # so the prior's own tensors came back too

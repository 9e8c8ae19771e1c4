import json

import pytest
import safetensors.torch
import torch
from torch import nn

import pyrobnn as bnn
from pyrobnn import InputError
from pyrobnn._folders import new_folder
from pyrobnn.storage import load_posterior, save_posterior

X = torch.linspace(-1, 1, 12)[:, None].repeat(1, 2) * torch.tensor([1.0, 30.0])
Y = 100 + 5 * X[:, 0].sin()
LABELS = (X[:, 0] > 0).long()
MIXTURE = bnn.priors.ScaleMixture(learnable=True)


def fitted(net=None, *, guide="mean_field", y=Y, standardize=True, seed=3, **parts):
    model = bnn.BNN(net or bnn.MLP(2, [4], 1), **parts)
    return model.fit(X, y, guide=guide, steps=3, seed=seed, standardize=standardize, progress=False)


ROUND_TRIPS = {
    "mean_field": fitted,
    "map": lambda: fitted(guide="map"),
    "autoguide": lambda: fitted(guide="AutoMultivariateNormal"),
    "autoguide with options": lambda: fitted(guide=bnn.guides.Auto("AutoLowRankMultivariateNormal", {"rank": 2})),
    "flow": lambda: fitted(guide="AutoIAFNormal"),
    "by name": lambda: fitted(guide={"2.*": "AutoMultivariateNormal", "*": "mean_field"}),
    "learned mixture": lambda: fitted(prior=MIXTURE),
    "priors by name": lambda: fitted(prior={"*.bias": None, "*": MIXTURE}),
    "known noise": lambda: fitted(likelihood=bnn.likelihoods.Gaussian(scale=0.5)),
    "raw units": lambda: fitted(standardize=False),
    "two columns": lambda: fitted(bnn.MLP(2, [4], 2), y=torch.stack([Y, 2 * Y], 1)),
    "classes": lambda: fitted(bnn.MLP(2, [4], 3), y=LABELS, likelihood="categorical"),
}


@pytest.mark.parametrize("make", ROUND_TRIPS.values(), ids=ROUND_TRIPS.keys())
def test_a_loaded_posterior_predicts_the_same_bits(make, tmp_path):
    posterior = make()
    loaded = load_posterior(save_posterior(posterior, tmp_path / "p"))
    for seed in (None, 8):
        before, after = (p.predict(X, num_draws=5, seed=seed) for p in (posterior, loaded))
        assert torch.equal(before.draw_means, after.draw_means)
        y = LABELS if before.is_classification else before.mean
        assert torch.equal(before.draw_log_prob(y), after.draw_log_prob(y))
    assert loaded.seed == posterior.seed
    assert loaded.info == posterior.info
    assert loaded.bnn.settings == posterior.bnn.settings
    assert torch.equal(loaded.x_scaler.scale, posterior.x_scaler.scale)


def test_loading_leaves_the_random_state_alone(tmp_path):
    save_posterior(fitted(), tmp_path / "p")
    before = torch.random.get_rng_state()
    load_posterior(tmp_path / "p")
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_folder_has_two_files_without_code(tmp_path):
    save_posterior(fitted(prior=MIXTURE), tmp_path / "p")
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["posterior.json", "tensors.safetensors"]
    settings = json.loads((tmp_path / "p" / "posterior.json").read_text())
    assert settings["format_version"] == 1
    assert settings["parts"]["prior"] == {"type": "scale_mixture"} | {
        "pi": 0.5,
        "sigma1": 1.0,
        "sigma2": 0.1,
        "learnable": True,
    }
    assert "bnn.likelihood.scale_unconstrained" in safetensors.torch.load_file(tmp_path / "p" / "tensors.safetensors")


def test_a_net_of_ones_own_comes_back_if_it_is_passed(tmp_path):
    def net():
        return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()

    posterior = fitted(net())
    save_posterior(posterior, tmp_path / "p")
    loaded = load_posterior(tmp_path / "p", net=net())
    assert torch.equal(posterior.predict(X).mean, loaded.predict(X).mean)
    with pytest.raises(InputError, match="network of your own, Sequential: pass it"):
        load_posterior(tmp_path / "p")
    with pytest.raises(InputError, match=r"was saved as float64\(3,\), expected float64\(4,\)"):
        load_posterior(tmp_path / "p", net=nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double())
    with pytest.raises(InputError, match=r"was saved as float64.*, expected float32"):
        load_posterior(tmp_path / "p", net=net().float())
    with pytest.raises(InputError, match="'net.1.bias' is expected but not saved"):
        load_posterior(tmp_path / "p", net=nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double())


def test_a_declared_net_needs_no_other(tmp_path):
    save_posterior(fitted(), tmp_path / "p")
    with pytest.raises(InputError, match="has a declared network, 'mlp': leave out `net`"):
        load_posterior(tmp_path / "p", net=nn.Linear(2, 1))


def test_what_is_not_a_setting_is_not_saved(tmp_path):
    from pyro.infer.autoguide import AutoNormal

    posterior = fitted(guide=lambda model: AutoNormal(model, init_scale=0.1))
    with pytest.raises(InputError, match="guide AutoNormal was not fitted from a setting"):
        save_posterior(posterior, tmp_path / "p")
    assert not list(tmp_path.iterdir())


def rewrite(path, **changes):
    settings = json.loads((path / "posterior.json").read_text()) | changes
    kept = {key: value for key, value in settings.items() if value is not None}
    (path / "posterior.json").write_text(json.dumps(kept))


def flip_a_byte(path):
    file = path / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


DAMAGES = {
    "no tensors": (lambda p: (p / "tensors.safetensors").unlink(), "it has no tensors.safetensors"),
    "no settings": (lambda p: (p / "posterior.json").unlink(), "it has no posterior.json"),
    "not json": (lambda p: (p / "posterior.json").write_text("{"), "posterior.json is damaged"),
    "other json": (lambda p: (p / "posterior.json").write_text("[]"), "posterior.json is damaged"),
    "other version": (lambda p: rewrite(p, format_version=2), "format version 2, this pyrobnn reads 1"),
    "a key less": (lambda p: rewrite(p, seed=None), "lacks 'seed': restore it, or save"),
    "changed tensors": (flip_a_byte, "is not the file that was saved"),
    "other guide": (lambda p: rewrite(p, guide={"type": "map"}), "does not fit the guide: 'loc' is saved but not"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_folder_is_refused(damage, message, tmp_path):
    save_posterior(fitted(), tmp_path / "p")
    damage(tmp_path / "p")
    with pytest.raises(InputError, match=message):
        load_posterior(tmp_path / "p")


def test_an_existing_folder_is_refused_and_kept(tmp_path):
    posterior = fitted()
    save_posterior(posterior, tmp_path / "p")
    with pytest.raises(InputError, match="exists already: choose another folder"):
        save_posterior(posterior, tmp_path / "p")
    load_posterior(tmp_path / "p")


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fail_inside():
        with new_folder(tmp_path / "a" / "b") as folder:
            (folder / "file").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_inside()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be made \("), new_folder(tmp_path / "file" / "p"):
        pass


def test_a_replaced_folder_survives_an_error(tmp_path):
    old = tmp_path / "p"
    old.mkdir()
    (old / "old").write_text("")
    with new_folder(old, replaces=lambda path: True) as folder:
        (folder / "new").write_text("")
    assert [path.name for path in old.iterdir()] == ["new"]

    def replace_by_nothing():
        with new_folder(old, replaces=lambda path: True) as folder:
            folder.rmdir()

    with pytest.raises(OSError, match="No such file"):
        replace_by_nothing()
    assert [path.name for path in old.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["p"]

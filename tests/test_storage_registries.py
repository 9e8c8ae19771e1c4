"""Every registered part and method is saved and comes back: new ones are covered by being registered."""

import pytest
import torch

import pyrobnn as bnn
from pyrobnn import guides, likelihoods, priors
from pyrobnn.inference import method as methods
from pyrobnn.testing.checks import accepted_targets

KNOWN = likelihoods.Gaussian(scale=0.5)
GIVEN = {
    "anchored": priors.Anchored(priors.Normal(0.5)),
    "censored_gaussian": likelihoods.CensoredGaussian(lower=0.0),
    "dense_categorical": likelihoods.DenseCategorical(3),
    "ordinal": likelihoods.Ordinal(3),
    "auto": guides.Auto("AutoLowRankMultivariateNormal", {"rank": 2}),
}
"""Parts that have no defaults."""
SETTINGS = {
    "prior": [],
    "likelihood": [likelihoods.StudentT(likelihoods.noise.HalfNormal(1.0), df="learned")],
    "guide": [
        guides.MatrixNormal("diagonal"),
        guides.Laplace(structure="full"),
        guides.Laplace(structure="full", subnetwork=6),
        guides.Laplace(structure="low_rank", rank=5),
        guides.Laplace(structure="diag", sites="last_layer"),
    ],
}
"""Settings beside the defaults, of other tensors."""
FILLED_BY_METHODS = {"block_gaussian", "empirical"}
METHODS = {  # any other is taken for one around SVI
    "svi": bnn.SVI(steps=2),
    "ivon": bnn.IVON(steps=2),
    "ensemble": bnn.Ensemble(bnn.SVI(guide="map", steps=2), members=2, bootstrap=True, anchored=True),
    "swag": bnn.SWAG(bnn.SVI(guide="map", steps=2), steps=4, every=1, rank=2),
    "nuts": bnn.NUTS(num_draws=3, warmup=2, num_chains=2, max_tree_depth=2),
    "mclmc": bnn.MCLMC(num_draws=3, warmup=40, num_chains=2, thinning=1),
    "mile": bnn.MILE(num_draws=3, warmup=40, num_chains=2, method=bnn.SVI(guide="map", steps=2)),
    "hmc": bnn.HMC(num_draws=3, warmup=2, num_chains=2, step_size=0.01, trajectory_length=0.02),
    "sgld": bnn.SGLD(num_draws=3, burn_in=1, thinning=1, num_chains=2, step_size=1e-5),
    "sghmc": bnn.SGHMC(num_draws=3, burn_in=1, thinning=1, num_chains=2, step_size=1e-5),
    "evidence_framework": bnn.EvidenceFramework(starts=2, rounds=2),
}
PARTS = [
    pytest.param(kind, name, id=f"{kind}-{name}")
    for kind, parts in {"prior": priors.registry, "likelihood": likelihoods.registry, "guide": guides.registry}.items()
    for name in [*parts.names, *SETTINGS[kind]]
    if name not in FILLED_BY_METHODS
]
EVERYWHERE = pytest.mark.filterwarnings("ignore:Laplace:UserWarning", "ignore:.*diverged:UserWarning")


def assert_comes_back(posterior, x, folder):
    loaded = bnn.load(posterior.save(folder))
    before, after = (each.predict(x, num_draws=4) for each in (posterior, loaded))
    assert torch.equal(before.draw_means, after.draw_means)
    assert all(torch.equal(value, loaded.draw(4)[name]) for name, value in posterior.draw(4).items())
    assert loaded.record == posterior.record


@pytest.mark.one_in(6)
@EVERYWHERE
@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_every_registered_part_comes_back(kind, name, tmp_path):
    part = GIVEN.get(name, name) if isinstance(name, str) else name
    likelihood = likelihoods.resolve(part) if kind == "likelihood" else KNOWN
    y, outputs = next(accepted_targets(likelihood))
    x = torch.linspace(-1, 1, len(y))[:, None].repeat(1, 2)
    model = bnn.BNN(bnn.MLP(2, [3], outputs), prior=part if kind == "prior" else "normal", likelihood=likelihood)
    guide = part if kind == "guide" else "mean_field"
    assert_comes_back(model.fit(x, y, guide=guide, steps=2, seed=0, engine="eager", progress=False), x, tmp_path / "p")


@pytest.mark.one_in(3)
@EVERYWHERE
@pytest.mark.parametrize("name", methods.registry.names)
def test_every_registered_method_comes_back(name, tmp_path):
    x = torch.linspace(-1, 1, 8)[:, None].repeat(1, 2)
    data = bnn.Data(x, x.sum(1), standardize=True)
    model = bnn.BNN(bnn.MLP(2, [3], 1), likelihood=KNOWN, prior=bnn.priors.Normal(1.0))
    method = METHODS[name] if name in METHODS else methods.registry.get(name)(method=bnn.SVI(steps=2))
    posterior = bnn.fit(model, data, method, seed=0, engine="eager", progress=False)
    assert_comes_back(posterior, x, tmp_path / "p")

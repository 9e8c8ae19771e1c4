"""NUTS and HMC against exact posteriors, the potential against densities by hand, and what becomes of the draws."""

import dataclasses
import functools
import sys

import numpy as np
import pytest
import torch
from exact import linear_evidence, linear_posterior, with_ones, z_scores
from helpers import Branching
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyrobnn as bnn
from pyrobnn import guides
from pyrobnn._core.errors import InputError
from pyrobnn._torch.pyro import fast_pyro, local_parameters
from pyrobnn.inference.data import make_source
from pyrobnn.inference.mcmc.chains import Target, eager_potential
from pyrobnn.inference.mcmc.mcmc import Leapfrog, PhasePoint, turns_back

NOISE, SCALE, F64 = 0.5, 0.8, torch.float64
G = torch.Generator()
X = torch.randn(20, 2, generator=G.manual_seed(0), dtype=F64) @ torch.tensor([[1.0, 0.6], [0.0, 0.8]], dtype=F64)
Y = X @ torch.tensor([1.0, -0.5], dtype=F64) + 0.3 + NOISE * torch.randn(20, generator=G.manual_seed(1)).to(F64)
INFERRED_NOISE = bnn.likelihoods.Gaussian({"type": "half_normal", "scale": 1.0})
KNOWN = {"likelihood": bnn.likelihoods.Gaussian(NOISE), "prior": bnn.priors.Normal(1.0)}
LARGEST_Z = 4.5
"""Largest of some twenty z-scores that is let pass; the seeds are fixed, so that a test passes always or never."""


def linear_model(likelihood=None, dtype=F64):
    net = nn.Linear(2, 1).to(dtype)
    return bnn.BNN(net, prior=bnn.priors.Normal(SCALE), likelihood=likelihood or bnn.likelihoods.Gaussian(NOISE))


def exact_posterior(noise=NOISE):
    """Mean and covariance of weights and bias."""
    return linear_posterior(with_ones(X), Y, noise, SCALE)


def flat_chains(posterior):
    return posterior.guide.draws.double().numpy()


def run(setting, model=None, data=(X, Y), **arguments):
    given = {"seed": 0, "progress": False, "device": "cpu", "engine": "eager"} | arguments
    return bnn.fit(model or linear_model(), data, setting, **given)


KERNELS = {
    "NUTS": bnn.NUTS(num_draws=250, warmup=100, num_chains=2),
    "NUTS with a full mass matrix": bnn.NUTS(num_draws=200, warmup=100, num_chains=2, full_mass=True),
    "HMC": bnn.HMC(num_draws=300, warmup=100, num_chains=2),
    "HMC with a step size": bnn.HMC(step_size=0.1, trajectory_length=0.3, num_draws=400, warmup=30, num_chains=2),
}


@functools.cache
def recovered(name):
    return run(KERNELS[name], engine="captured")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", KERNELS)
def test_chains_recover_the_exact_posterior_of_a_linear_regression(name):
    """Three means and six covariances; seed 0, standard errors from effective sample sizes."""
    posterior = recovered(name)
    z = z_scores(flat_chains(posterior), *exact_posterior())
    assert np.abs(z).max() < LARGEST_Z, z
    assert posterior.record.engine.used == "captured"


@pytest.mark.slow
def test_nuts_recovers_an_inferred_noise_scale():
    """Moments of noise and weights against one-dimensional quadrature over the noise; seed 0, z-scores by ESS."""
    posterior = run(bnn.NUTS(num_draws=250, warmup=100, num_chains=2), linear_model(INFERRED_NOISE), engine="captured")
    assert list(posterior.guide.chains()) == ["weight", "bias", "likelihood.scale"]
    grid = np.linspace(0.05, 3.0, 3000)
    evidence = [linear_evidence(with_ones(X), Y, noise, SCALE) for noise in grid]
    density = np.exp(evidence + stats.halfnorm.logpdf(grid))
    density /= density.sum()
    moments = [exact_posterior(noise) for noise in grid]
    means = np.stack([np.append(mean, noise) for (mean, _), noise in zip(moments, grid, strict=True)])
    mean = density @ means
    within = np.stack([np.pad(covariance, (0, 1)) for _, covariance in moments])
    spread = within + (means - mean)[:, :, None] * (means - mean)[:, None, :]
    z = z_scores(flat_chains(posterior), mean, (density[:, None, None] * spread).sum(0))
    assert np.abs(z).max() < LARGEST_Z, z


def target(model, x=X, y=Y, init="prior"):
    source = make_source(bnn.Data(x, y), model, None, seed=0)
    with fast_pyro():
        made = Target(model, source, "cpu", 0, init)
        return made, source.scaled(made.bnn, source.data.x, source.data.y)


def test_log_joint_is_the_density_by_hand():
    """Normal weights, half-normal noise s = exp(z) with its Jacobian, and the normal likelihood, in float64."""
    made, data = target(linear_model(INFERRED_NOISE))
    z = torch.tensor([0.4, -0.7, 0.2, -0.3], dtype=F64)
    weights, noise = z[:3].numpy(), np.exp(-0.3)
    expected = stats.norm(0, SCALE).logpdf(weights).sum() + stats.halfnorm.logpdf(noise) - 0.3
    expected += stats.norm(X.numpy() @ weights[:2] + weights[2], noise).logpdf(Y.numpy()).sum()
    with fast_pyro():
        assert float(made.log_joint(z, *data)) == pytest.approx(expected, rel=1e-12)


def test_weights_move_in_units_of_an_inferred_scale_where_data_are_few():
    """w = tau z: with log tau = -0.3, log p is that of z ~ N(0, 1), tau = exp(-0.3) with its Jacobian, and the data."""
    model = bnn.BNN(nn.Linear(2, 1).to(F64), **KNOWN | {"prior": bnn.priors.Hierarchical()})
    made, data = target(model, X[:2], Y[:2])
    assert [site.name for site in made.sites] == ["prior.weight.scale", "weight", "prior.bias.scale", "bias"]
    z = torch.tensor([-0.3, 0.4, -0.7, 0.6, 0.2], dtype=F64)
    scales = np.exp([-0.3, 0.6])
    weights, bias = scales[0] * np.array([0.4, -0.7]), scales[1] * 0.2
    expected = stats.norm.logpdf([0.4, -0.7, 0.2]).sum() + stats.halfcauchy.logpdf(scales).sum() - 0.3 + 0.6
    expected += stats.norm(X[:2].numpy() @ weights + bias, NOISE).logpdf(Y[:2].numpy()).sum()
    with fast_pyro():
        assert float(made.log_joint(z, *data)) == pytest.approx(expected, rel=1e-12)
        values = made.log_joint.constrain(torch.stack([z, -z])[None])
        by_name = dict(zip([site.name for site in made.sites], values[0, 0].split([1, 2, 1, 1]), strict=True))
        shaped = {site.name: by_name[site.name].reshape(site.start.shape) for site in made.sites}
        torch.testing.assert_close(made.log_joint.unconstrain(shaped), z)
    assert values.shape == (1, 2, 5)
    np.testing.assert_allclose(by_name["weight"], weights, rtol=1e-12)
    many, _ = target(model)
    torch.testing.assert_close(many.log_joint.constrain(z)[[1, 2, 4]], z[[1, 2, 4]])  # where data are many, w = z


def test_log_joint_of_mini_batches_is_unbiased():
    """The batches of an epoch, each scaled by N / B, average to the density of all data."""
    made, (x, y) = target(linear_model(INFERRED_NOISE))
    z = torch.linspace(-1, 1, 4, dtype=F64)
    with fast_pyro():
        parts = [made.log_joint(z, x[rows], y[rows]) for rows in torch.randperm(20).split(5)]
        torch.testing.assert_close(torch.stack(parts).mean(), made.log_joint(z, x, y), rtol=1e-12, atol=0)


INFERRED = {"prior": "horseshoe", "likelihood": INFERRED_NOISE}
MODELS = {
    "normal weights": (bnn.MLP(2, [4], 1), {"likelihood": bnn.likelihoods.Gaussian(0.3)}),
    "horseshoe, inferred noise": (bnn.MLP(2, [3], 1, activation="tanh"), INFERRED),
    "mixture prior, classes": (bnn.MLP(2, [3], 3), {"prior": "scale_mixture", "likelihood": "categorical"}),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "dtype"), [*((name, F64) for name in MODELS), ("normal weights", torch.float32)])
def test_captured_potential_equals_the_eager_one(name, dtype):
    """Value and gradient at three points, to 1e-9 in float64 and 1e-4 in float32."""
    net, parts = MODELS[name]
    model = bnn.BNN(net.build().to(dtype), **parts)
    y = torch.arange(20) % 3 if "classes" in name else Y
    made, data = target(model, y=y)
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if dtype == F64 else {"rtol": 1e-4, "atol": 1e-3}
    with fast_pyro():
        like = made.starts(1)[0]
        eager = eager_potential(made.log_joint, data)
        captured = Leapfrog(made.log_joint, data, like)
        for z in (like, 0.1 * like, -like):
            for found, expected in zip(captured.evaluate(z), eager(z), strict=True):
                assert found.dtype == dtype
                torch.testing.assert_close(found, expected, **tolerance)


@pytest.mark.parametrize("dense", [False, True])
def test_leapfrog_steps_are_those_by_hand(dense):
    """Seven steps forwards against the formulas in float64, and seven back to where they began."""
    made, data = target(linear_model(INFERRED_NOISE))
    z = torch.tensor([0.4, -0.7, 0.2, -0.3], dtype=F64)
    factor = torch.tensor([[1.0, 0, 0, 0], [0.3, 0.5, 0, 0], [0, -0.2, 2.0, 0], [0.1, 0, 0, 0.7]], dtype=F64)
    root = factor if dense else factor.diagonal().diag()
    with fast_pyro():
        evaluate = eager_potential(made.log_joint, data)
        leapfrog = Leapfrog(made.log_joint, data, z, num_kept=8, dense=dense)
        leapfrog.root.copy_(root if dense else root.diagonal())
        start = PhasePoint(z, torch.tensor([1.0, -0.5, 0.3, 0.2], dtype=F64), evaluate(z)[1])
        place, momentum, gradient = start
        places, momenta, potentials = [], [], []
        for _ in range(7):
            half = momentum - 0.05 * root.T @ gradient
            place = place + 0.1 * root @ half
            potential, gradient = evaluate(place)
            momentum = half - 0.05 * root.T @ gradient
            for kept, value in zip((places, momenta, potentials), (place, momentum, potential), strict=True):
                kept.append(value)
        end, there = leapfrog.move(start, 0.1, 7)
        for found, kept in zip(leapfrog.path(7), (places, momenta, potentials), strict=True):
            torch.testing.assert_close(found, torch.stack(kept))
        torch.testing.assert_close(tuple(end), (place, momentum, gradient))
        torch.testing.assert_close(there, potential)
        torch.testing.assert_close(tuple(leapfrog.move(end, -0.1, 7)[0]), tuple(start))


def test_a_trajectory_turns_back_where_any_subtree_does():
    """Against Pyro's criterion on every subtree, one by one; random walks of momenta of 4 sizes, seeds 0 to 199."""

    def by_hand(momenta):
        if len(momenta) == 1:
            return False
        way = momenta.sum(0) - (momenta[0] + momenta[-1]) / 2
        halves = momenta.split(len(momenta) // 2)
        return bool(momenta[0] @ way <= 0 or momenta[-1] @ way <= 0) or any(map(by_hand, halves))

    found = []
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        momenta = torch.randn(2 ** (1 + seed % 4), 3, generator=generator, dtype=F64).cumsum(0) + 1
        found.append((turns_back(momenta), by_hand(momenta)))
    assert all(own == other for own, other in found)
    assert 10 < sum(own for own, _ in found) < 190


BRANCHED = {
    "chains run eagerly, since the model branches": bnn.HMC(
        step_size=0.01, trajectory_length=0.02, num_draws=3, warmup=1, num_chains=1
    ),
    "vmap does not take the model": bnn.MCLMC(num_draws=3, warmup=40, num_chains=2, thinning=1),
}


@pytest.mark.parametrize("reason", BRANCHED)
def test_network_that_branches_runs_eagerly_and_says_why(reason):
    model = bnn.BNN(Branching(nn.Linear(2, 1)), **KNOWN)
    with pytest.warns(UserWarning, match=reason):
        posterior = run(BRANCHED[reason], model, (X.float(), Y.float()), engine="captured")
    assert posterior.record.engine.used == "eager"


@pytest.fixture(scope="module")
def posterior():
    setting = bnn.NUTS(num_draws=60, warmup=40, num_chains=3)
    return run(setting, linear_model(INFERRED_NOISE), engine="captured")


SHORT = bnn.NUTS(num_draws=4, warmup=5, num_chains=2)
SAMPLERS = {
    "NUTS": SHORT,
    "MCLMC": bnn.MCLMC(num_draws=4, warmup=40, num_chains=2),
    "MILE": bnn.MILE(num_chains=2, num_draws=4, warmup=40, method=bnn.SVI(guide="map", steps=10, batch_size=5)),
    "SGLD": bnn.SGLD(step_size=1e-4, num_draws=4, burn_in=3, thinning=2, num_chains=2, batch_size=8),
}


def test_chains_do_not_depend_on_their_number():
    few, more = (flat_chains(run(dataclasses.replace(SHORT, num_chains=count))) for count in (2, 3))
    assert np.array_equal(few, more[:2])
    assert not np.array_equal(more[0], more[2])


@pytest.mark.slow
def test_statistics_of_transitions(posterior):
    numbers = posterior.guide.sample_stats()
    assert list(numbers) == ["diverging", "acceptance_rate", "step_size", "n_steps", "energy", "tree_depth"]
    assert all(values.shape == (3, 60) for values in numbers.values())
    assert 0.6 < float(numbers["acceptance_rate"].mean()) < 0.97  # the aim is 0.8
    assert torch.equal(numbers["n_steps"], numbers["n_steps"].round())
    assert float(numbers["n_steps"].min()) >= 1
    assert bool((numbers["step_size"] == numbers["step_size"][:, :1]).all())


def test_divergences_are_counted_and_said():
    setting = bnn.HMC(step_size=20.0, trajectory_length=100.0, num_draws=5, warmup=1, num_chains=2)
    with pytest.warns(UserWarning, match="10 of 10 draws diverged"):
        posterior = run(setting)
    assert posterior.record.num_diverging == 10
    assert bool(posterior.guide.sample_stats()["diverging"].all())


def test_the_remedy_of_divergences_has_an_effect():
    """A step size that is given stays, whatever the target of its acceptance."""
    for setting, expected in ((bnn.NUTS(), "target_accept"), (bnn.HMC(), "target_accept"), (bnn.HMC(0.1), "step_size")):
        assert expected in setting.smaller_steps.settings[0]


def test_starts_from_the_prior_have_its_spread():
    """400 starts of three weights; standard error of a standard deviation sqrt(1 / 2S), bound 4.5 of them."""
    made, _ = target(linear_model())
    with fast_pyro():
        starts = made.starts(400)
    z = (starts.std(0) / SCALE - 1) * (2 * 400) ** 0.5
    assert float(z.abs().max()) < LARGEST_Z


def test_starts_at_the_network():
    """A network given starts every chain near its weights, a declared one draws new weights for each."""
    model = linear_model()
    given, declared = (target(one, init="net")[0] for one in (model, bnn.BNN(bnn.MLP(2, [5], 1), **KNOWN)))
    with fast_pyro():
        near, apart = given.starts(20), declared.starts(2)
    own = torch.cat([value.reshape(-1) for value in model.initial_values.values()])
    assert 0 < float((near - own).abs().max()) < 0.6
    assert float((apart[0] - apart[1]).abs().max()) > 0.6


def holding(posterior, draws):
    """The posterior with draws (chains, draws, P) of a guide of chains."""
    with local_parameters():
        guide = guides.Empirical(*draws.shape[:2]).build(posterior.bnn, *posterior.example)
    guide.hold(draws, guide.statistics)
    parts = {name: getattr(posterior, name) for name in ("example", "x_scaler", "y_scaler")}
    return bnn.Posterior(posterior.bnn, guide, **parts, seed=0)


def stored_draws(num_chains, num_draws, seed=0):
    """A posterior of chains whose draws are given numbers, without running a chain."""
    x, y = X.float(), Y.float()
    posterior = linear_model(dtype=torch.float32).fit(x, y, guide="mean_field", steps=1, seed=0, progress=False)
    return holding(posterior, torch.randn(num_chains, num_draws, 3, generator=G.manual_seed(seed)))


def numbers_of(draws, posterior):
    """The number of each draw among the stored ones, chain after chain."""
    stored = posterior.guide.chains()["bias"].flatten()
    return (draws["bias"].flatten()[:, None] == stored).int().argmax(1)


def mean_over_stored(posterior, x):
    chains = posterior.guide.chains()
    return posterior.predict(x, draws={name: values.flatten(0, 1) for name, values in chains.items()}).mean


def test_a_prediction_of_more_draws_than_are_stored_has_each_once():
    posterior, x = stored_draws(2, 100), X.float()
    prediction = posterior.predict(x, num_draws=500)
    assert prediction.num_draws == 200
    torch.testing.assert_close(prediction.mean, mean_over_stored(posterior, x))
    std = posterior.guide.chains()["weight"].flatten(0, 1).std(0, correction=0)
    table = bnn.weight_table(posterior)
    np.testing.assert_allclose(table["std"][:2], std[0], rtol=1e-5)


@pytest.mark.parametrize(("num", "fewest", "most"), [(1, 0, 1), (60, 0, 1), (150, 0, 1), (200, 1, 1), (500, 2, 3)])
def test_draws_are_spread_evenly_over_the_chains(num, fewest, most):
    posterior = stored_draws(2, 100)
    for seed in range(3):
        numbers = numbers_of(posterior.draw(num, seed=seed), posterior)
        counts = np.bincount(numbers, minlength=200)
        assert (counts.min(), counts.max()) == (fewest, most)
        steps = np.diff(numbers.numpy())
        assert num == 1 or set(steps) <= {200 // num, -(-200 // num)}
        in_chains = counts.reshape(2, 100).sum(1)
        assert abs(in_chains[0] - in_chains[1]) <= 1


def test_a_single_draw_is_any_stored_one_with_the_same_probability():
    posterior = stored_draws(2, 5)
    counts = np.bincount([int(numbers_of(posterior.draw(1, seed=s), posterior)) for s in range(400)], minlength=10)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_a_mixture_of_chains_has_each_stored_draw_once():
    members, x = [stored_draws(2, 50, seed) for seed in (0, 1)], X.float()
    prediction = bnn.Mixture(members).predict(x)
    assert prediction.num_draws == 200
    expected = torch.stack([mean_over_stored(member, x) for member in members]).mean(0)
    torch.testing.assert_close(prediction.mean, expected)


def test_a_mixture_counts_few_stored_draws_as_much_as_another_member():
    chains, x = stored_draws(2, 10), X.float()
    other = chains.bnn.fit(x, Y.float(), guide="map", steps=1, seed=0, progress=False)
    prediction = bnn.Mixture([chains, other]).predict(x, num_draws=400)
    assert prediction.num_draws == 400
    expected = (mean_over_stored(chains, x) + other.predict(x).mean) / 2
    torch.testing.assert_close(prediction.mean, expected)
    tree = bnn.to_datatree(bnn.Mixture([chains, other]), bnn.Data(x, Y.float()), num_draws=80, prior=False)
    counts = np.unique(tree.posterior["bias"].values[0], return_counts=True)[1]
    assert (len(counts), counts.min(), counts.max()) == (20, 2, 2)


def test_tree_has_the_chains_in_order(posterior):
    tree = bnn.to_datatree(posterior, bnn.Data(X, Y))
    assert dict(tree.posterior.sizes)["chain"] == 3
    assert dict(tree.posterior.sizes)["draw"] == 60
    for name, values in posterior.guide.chains().items():
        np.testing.assert_array_equal(tree.posterior[name].values, values.numpy())
    assert tree.sample_stats["diverging"].dtype == bool
    assert tree.sample_stats["n_steps"].dtype.kind == "i"
    assert "log_q" not in tree.sample_stats
    assert tree.attrs["inference_method"] == "NUTS"
    assert tree.attrs["num_draws"] == 180
    assert tree.posterior_predictive["mu"].shape == (3, 60, 20)
    assert "svi" not in tree.children
    fewer = bnn.to_datatree(posterior, bnn.Data(X, Y), num_draws=30)  # the last of each chain
    np.testing.assert_array_equal(fewer.posterior["bias"].values, posterior.guide.chains()["bias"][:, 50:].numpy())
    numbers = posterior.guide.sample_stats()["acceptance_rate"][:, 50:].numpy()
    np.testing.assert_array_equal(fewer.sample_stats["acceptance_rate"].values, numbers)


def shifted(posterior, change):
    """The posterior with the draws of its second chain changed."""
    draws = posterior.guide.draws.clone()
    draws[1] = change(draws[1])
    return holding(posterior, draws)


def test_function_rhat_is_near_one_for_chains_that_agree_and_large_for_a_stuck_one():
    probes = torch.tensor([[-2.0, 0.0], [0.0, 0.0], [1.0, 3.0]])
    good = bnn.function_rhat(recovered("NUTS"), probes)
    assert good.rhat.shape == good.ess_bulk.shape == good.ess_tail.shape == (3,)
    assert good.rhat.max() < 1.02
    assert good.ess_bulk.min() > 50
    stuck = bnn.function_rhat(shifted(recovered("NUTS"), lambda draws: draws + 2.0), probes)
    assert stuck.rhat.max() > 1.5
    assert stuck.ess_bulk.min() < 10
    assert str(stuck).startswith(f"largest R-hat {stuck.rhat.max():.3f}, smallest effective sample size")


def test_function_rhat_does_not_see_symmetries_of_the_weights():
    """Chains in mirror images of one mode, all signs of the hidden units flipped, agree in the function."""
    model = bnn.BNN(bnn.MLP(2, [2], 1, activation="tanh"), **KNOWN)
    made = run(bnn.HMC(step_size=0.05, trajectory_length=0.2, num_draws=30, warmup=1, num_chains=2), model)
    flips = torch.tensor([-1.0] * 8 + [1.0])  # two hidden units: weights 2 x 2, biases 2, outgoing weights 2; bias 1
    mirrored = shifted(made, lambda draws: draws * flips)
    before, after = (bnn.function_rhat(one, X).rhat for one in (made, mirrored))
    np.testing.assert_allclose(after, before, rtol=1e-5)


def refused(call, *, match):
    with pytest.raises(InputError, match=match):
        call()


def test_parameters_without_a_prior_are_refused_by_name():
    learned = {"likelihood": bnn.likelihoods.Gaussian("learned")}
    cases = {
        "NUTS draws from priors, and likelihood.scale would have to be optimised.*half_normal": learned,
        "and bias would have to be optimised without one: give the weights a prior instead of None": {
            "prior": {"weight": bnn.priors.Normal(1.0), "*": None}
        },
        "prior.pi, prior.sigma1, prior.sigma2 .*learnable=False": {"prior": bnn.priors.ScaleMixture(learnable=True)},
    }
    cases = [("NUTS", match, parts) for match, parts in cases.items()]
    for name, match, parts in [*cases, *((name, name, learned) for name in ("MCLMC", "MILE", "SGLD"))]:
        with pytest.raises(InputError, match=match):
            run(SAMPLERS[name], bnn.BNN(nn.Linear(2, 1), **KNOWN | parts))


def test_frozen_parameters_are_no_obstacle(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    net = nn.Linear(2, 1)
    net.bias.requires_grad_(requires_grad=False)
    model = bnn.BNN(net, **KNOWN)
    setting = bnn.HMC(step_size=0.1, trajectory_length=0.3, num_draws=5, warmup=2, num_chains=1)
    posterior = run(setting, model, progress=True)
    assert list(posterior.draw(1)) == ["weight"]
    assert posterior.guide.sample_stats()["n_steps"].tolist() == [[3.0] * 5]
    assert "7/7" in capsys.readouterr().err


def test_requests_that_do_not_fit_are_refused():
    loader = DataLoader(TensorDataset(X, Y), batch_size=5)
    for name in ("NUTS", "MCLMC"):
        refused(lambda name=name: run(SAMPLERS[name], data=loader), match=f"{name} uses all data at every step")
    refused(lambda: run(SHORT, callbacks=[print]), match="`callbacks` see the steps of SVI, and NUTS has none")
    refused(lambda: run(SHORT, validation=(X, Y)), match="`validation` is followed along steps of SVI, not by NUTS")
    refused(lambda: run(bnn.NUTS), match="Expected a method such as SVI")
    refused(lambda: bnn.NUTS(target_accept=1.0), match="NUTS: `target_accept`")


def test_start_without_a_finite_density_is_refused():
    made, _ = target(linear_model())
    with pytest.raises(InputError, match="None of 100 starts with init='prior' has a finite density"):
        made.starts(1, lambda z: (torch.tensor(torch.inf), z))


def test_what_needs_a_density_is_refused(posterior):
    model = linear_model(bnn.likelihoods.Gaussian("learned"))
    no_density = "Stored draws of Markov chains have no density"
    refused(lambda: bnn.elbo_report(posterior, bnn.Data(X, Y)), match=no_density)
    refused(lambda: posterior.map_draws(lambda draws, log_q: log_q, 3), match=no_density)
    settings = {"guide": guides.Empirical(2, 3), "steps": 2, "seed": 0, "progress": False}
    refused(lambda: model.fit(X, Y, **settings), match="Empirical has nothing to train")


def test_comparing_chains_that_are_not_there_is_refused(posterior):
    svi = linear_model().fit(X, Y, steps=2, seed=0, progress=False)
    refused(lambda: bnn.function_rhat(svi, X), match="compares Markov chains, and the guide MeanFieldGuide has none")
    alone = run(dataclasses.replace(SHORT, num_chains=1))
    refused(lambda: bnn.function_rhat(alone, X), match="R-hat needs two or more chains of at least 4 draws, got 1 of 4")
    with pytest.raises(InputError, match="`num_draws` must be at least 3, one for each chain, got 2"):
        bnn.to_datatree(posterior, bnn.Data(X, Y), num_draws=2)


def test_a_learned_noise_is_refused_before_scales_are_measured(monkeypatch):
    monkeypatch.setattr("pyrobnn.inference.scales.measure.tuned_modes", lambda *_, **__: pytest.fail("measured"))
    model = bnn.BNN(bnn.MLP(1, [3], 1), likelihood=bnn.likelihoods.Gaussian("learned"))
    with pytest.raises(bnn.InputError, match="likelihood.scale would have to be optimised without one"):
        bnn.fit(model, bnn.datasets.sinusoid(), bnn.NUTS(), seed=0, progress=False)

"""The score of an example is the same alone as among others, for every score and likelihood."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import AffineTransform, ComposeTransform, ExpTransform, SigmoidTransform
from torch.overrides import TorchFunctionMode

from pyrobnn import InputError, Prediction
from pyrobnn import likelihoods as lik
from pyrobnn._core.random import seeded
from pyrobnn.distributions.latents import concatenate, stack_likelihood
from pyrobnn.metrics import score
from pyrobnn.metrics.crps import ranked_probability
from pyrobnn.metrics.scoring import LEVELS, _statistics

NUM, DRAWS, F64 = 5, 5, torch.float64
SETTINGS = {
    "bernoulli": lik.Bernoulli(),
    "beta": lik.Beta(3.0),
    "categorical": lik.Categorical(),
    "censored_gaussian": lik.CensoredGaussian(lower=-0.5, upper=4.0, scale=0.7),
    "gamma": lik.Gamma(0.3),
    "gaussian": lik.Gaussian(0.7),
    "laplace": lik.Laplace(0.7),
    "log_normal": lik.LogNormal(0.3),
    "mixture_density": lik.MixtureDensity(2),
    "negative_binomial": lik.NegativeBinomial(0.3),
    "ordinal": lik.Ordinal(4),
    "poisson": lik.Poisson(),
    "student_t": lik.StudentT(0.7, df=3.0),
    "zero_inflated": lik.ZeroInflated(0.3),
}
"""Every likelihood."""
REAL = ["beta", "censored_gaussian", "gamma", "gaussian", "laplace", "log_normal", "mixture_density", "student_t"]
COUNTS = ["negative_binomial", "poisson", "zero_inflated"]
CASES = [*((name, 1) for name in SETTINGS), *((name, 2) for name in [*REAL, *COUNTS, "bernoulli"])]


def predict(name, columns):
    """Predictions of rows of very different size, the rows one by one, and targets."""
    generator = torch.Generator().manual_seed(0)
    setting = SETTINGS[name]
    outputs = 4 if name == "categorical" else setting.num_outputs(torch.zeros(1, columns))
    size = torch.linspace(-2.0, 8.0, NUM, dtype=F64)[:, None] if name in COUNTS else 0.0
    spread = torch.logspace(-3, 1, NUM, dtype=F64)[:, None]
    f = size + spread * 0.1 * torch.randn(DRAWS, NUM, outputs, generator=generator, dtype=F64)
    module = setting.build(torch.empty(0, dtype=F64), torch.ones(() if columns == 1 else (columns,)))
    y = module(f).sample()[0]
    alone = [Prediction(module(f[:, row : row + 1])) for row in range(NUM)]
    return Prediction(module(f)), alone, y


def test_no_likelihood_is_left_out():
    """Labels at positions are scored by target, as labels of rows."""
    assert set(SETTINGS) == set(lik.registry.names) - {"dense_categorical"}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "columns"), CASES)
def test_a_row_scores_as_it_does_alone(name, columns):
    together, alone, y = predict(name, columns)
    statistics = _statistics(together, y, LEVELS)
    each = {key: entry.by_example for key, entry in statistics.items() if entry.by_example is not None}
    expected = {"log_likelihood"} | ({"accuracy", "brier"} if together.is_classification else {"crps", "mae"})
    assert expected <= set(each)
    assert ("energy_score" in each) == (columns == 2 and not together.is_classification)
    assert ("interval_score_95" in each) == (name in (*REAL, *COUNTS) and name != "censored_gaussian")
    for row, prediction in enumerate(alone):
        own = score(prediction, y[row : row + 1])
        for key, values in each.items():
            assert own[key].value == pytest.approx(values[row], rel=1e-12, abs=1e-14), (key, row)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def shapes():
    """Distributions of three draws at five inputs, with parts, event dimensions and parameters that broadcast."""
    f, columns, root = normal(3, NUM), normal(3, NUM, 2), normal(3, NUM, 2, 2)
    covariance = root @ root.mT + torch.eye(2, dtype=F64)
    identity = torch.eye(2, dtype=F64)
    return {
        "multivariate normal": dist.MultivariateNormal(columns, covariance),
        "multivariate normal by a root": dist.MultivariateNormal(columns, scale_tril=torch.linalg.cholesky(covariance)),
        "multivariate normal with one precision": dist.MultivariateNormal(columns, precision_matrix=covariance[0, 0]),
        "low rank": dist.LowRankMultivariateNormal(columns, normal(2, 1), torch.ones(2, dtype=F64)),
        "independent": dist.LogNormal(columns, columns.exp()).to_event(1),
        "transformed": dist.TransformedDistribution(
            dist.Normal(0.0 * f, 1.0), [AffineTransform(f, f.exp()), SigmoidTransform()]
        ),
        "transformed by parameters alone": dist.TransformedDistribution(
            dist.Normal(double(0.0), double(1.0)), [ComposeTransform([AffineTransform(f, f.exp()), ExpTransform()])]
        ),
        "transformed columns": dist.TransformedDistribution(
            dist.Normal(columns, 1.0).to_event(1), [AffineTransform(normal(2), double([1.0, -2.0]))]
        ),
        "inverse": dist.TransformedDistribution(
            dist.Uniform(double(0.1), double(0.9)).expand((3, NUM)), [SigmoidTransform().inv, AffineTransform(f, 1.0)]
        ),
        "mixture": dist.MixtureSameFamily(dist.Categorical(logits=columns), dist.Normal(columns, columns.exp())),
        "mixture of columns": dist.MixtureSameFamily(
            dist.Categorical(logits=normal(4)).expand((3, NUM)), dist.MultivariateNormal(normal(3, NUM, 4, 2), identity)
        ),
        "categorical columns": dist.Categorical(logits=normal(3, NUM, 2, 4)).to_event(1),
        "multinomial": dist.Multinomial(7, probs=normal(3, NUM, 3).exp()),
        "zero-inflated": dist.ZeroInflatedNegativeBinomial(f.exp(), probs=f.sigmoid(), gate=f.sigmoid()),
    }


def double(value):
    return torch.tensor(value, dtype=F64)


ROWS = {
    "slice": slice(1, 4),
    "step": slice(None, None, 2),
    "backwards": slice(None, None, -1),
    "backwards by two": slice(3, 0, -2),
    "mask": torch.tensor([True, False, True, True, False]),
    "list": [4, 0, 0],
    "from the end": [-1, -2],
    "numbers": torch.tensor([2, 2, 1, 0, 4, 3, 2], dtype=torch.int32),
    "array": np.array([1, 0]),
}


@pytest.mark.parametrize("name", shapes())
def test_rows_of_every_distribution_can_be_taken(name):
    distribution = shapes()[name]
    with seeded(0):
        y = distribution.sample()
    whole = distribution.log_prob(y)
    with pytest.raises(InputError, match="for a single row i pass"):
        Prediction(distribution)[4]
    for rows in ROWS.values():
        numbers = np.arange(NUM)[rows]
        part = Prediction(distribution)[rows]
        assert part.distribution.batch_shape == (3, len(numbers))
        found = part.distribution.log_prob(y[:, numbers.copy()])
        torch.testing.assert_close(found, whole[:, numbers.copy()], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["multivariate normal", "transformed", "mixture", "low rank"])
def test_parts_of_a_mixture_of_posteriors_join_for_every_distribution(name):
    distribution = shapes()[name]
    joined = concatenate([distribution, distribution])
    assert joined.batch_shape == (6, NUM)
    with seeded(0):
        y = distribution.sample()
    torch.testing.assert_close(joined.log_prob(torch.cat([y, y]))[3:], distribution.log_prob(y))


def test_latents_reach_the_parts_of_a_distribution():
    """A latent rotation of the noise, one for each draw."""

    def likelihood(f):
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        noise = dist.TransformedDistribution(dist.Normal(f, 1.0), [AffineTransform(0.0, scale)])
        return dist.MixtureSameFamily(dist.Categorical(torch.ones(2)).expand(f.shape[:1]), noise)

    f, scales = normal(3, NUM, 2), double([0.5, 1.0, 2.0])
    stacked = stack_likelihood(likelihood, f, {"scale": scales})
    assert stacked.batch_shape == (3, NUM)
    y = normal(3, NUM, seed=2)
    each = dist.Normal(f * scales[:, None, None], scales[:, None, None]).log_prob(y[..., None])
    torch.testing.assert_close(stacked.log_prob(y), each.logsumexp(-1) - math.log(2))


class Forgetful(dist.Normal):
    """It does not keep the argument of its constructor."""

    def __init__(self, outputs):
        super().__init__(outputs, 1.0)


def test_a_distribution_that_forgets_its_arguments_says_so():
    prediction = Prediction(Forgetful(normal(3, NUM)))
    assert not prediction.is_divisible
    assert prediction.log_prob([0.0] * NUM).isfinite().all()
    assert prediction.quantile(0.5).shape == (NUM,)
    assert "crps" not in score(prediction, [0.0, 1.0, 2.0, 3.0, 4.0])
    with pytest.raises(InputError, match=r"Forgetful does not keep its argument 'outputs': store it as an attribute"):
        prediction[:2]


def everything(prediction, y):
    found = {"log_prob": prediction.log_prob(y), "draws": prediction.draw_log_prob(y), "mean": prediction.mean}
    found |= {"epistemic": prediction.epistemic_std, "std": prediction.std, "few": prediction.rests_on_few_draws}
    if prediction.is_classification:
        return found | {"entropy": prediction.entropy, "information": prediction.mutual_information}
    return found | {
        "cdf": prediction.cdf(y),
        "quantile": prediction.quantile([0.01, 0.6]),
        "crps": ranked_probability(prediction, torch.as_tensor(y)),
    }


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "columns"), CASES)
def test_results_do_not_depend_on_how_many_rows_are_computed_at_a_time(name, columns, monkeypatch):
    prediction, _, y = predict(name, columns)
    whole = everything(prediction, y)
    monkeypatch.setattr("pyrobnn.posterior.prediction._AT_ONCE", 1)
    monkeypatch.setattr("pyrobnn.metrics.crps._AT_ONCE", 1)
    for key, values in everything(prediction, y).items():
        torch.testing.assert_close(values, whole[key], rtol=1e-12, atol=1e-15, msg=key)


class Largest(TorchFunctionMode):
    """It sees how large the tensors are that functions of torch make."""

    def __init__(self):
        self.size = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        made = isinstance(found, torch.Tensor) and found._base is None
        self.size = max(self.size, found.untyped_storage().nbytes() // 8 if made else 0)
        return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "poisson", "categorical", "bernoulli"])
def test_no_tensor_of_all_draws_and_rows_is_made(name):
    num = 30_000
    f = 0.3 * normal(100, num, 4 if name == "categorical" else 2 if name == "bernoulli" else 1)
    module = SETTINGS[name].build(torch.empty(0, dtype=F64), torch.ones((2,) if name == "bernoulli" else ()))
    prediction, y = Prediction(module(f)), torch.zeros((num, 2) if name == "bernoulli" else num)
    with Largest() as largest:
        prediction.log_prob(y)
        assert prediction.std.shape[0] == num
        if prediction.is_classification:
            assert prediction.mutual_information.shape == (num,)
        else:
            prediction.cdf(y)
            prediction.quantile(0.9)
    assert 0 < largest.size <= 2**20 < f.numel()

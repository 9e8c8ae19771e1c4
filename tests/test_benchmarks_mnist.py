"""The digits suites: what they ask for, what is measured, and what is written of it."""

import copy
import json

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from helpers import run, typed

import pyrobnn as bnn
from benchmarks.tasks import mnist
from benchmarks.tasks.mnist_scores import error_rate, evaluate, evaluate_pruned, load_images, rotated

needs_images = pytest.mark.needs_data("mnist", "fashion-mnist-test")
FIT = {"type": "svi", "steps": 40, "batch_size": 100, "lr": 0.01}
SUITE = {
    "units": [8],
    "num_draws": 5,
    "num_train": 300,
    "num_held_out": 80,
    "rotations": [0, 90],
    "num_rotated": 20,
    "engine": "eager",
    "base": {"fit": FIT},
    "entries": [
        {
            "name": "SGD",
            "guide": {"type": "map"},
            "laplace": [{"name": "Kronecker", "structure": "kron", "sites": "last_layer", "tuned": True}],
        },
        {
            "name": "Bayes by Backprop",
            "prior": {"type": "scale_mixture"},
            "guide": {"type": "mean_field"},
            "grid": {"guide.init_rho": [2.0, -4.0]},
            "tuning": {"fit.steps": 30},
            "pruned": [0.5, 0.98],
        },
    ],
}


@pytest.fixture(scope="module")
def rows():
    return [row for settings in mnist.jobs(SUITE) for row in run(mnist, settings)]


def test_a_job_for_each_width_entry_and_seed():
    suite = copy.deepcopy(SUITE) | {"units": [4, 8], "seeds": [0, 1]}
    jobs = mnist.jobs(suite)
    assert [(job["units"], job["entry"], job["seed"]) for job in jobs] == [
        (units, entry, seed) for units in (4, 8) for entry in ("SGD", "Bayes by Backprop") for seed in (0, 1)
    ]
    assert [candidate["guide"]["init_rho"] for candidate in jobs[2]["candidates"]] == [2.0, -4.0]
    assert json.loads(json.dumps(jobs)) == jobs
    assert mnist.datasets(typed(mnist, jobs[0])) == ("mnist", "fashion-mnist-test")


WRONG = {
    "entry": ({"entries": [{"name": "a", "rate": 1}]}, r"Unknown key `rate` in entry a\. Known: "),
    "laplace": ({"entries": [{"name": "a", "laplace": [{"rank": 1}]}]}, "Unknown key `rank` in laplace of a"),
    "tuning": ({"entries": [{"name": "a", "tuning": {"fit.stops": 1}}]}, "stops"),
    "curvature": ({"entries": [{"name": "a", "laplace": [{"name": "b", "structure": "ful"}]}]}, "Laplace: `structure`"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_known_is_refused(name):
    change, message = WRONG[name]
    with pytest.raises(bnn.InputError, match=message):
        mnist.jobs(SUITE | change)


def test_turned_images_are_exact_at_right_angles():
    images = torch.rand(3, 784)
    square = images.view(3, 28, 28)
    assert torch.equal(rotated(images, 0), images)
    torch.testing.assert_close(rotated(images, 90), torch.rot90(square, 1, (1, 2)).reshape(3, -1), atol=1e-5, rtol=0)
    torch.testing.assert_close(rotated(images, 180), square.flip(1, 2).reshape(3, -1), atol=1e-5, rtol=0)
    tilted = rotated(images, 30)
    assert tilted.shape == images.shape
    assert float((tilted - images).abs().max()) > 0.1


@needs_images
def test_images_are_those_of_the_published_split():
    images = load_images(300, 80)
    assert [len(part) for part in (images.train, images.validation, images.test, images.clothes)] == [300, 80, 80, 80]
    assert images.train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert images.validation.y[:10].tolist() == [3, 8, 6, 9, 6, 4, 5, 3, 8, 4]
    assert images.test.y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    for x in (images.train.x, images.validation.x, images.test.x, images.clothes):
        assert float(x.max()) == pytest.approx(255 / 126)
        np.testing.assert_allclose(126 * x, (126 * x).round(), atol=1e-4)


@needs_images
def test_measures_of_predictions_that_are_known():
    """Digits are all told right and for certain; what is turned or is no digit gets ten equal classes."""
    images = load_images(300, 80)
    known = {tuple(x.tolist()): y for x, y in zip(images.test.x, images.test.y, strict=True)}

    def predict(x):
        labels = [known.get(tuple(row.tolist())) for row in x]
        logits = torch.stack([torch.zeros(10) if y is None else 200.0 * torch.eye(10)[y] for y in labels])
        return bnn.Prediction(dist.Categorical(logits=logits.expand(2, -1, -1)))

    found = evaluate(predict, images, [0, 180], 30)
    assert found["test_error"] == 0
    assert found["nll"] == pytest.approx(0, abs=1e-6)
    assert found["auroc_entropy"] == 1
    assert found["auroc_information"] == 0.5
    assert found["rotation_accuracy"][0] == 100
    assert found["rotation_accuracy_stderr"][0] == 0
    np.testing.assert_allclose(found["rotation_entropy"], [0, np.log(10)], atol=1e-5)
    np.testing.assert_allclose(found["rotation_information"], 0, atol=1e-5)


@needs_images
def test_pruning_takes_the_weights_of_least_signal():
    images = load_images(300, 80)
    model = bnn.BNN(bnn.MLP(784, [4], 10), likelihood="categorical", prior=bnn.priors.Normal(1.0))
    posterior = bnn.fit(model, images.train, bnn.SVI(steps=5), seed=0, engine="eager", progress=False)
    num = posterior.bnn.num_weights
    found = evaluate_pruned(posterior, images.test, [0.5, 1 - 0.1 / num, 0.0], 3, 0)
    always_the_first = 100 * float((images.test.y != 0).double().mean())
    assert found["pruned_error"][1] == pytest.approx(always_the_first)
    assert found["pruned_weights_left"] == [num - round(num / 2), 0, num]
    assert [spread > 0 for spread in found["pruned_cost_stderr"]] == [True, True, False]
    whole = posterior.predict(images.test.x, num_draws=3, seed=0)
    assert found["pruned_error"][2] == error_rate(whole, images.test.y)
    half = bnn.prune(posterior, 0.5).predict(images.test.x, num_draws=3, seed=0)
    assert found["pruned_error"][0] == error_rate(half, images.test.y)
    assert evaluate_pruned(posterior, images.test, [], 3, 0) == {}


@pytest.mark.slow
@needs_images
def test_the_same_settings_give_the_same_row_also_from_a_kept_fit(rows, tmp_path):
    settings = mnist.jobs(SUITE)[1]
    first, again = run(mnist, settings, tmp_path)[0], run(mnist, settings, tmp_path)[0]
    assert _without_seconds(first) == _without_seconds(again) == _without_seconds(rows[-1])
    assert first["tuning_seconds"] > 0
    assert again["tuning_seconds"] is again["seconds"] is None
    assert len(list(tmp_path.iterdir())) == 3, "two candidates for tuning, and the fit"


def _without_seconds(row):
    return {key: value for key, value in row.items() if not key.endswith("seconds")}

"""The digits suites: what they ask for, what is measured, and what is written of it."""

import copy
import json
import tomllib
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from helpers import run, typed

import pyrobnn as bnn
from benchmarks.report.mnist import _seconds
from benchmarks.suite import make_job
from benchmarks.tasks import mnist
from benchmarks.tasks.mnist_scores import error_rate, evaluate, evaluate_pruned, load_images, rotated

SUITES = Path(__file__).parent.parent / "benchmarks" / "suites"
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
PUBLISHED = [
    {"source": "Blundell et al. 2015 (ICML), Table 1", "method": "SGD, 2x400 units", "value": 1.83},
    {"source": "Blundell et al. 2015 (ICML), Table 1", "method": "SGD, dropconnect, 800 units", "value": 1.2},
    {
        "source": "Blundell et al. 2015 (ICML), Table 2",
        "method": "BBB 2x1200 units, 0% of weights removed by |mu|/sigma, 2.4m left",
        "value": 1.24,
    },
    {
        "source": "Blundell et al. 2015 (ICML), Table 2",
        "method": "BBB 2x1200 units, 98% of weights removed by |mu|/sigma, 48k left",
        "value": 1.39,
    },
]


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
    "suite": ({"epochs": 3}, r"Unknown key `epochs` in the suite\. Known: base, device, engine"),
    "no entries": ({"entries": []}, "needs \\[\\[entries\\]\\]"),
    "entry": ({"entries": [{"name": "a", "rate": 1}]}, r"Unknown key `rate` in entry a\. Known: "),
    "laplace": ({"entries": [{"name": "a", "laplace": [{"rank": 1}]}]}, "Unknown key `rank` in laplace of a"),
    "grid": (
        {"entries": [{"name": "a", "grid": {"net.hidden": [1]}}]},
        "Unknown key `net` in what the grid of a",
    ),
    "engine": ({"engine": "auto"}, "must be captured or eager, .* got 'auto'"),
    "tuning": ({"entries": [{"name": "a", "tuning": {"fit.stops": 1}}]}, "stops"),
    "images": ({"num_train": 50_001}, "`num_train` in the suite: .* less than or equal to 50000, got 50001"),
    "device": ({"device": "gpu"}, "`device` in the suite: String should match pattern .*, got 'gpu'"),
    "seeds": ({"seeds": 0}, "`seeds` in the suite: Input should be a valid list, got 0"),
    "share": ({"entries": [{"name": "a", "pruned": [0.5, 2]}]}, "`pruned.1` in entry a: .* equal to 1, got 2"),
    "base": ({"base": {"fits": FIT}}, r"Unknown key `fits` in \[base\]. Known: fit, guide, prior"),
    "names": ({"entries": [{"name": "a"}, {"name": "b", "laplace": [{"name": "a"}]}]}, "Two entries are called 'a'"),
    "no name": ({"entries": [{"name": "a", "laplace": [{"tuned": True}]}]}, "`name` in laplace of a: Field required"),
    "curvature": ({"entries": [{"name": "a", "laplace": [{"name": "b", "structure": "ful"}]}]}, "Laplace: `structure`"),
    "seed of the fit": ({"entries": [{"name": "a", "fit": {"seed": 1}}]}, "`fit.seed` in entry a has no effect"),
    "engine of the fit": (
        {"entries": [{"name": "a", "tuning": {"fit.engine": "eager"}}]},
        "`fit.engine` in entry a has no effect .*the suite has an `engine`.*: leave it out",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_known_is_refused(name):
    change, message = WRONG[name]
    with pytest.raises(bnn.InputError, match=message):
        mnist.jobs(SUITE | change)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "mnist-full"])
def test_suites_have_a_genuine_elbo(name):
    tables = tomllib.loads((SUITES / f"{name}.toml").read_text(encoding="utf-8"))
    own = {key: value for key, value in tables.items() if key not in ("task", "title", "threads")}
    jobs = mnist.jobs(own)
    assert {job["entry"] for job in jobs} >= {
        "SGD",
        "SGD, dropout",
        "Bayes by Backprop, Gaussian prior",
        "Bayes by Backprop, scale-mixture prior",
    }
    for candidate in (candidate for job in jobs for candidate in job["candidates"]):
        fit = candidate["fit"]
        assert fit.get("temperature", 1.0) == 1.0
        assert fit.get("kl_warmup", 0) < fit["steps"]
        assert fit["batch_size"] == 128


@needs_images
def test_jobs_of_several_widths_and_seeds_have_labels_of_their_own():
    jobs = [make_job("mnist", 1, one) for one in mnist.jobs(SUITE | {"units": [4, 8], "seeds": [0, 1]})]
    assert len({job.label for job in jobs}) == len(jobs) == 8
    assert jobs[0].label == f"{SUITE['entries'][0]['name']} on mnist, 4 units, seed 0"


@pytest.mark.slow
@needs_images
def test_a_kept_fit_goes_on_and_one_of_other_code_begins_anew(tmp_path, monkeypatch):
    settings = mnist.jobs(SUITE | {"entries": [SUITE["entries"][0]]})[0]
    first, again = run(mnist, settings, tmp_path)[0], run(mnist, settings, tmp_path)[0]
    assert first["seconds"] > 0
    assert again["seconds"] is None
    assert {**first, "seconds": 0, "tuning_seconds": 0} == {**again, "seconds": 0, "tuning_seconds": 0}
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(mnist, "code_digest", lambda task: "other")
    assert run(mnist, settings, tmp_path)[0]["seconds"] > 0
    assert len(list(tmp_path.iterdir())) == 2


def test_seconds_that_are_not_known_are_left_open():
    assert _seconds([{"seconds": None}]) == ""
    assert _seconds([{"seconds": 3.0, "tuning_seconds": 1.0}, {"seconds": 2.0}]) == "3"


def test_fits_are_on_the_device_of_the_suite(monkeypatch):
    asked = []

    def fit(*args, device, **settings):
        asked.append(device)
        raise InterruptedError

    monkeypatch.setattr(bnn, "fit", fit)
    monkeypatch.setattr(bnn.guides.Laplace, "around", fit)
    mode, images = Mock(), Mock()
    for suite in (SUITE, SUITE | {"device": "cuda:7"}):
        settings = typed(mnist, mnist.jobs(suite)[0])
        with pytest.raises(InterruptedError):
            mnist._fit(None, settings, settings.candidates[0], bnn.Data(torch.rand(4, 784), torch.arange(4)))
        with pytest.raises(InterruptedError):
            mnist._laplace_row(settings, {"name": "a"}, mode, images)
    assert asked == ["cpu", "cpu", "cuda:7", "cuda:7"]
    assert "device" not in mnist.jobs(SUITE)[0]


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


def test_error_rate_in_percent():
    labels = torch.tensor([0, 1, 2, 3])
    certain = bnn.Prediction(dist.Categorical(logits=50.0 * torch.eye(4)[None, [0, 1, 3, 3]]))
    assert error_rate(certain, labels) == 25.0


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


@needs_images
def test_rows_tell_everything(rows):
    assert [row["entry"] for row in rows] == ["SGD", "Kronecker", "Bayes by Backprop"]
    point, laplace, mixture = rows
    for row in rows:
        assert {"data", "seed", "units", "seconds", "test_error", "nll", "ece", "auroc_entropy"} <= set(row)
        assert len(row["rotation_accuracy"]) == len(row["rotation_entropy"]) == 2
        json.dumps(row, allow_nan=False)
    assert point["auroc_information"] is None
    assert point["kl"] is None
    assert laplace["auroc_information"] is not None
    assert laplace["nll"] != point["nll"]
    assert mixture["kl"] > 0 > mixture["log_likelihood"]
    assert len(mixture["pruned_error"]) == 2
    assert mixture["candidate_errors"][1] < mixture["candidate_errors"][0]
    assert json.loads(mixture["chosen"]) == {"guide.init_rho": -4.0}
    assert mixture["epochs"] == pytest.approx(40 / 3)


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


@needs_images
def test_tables_and_pictures(rows, tmp_path):
    errors, scores, pruning, budget = mnist.tables(rows, PUBLISHED)
    for table in (errors, scores, pruning, budget):
        assert all(len(line) == len(table.header) for line in table.rows)
    assert errors.header == ["method", "8 units", "400 units", "800 units", "1200 units"]
    assert errors.rows[-1] == ["published: SGD", "", "1.83", "", ""]
    assert [line[0] for line in errors.rows[:3]] == ["SGD", "Kronecker", "Bayes by Backprop"]
    assert errors.rows[2][1].startswith(f"{rows[2]['test_error']:.2f} ± ")
    assert scores.rows[0][-1] == ""
    assert pruning.rows[-1] == ["published: Bayes by Backprop", "1200", "1.24", "", "1.39 (+0.15)"]
    assert budget.rows[2][4] == "guide.init_rho=-4.0"
    names = []
    for figure in mnist.figures(rows):
        figure.figure.savefig(tmp_path / f"{figure.name}.png")
        names.append(figure.name)
    assert names == ["rotation", "pruning"]
    assert len(mnist.tables(rows[:2], [])) == 3
    assert len(mnist.figures(rows[:2])) == 1

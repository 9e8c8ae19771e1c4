"""Active learning: which examples to have labelled next, by the posterior's uncertainty or at random.

A pool of examples whose labels are hidden; a few are labelled at first, and in each round those of which the network
fitted to the labelled ones knows least: by the mutual information of label and weights (BALD; Houlsby et al. 2011, Gal,
Islam & Ghahramani 2017), or by the standard deviation of the mean function for real targets. Networks are fitted anew
in each round, both acquisitions and all seeds side by side in one captured graph.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field
from torch import Tensor

import pyrobnn as bnn
from benchmarks.report.active import figures, tables
from benchmarks.tasks import schema
from benchmarks.tasks.growing import Fitted, Growing, learners

__all__ = ["datasets", "figures", "jobs", "run", "tables"]

datasets = schema.datasets

ACQUISITIONS = ("uncertainty", "random")


class Learner(schema.Method, total=False):
    """An entry; `tuned` for the scale of the prior chosen by the marginal likelihood."""

    tuned: bool


class SuiteSettings(BaseModel):
    """What a suite may set, with defaults."""

    data: list[str] = ["digits"]
    seeds: schema.Count = 5
    hidden: list[schema.Count] = [50]
    first: schema.Count = 20
    acquired: schema.Count = 10
    rounds: schema.Count = 12
    test: Annotated[float, Field(gt=0, lt=1)] = 0.3
    steps: schema.Count = 1000
    lr: schema.Positive = 0.01
    batch_size: schema.Count = 64
    draws: schema.Count = 100
    engine: Any = "captured"
    entries: schema.Tables = []


class Settings(SuiteSettings):
    """The settings of a job: those of its suite, its data and its entry."""

    data: str
    entry: str
    guide: Any
    prior: Any
    members: int
    tuned: bool


def jobs(suite: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a job for each data set and method; both acquisitions are in it."""
    shared = schema.check_suite(suite, SuiteSettings)
    entries = learners(suite, Learner, tuned=False)
    for name in shared["data"]:
        _check_pool(name, Settings.model_construct(**shared))
    return [{**shared, "data": name, **learner} for name in shared["data"] for learner in entries]


def _check_pool(name: str, settings: Settings) -> None:
    rows = schema.data_info(name).rows
    pool = rows - max(1, round(settings.test * rows))
    labelled = _most_labels(settings)
    if labelled >= pool:
        raise bnn.InputError(
            f"The pool of {name} has {pool} rows, and {labelled} are labelled in the end: ask for fewer `rounds`."
        )


def _most_labels(settings: Settings) -> int:
    """Return the number of examples that are labelled in the end."""
    return settings.first + settings.acquired * settings.rounds


def pool_and_test(settings: Settings, seed: int) -> tuple[bnn.Data, bnn.Data]:
    """Return the pool and the test part of a seed, in standard units of the pool (labels stay)."""
    pool, test = bnn.datasets.load(settings.data).data.split(settings.test, seed=seed)
    x = bnn.Data(pool.x, pool.y, standardize=True).x_scaler
    is_real = pool.y.is_floating_point()
    mean, std = (pool.y.mean(), pool.y.std()) if is_real else (0, 1)
    return tuple(bnn.Data(x.transform(part.x), (part.y - mean) / std if is_real else part.y) for part in (pool, test))


class Lane:
    """A seed with an acquisition: the labelled rows of its pool, and the scores after each round."""

    def __init__(self, settings: Settings, seed: int, acquisition: str) -> None:
        self.settings, self.seed, self.acquisition = settings, seed, acquisition
        self.pool, self.test = pool_and_test(settings, seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.labelled = torch.randperm(len(self.pool), generator=self.generator)[: settings.first]
        self.scores: list[tuple[float, float]] = []

    def known(self) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the labelled rows."""
        return self.pool.x[self.labelled], self.pool.y[self.labelled]

    def acquire(self, posterior: Fitted) -> None:
        """Score a posterior, and have the next examples labelled."""
        draws = schema.num_draws(self.settings)
        self.scores.append(_scores(posterior, self.test, draws, seed=self.seed))
        is_open = torch.ones(len(self.pool), dtype=torch.bool)
        is_open[self.labelled] = False
        rows = is_open.nonzero()[:, 0]
        if self.acquisition == "random":
            order = torch.randperm(len(rows), generator=self.generator)
        else:
            order = _doubt(posterior, self.pool.x[rows], draws, seed=self.seed).argsort(descending=True, stable=True)
        self.labelled = torch.cat([self.labelled, rows[order[: self.settings.acquired]]])

    def row(self) -> dict[str, Any]:
        """Return the learning curve, and the scores of its last round."""
        log_scores, errors = zip(*self.scores, strict=True)
        sizes = [self.settings.first + number * self.settings.acquired for number in range(len(errors))]
        return {
            "entry": self.settings.entry,
            "data": self.settings.data,
            "seed": self.seed,
            "acquisition": self.acquisition,
            "log_score": log_scores[-1],
            "error": errors[-1],
            "mean_error": sum(errors) / len(errors),
            "labels": sizes,
            "log_scores": list(log_scores),
            "errors": list(errors),
        }


def run(settings: Settings, keep: Path | None = None) -> list[dict[str, Any]]:
    """Label round by round; a row for each seed and acquisition, with its learning curve."""
    started = time.perf_counter()
    lanes = [Lane(settings, seed, how) for how in ACQUISITIONS for seed in range(settings.seeds)]
    networks = _networks(settings, lanes[0].pool)
    for number in range(settings.rounds + 1):
        posteriors = networks.fit([lane.known() for lane in lanes], seed=number)
        for lane, posterior in zip(lanes, posteriors, strict=True):
            lane.acquire(posterior)
    seconds = (time.perf_counter() - started) / len(lanes)
    return [lane.row() | {"seconds": seconds} for lane in lanes]


def _networks(settings: Settings, pool: bnn.Data) -> Growing:
    is_real = pool.y.is_floating_point()
    outputs = 1 if is_real else int(pool.y.max()) + 1
    likelihood = bnn.likelihoods.Gaussian(scale="learned") if is_real else bnn.likelihoods.Categorical()
    model = schema.model_of(settings, pool.x.shape[1], outputs, likelihood)
    return Growing.of(settings, model, size=_most_labels(settings), tuned=settings.tuned)


def _doubt(posterior: Fitted, x: Tensor, draws: int, seed: int) -> Tensor:
    """Return how much the posterior could still learn from the label of each input, (N,)."""
    prediction = posterior.predict(x, num_draws=draws, seed=seed)
    return prediction.mutual_information if prediction.is_classification else prediction.epistemic_std


def _scores(posterior: Fitted, test: bnn.Data, draws: int, seed: int) -> tuple[float, float]:
    """Return the log score and the error: share of wrong labels, or root mean squared error in standard units."""
    prediction = posterior.predict(test.x, num_draws=draws, seed=seed)
    log_score = float(prediction.log_prob(test.y).mean())
    if prediction.is_classification:
        return log_score, float((prediction.label != test.y).double().mean())
    return log_score, float((prediction.mean - test.y).square().mean().sqrt())

"""The mushroom bandit of Blundell et al. (2015, sections 5.3 and 6.3): to eat or not to eat, with regret.

An agent is offered mushrooms, one after the other. A mushroom that is eaten is worth 5 if it is edible, and -35 or 5
with equal odds if it is poisonous; a mushroom that is left is worth 0. The network maps features and action to the
expected reward. Agents learn after blocks of mushrooms that grow, from where they stopped, from the last interactions.
All seeds of an agent (and all members of an ensemble) learn side by side in one captured graph; the agents of one seed
meet the same mushrooms with the same luck.
"""

import dataclasses
import itertools
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor

import pyrobnn as bnn
from benchmarks.report.bandit import figures, tables
from benchmarks.tasks import schema

__all__ = ["datasets", "figures", "jobs", "run", "tables"]

datasets = schema.datasets

EDIBLE, POISONOUS = 5.0, -15.0
"""Expected reward of eating."""
UNIT = 10.0
"""Rewards in a unit of the network's output."""
POINTS = 100


class Agent(schema.Method, total=False):
    """An entry, with the share of mushrooms for which it tosses a coin."""

    epsilon: schema.Share


class SuiteSettings(BaseModel):
    """What a suite may set, with defaults."""

    mushrooms: schema.Count = 50_000
    seeds: schema.Count = 5
    hidden: list[schema.Count] = [100, 100]
    memory: schema.Count = 4096
    batch_size: schema.Count = 64
    first_block: schema.Count = 20
    last_block: schema.Count = 1000
    growth: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.05
    steps: schema.Count = 300
    lr: schema.Positive = 0.003
    noise: schema.Positive = 2.0
    averaged: schema.Count = 2
    draws: schema.Count = 32
    engine: Any = "captured"
    entries: schema.Tables = []


class Settings(SuiteSettings):
    """The settings of a job: those of its suite, its data and its entry."""

    data: str
    entry: str
    guide: Any
    prior: Any
    members: int
    epsilon: float


def jobs(suite: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a job for each agent."""
    shared = schema.check_suite(suite, SuiteSettings)
    return [{"data": "mushroom", **shared, **agent} for agent in schema.entry_settings(suite, Agent, epsilon=0.0)]


@dataclasses.dataclass
class World:
    """The mushrooms that are offered to a seed.

    Attributes:
        x: features of the mushrooms offered, in order, (N, features).
        poisonous: which of them are, (N,).
        ill: which of them would be worth -35 when eaten, (N,).
    """

    x: Tensor
    poisonous: Tensor
    ill: Tensor

    def rewards(self, rows: slice, eaten: Tensor) -> Tensor:
        """Return the reward of each choice, (rows,)."""
        return torch.where(self.ill[rows], -35.0, 5.0) * eaten

    def regrets(self, eaten: Tensor) -> Tensor:
        """Return the expected loss of each choice against the oracle, (N,): 5 an edible left, 15 a poisonous eaten."""
        expected = torch.where(self.poisonous, POISONOUS, EDIBLE)
        return expected.clamp_min(0) - expected * eaten


def make_world(data: bnn.Data, num: int, seed: int) -> World:
    """Draw mushrooms with replacement, and their luck."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(data), (num,), generator=generator)
    poisonous = data.y[rows] == 1
    return World(data.x[rows].float(), poisonous, poisonous & (torch.rand(num, generator=generator) < 0.5))


def with_action(x: Tensor, eaten: Tensor) -> Tensor:
    """Return inputs of the network: features, and the action as two columns of 0 and 1, (N, features + 2)."""
    return torch.cat([x, torch.stack([eaten, 1 - eaten], 1).to(x)], 1)


def blocks(settings: Settings) -> list[slice]:
    """Return the rows of each block; its length is a share of the mushrooms before it, between two bounds."""
    starts = [0]
    while starts[-1] < settings.mushrooms:
        share = round(settings.growth * starts[-1])
        length = min(max(share, settings.first_block), settings.last_block)
        starts.append(min(starts[-1] + length, settings.mushrooms))
    return [slice(first, last) for first, last in itertools.pairwise(starts)]


@dataclasses.dataclass
class From:
    """A guide that starts at given parameters, or as usual without them."""

    guide: Any
    state: dict[str, Tensor] | None

    def build(self, model: Any, *args: Any) -> Any:
        """Return the guide of the model."""
        built = self.guide.build(model, *args)
        if self.state is not None:
            built.load_state_dict(self.state)
        return built


@dataclasses.dataclass
class Growing:
    """Fits of a model to data sets of the same size, which grows from call to call; each starts where the last stopped.

    The graph is made for `size` examples, so smaller data are repeated; the weight of the KL grows as much, which
    keeps the ELBO of the data themselves, times a constant. Where the last repeat is incomplete, chance decides
    which examples are in it.

    Attributes:
        model: the model.
        guide: what to train.
        size: number of examples of the largest data.
        members: fits for each data set; several are an ensemble.
        settings: of `SVI`, beside the guide and the temperature.
        engine: of the fits.
    """

    model: bnn.BNN
    guide: Any
    size: int
    settings: dict[str, Any]
    members: int = 1
    engine: str = "captured"
    _states: list[dict[str, Tensor] | None] = dataclasses.field(default_factory=list, init=False)

    def fit(self, parts: list[tuple[Tensor, Tensor]], seed: int) -> list[schema.Fitted]:
        """Return the posterior of each data set (x, y), all of the same length."""
        num = len(parts[0][1])
        repeat = repeated(num, self.size, seed)
        data = [(x[repeat], y[repeat]) for x, y in parts for _ in range(self.members)]
        states = self._states or [None] * len(data)
        methods = [
            bnn.SVI(guide=From(self.guide, state), temperature=self.size / num, **self.settings) for state in states
        ]
        arguments: dict[str, Any] = {"seed": seed, "device": "cpu", "engine": self.engine, "progress": False}
        fits = bnn.fit_replicates(self.model, data, methods, **arguments)
        self._states = [fit.guide.state_dict() for fit in fits]
        return schema.mixed(fits, self.members)


def repeated(num: int, size: int, seed: int) -> Tensor:
    """Return indices (size,) in which each of `num` comes equally often, but for a surplus drawn at random."""
    surplus = torch.randperm(num, generator=torch.Generator().manual_seed(seed))[: size % num]
    return torch.cat([torch.arange(num).repeat(size // num), surplus])


def learner(settings: Settings, num_inputs: int) -> Growing:
    """Return the networks of all seeds of an agent, which learn on from where they stopped."""
    likelihood = bnn.likelihoods.Gaussian(scale=settings.noise / UNIT)
    model = schema.model_of(settings, num_inputs, 1, likelihood)
    guide = bnn.guides.resolve(settings.guide)
    return Growing(
        model,
        guide,
        settings.memory,
        schema.svi_settings(settings),
        members=settings.members,
        engine=settings.engine,
    )


class Chooser:
    """The choices of a seed of an agent."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings = settings
        self.coin = torch.Generator().manual_seed(1000 + seed)
        self.draws = schema.num_draws(settings)

    def choose(self, posterior: schema.Fitted | None, x: Tensor, seed: int) -> Tensor:
        """Return 1 for the mushrooms (N, features) to eat, 0 for others; at random where nothing was learned yet.

        Each mushroom is judged by the mean of `averaged` draws, chosen at random for it from the draws of the block.
        """
        tossed = torch.randint(2, (len(x),), generator=self.coin)
        if posterior is None:
            return tossed
        ones = torch.ones(len(x))
        both = torch.cat([with_action(x, ones), with_action(x, 1 - ones)])
        means = posterior.predict(both, num_draws=self.draws, seed=seed).draw_means
        better = means[:, : len(x)] - means[:, len(x) :]
        judges = torch.rand(len(x), self.draws, generator=self.coin).argsort(1)[:, : self.settings.averaged]
        greedy = (better.T.gather(1, judges).mean(1) > 0).long()
        random = torch.rand(len(x), generator=self.coin) < self.settings.epsilon
        return torch.where(random, tossed, greedy)


def run(settings: Settings, keep: Path | None = None) -> list[dict[str, Any]]:
    """Let all seeds of an agent eat; a row for each seed."""
    started = time.perf_counter()
    data = bnn.datasets.load(settings.data).data
    worlds = [make_world(data, settings.mushrooms, seed) for seed in range(settings.seeds)]
    eaten = play(settings, worlds)
    seconds = (time.perf_counter() - started) / len(worlds)
    return [
        {"entry": settings.entry, "data": settings.data, "seed": seed, **outcome(world, choices), "seconds": seconds}
        for seed, (world, choices) in enumerate(zip(worlds, eaten, strict=True))
    ]


def play(settings: Settings, worlds: list[World]) -> list[Tensor]:
    """Return which mushrooms were eaten in each world, (N,) each."""
    networks = learner(settings, worlds[0].x.shape[1] + 2)
    choosers = [Chooser(settings, seed) for seed in range(len(worlds))]
    eaten = [torch.zeros(settings.mushrooms) for _ in worlds]
    posteriors: list[schema.Fitted | None] = [None] * len(worlds)
    for rows in blocks(settings):
        recent, memories = slice(max(0, rows.stop - settings.memory), rows.stop), []
        for choices, world, chooser, posterior in zip(eaten, worlds, choosers, posteriors, strict=True):
            choices[rows] = chooser.choose(posterior, world.x[rows], seed=rows.start).float()
            memories.append(
                (with_action(world.x[recent], choices[recent]), world.rewards(recent, choices[recent]) / UNIT)
            )
        if rows.stop < settings.mushrooms:
            posteriors[:] = networks.fit(memories, seed=rows.start)
    return eaten


def outcome(world: World, eaten: Tensor) -> dict[str, Any]:
    """Return the cumulative regret at even steps, and its parts."""
    regrets = world.regrets(eaten).double()
    steps = np.unique(np.linspace(0, len(eaten), POINTS + 1).round().astype(int))[1:]
    late = slice(len(eaten) - len(eaten) // 5, None)
    return {
        "regret": float(regrets.sum()),
        "realised_regret": float(EDIBLE * (~world.poisonous).sum() - world.rewards(slice(None), eaten).sum()),
        "late_regret": float(regrets[late].sum()),
        "poisonous_eaten": int((eaten[world.poisonous] == 1).sum()),
        "edible_left": int((eaten[~world.poisonous] == 0).sum()),
        "steps": steps.tolist(),
        "curve": regrets.cumsum(0)[torch.from_numpy(steps - 1)].tolist(),
    }

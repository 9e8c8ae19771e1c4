"""Microcanonical Langevin chains as a method for `fit`."""

from functools import partial

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError, warn_user
from pyrobnn._core.random import seeded
from pyrobnn._core.remedies import Remedy
from pyrobnn._core.settings import Count, setting
from pyrobnn._core.waiting import progress_bar
from pyrobnn.inference.capture.graph import capture, choose_engine
from pyrobnn.inference.mcmc.chains import ChainMethod, Chains, Init, Target, diverged
from pyrobnn.inference.mcmc.isokinetic import Walk, descended, warm_up
from pyrobnn.inference.mcmc.potential import eager_potential, potential_of_chains
from pyrobnn.inference.method import Run, registry
from pyrobnn.posterior.record import EngineRecord

_LONGER_WARMUP = Remedy("warm up longer", ("fit.warmup=2000",))
_TYPICAL_STEPS = 20
"""Steps from one draw to the next, for the choice of the engine."""
_STATISTICS = ("diverging", "energy_error", "step_size", "n_steps")
_TOLERATED_SHARE = 0.1
"""Of draws with a refused step: a draw is many steps, and a step that is refused costs little."""


class Microcanonical(ChainMethod):
    """Base of the methods that run isokinetic Langevin chains."""

    warmup: int
    thinning: int | None

    def sample(self, target: Target, run: Run) -> Chains:
        name = type(self).__name__
        data = target.all_data(name)
        evaluate = eager_potential(target.log_joint, data)
        points = torch.stack([descended(start, evaluate) for start in target.starts(self.num_chains, evaluate)])
        if points.shape[1] == 1:
            raise InputError(f"{name} turns directions, and a single latent has none: use NUTS.", page="how-to/mcmc")
        guessed = self.warmup + self.num_draws * (self.thinning or _TYPICAL_STEPS)
        choice = choose_engine(run.engine, 2 * guessed)
        each, is_batched = potential_of_chains(target.log_joint, points, data)
        if not is_batched:
            choice = EngineRecord(run.engine, "eager", "torch does not batch the model")
        walk = Walk(lambda place: each(place, *data), points)
        record_step = partial(walk.recorded, target.log_joint, data)
        _, record = capture(choice, record_step, what="chains run", from_step=1)
        with (
            seeded(run.seed, "transitions"),
            progress_bar(total=guessed, shown=run.progress, desc=name, unit="step") as bar,
        ):
            walk.tell = bar.update
            tuned = warm_up(walk, self.warmup)
            thinning = self.thinning or max(1, round(tuned.length / tuned.size))
            bar.total = walk.num_steps + self.num_draws * thinning
            walk.set(*tuned)
            pairs = [self._drawn(walk, thinning) for _ in range(self.num_draws)]
        draws, rows = (torch.stack(parts, 1) for parts in zip(*pairs, strict=True))
        numbers = dict(zip(_STATISTICS, rows.unbind(-1), strict=True))
        diverging = int(numbers["diverging"].sum())
        if diverging > _TOLERATED_SHARE * self.num_chains * self.num_draws:
            warn_user(diverged(diverging, self.num_chains * self.num_draws), remedy=_LONGER_WARMUP)
        return Chains(draws, numbers, record, walk.num_steps, diverging)

    def _drawn(self, walk: Walk, thinning: int) -> tuple[Tensor, Tensor]:
        """Return the next draw of all chains, (C, P), and its statistics, (C, statistic)."""
        walk.run(thinning)
        state, error = walk.state, (walk.state.squares / thinning).sqrt()
        row = [state.refused > 0, error, state.size, torch.full_like(error, thinning)]
        return state.place.clone(), torch.stack(row, 1).double()


@registry.register
@setting
class MCLMC(Microcanonical):
    """Microcanonical Langevin Monte Carlo (Robnik et al. 2023), all chains side by side.

    A chain moves at constant speed: the gradient turns its direction, and noise makes it forget the direction along a
    length L. It has no accept step: its steps are so small that the bias is below the Monte Carlo error of some 1000
    draws. `NUTS` is exact in the limit. The warm-up gives step size, units of the latents, and L. It needs two latents.

    Attributes:
        num_draws: draws kept of each chain.
        warmup: steps before them, each with two gradients.
        num_chains: number of chains.
        thinning: steps from one draw kept to the next; None for a length L.
        init: where each chain starts, as in `NUTS`.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior="normal", likelihood=bnn.likelihoods.Gaussian(1.0))
        >>> method = bnn.MCLMC(num_draws=10, warmup=40, num_chains=2)  # take 500 draws or more
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, engine="eager", progress=False)
        >>> posterior.predict([[0.0], [1.0]], num_draws=20)
        Prediction(Normal, num_draws=20, num_inputs=2)
    """

    num_draws: Count = 1000
    warmup: Count = 10_000
    num_chains: Count = 4
    thinning: Count | None = None
    init: Init = "prior"

"""Preparation of a fit: data that fit the model, a posterior to train, settings of the process."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from pyro import poutine
from pyro.nn import PyroModule

from pyrobnn._core.checks import check_range
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive, seeded
from pyrobnn._torch.denormals import flushed_denormals
from pyrobnn._torch.devices import resolve_device
from pyrobnn._torch.inputs import X, tensors_of
from pyrobnn._torch.kept_memory import kept_memory
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn._torch.threads import threads_for
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.base import as_guide
from pyrobnn.guides.built import built
from pyrobnn.guides.by_name import narrowed
from pyrobnn.guides.empirical import require_density
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference.data import Source
from pyrobnn.inference.laplace.sites import checked_setting
from pyrobnn.inference.network_checks import refuse_checkpoints
from pyrobnn.inference.svi.estimator import choose_kl, with_least_noise, with_shared_noise
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.inference.training.going_on import go_on
from pyrobnn.inference.training.state import TrainingState, check_trainable
from pyrobnn.optimizers import Schedule
from pyrobnn.posterior.posterior import Posterior, latent_names


@contextmanager
def running(bnn: BNN, batch_size: int, seed: int, purpose: str, *, copies: int = 1) -> Iterator[int]:
    """Seed the block, and run it with the threads and settings of that many fits; yield the number of threads."""
    with (
        seeded(seed, purpose),
        fast_pyro(),
        threads_for(bnn.net, batch_size * copies) as threads,
        flushed_denormals(),
        kept_memory(),
    ):
        yield threads


class Parts(NamedTuple):
    """Model and guide, built for the data, and the method with all that it leaves open resolved."""

    bnn: BNN
    guide: PyroModule
    method: SVI
    example: tuple[X, torch.Tensor]


def build_parts(
    bnn: BNN, method: SVI, source: Source, seed: int, device: str, *, earlier: Posterior | None = None
) -> Parts:
    """Return an untrained copy of the model, and its guide, or both where an earlier posterior of theirs has them.

    The caller's `seeded` block draws the starting values; `seed` is that of the choices of noise and KL.

    Raises:
        InputError: a guide that has nothing to train, that misses a site, or that does not go with the method; a KL
            that guide and prior do not have; numbers beyond the precision of the network.
    """
    model, example = fresh_model(bnn, source, device)
    refuse_checkpoints(model, example, training=True)
    if isinstance(source.data, Data):
        for values, name in zip(source.scaled(model, *source.data.tensors), ("x", "y", "weights"), strict=False):
            for part in tensors_of(values):
                check_range(part, name)
    if as_guide(method.guide).curvature is not None:
        _check_laplace(method, model, example)
        source.check_pass()
    resolved = _resolved(method, model, source, seed)
    guide = resolved.guide.build(model, *example).to(example[0].device)
    require_density(guide)
    if not built(guide).trainable:
        raise InputError(
            f"{type(method.guide).__name__} holds what another method computed and has nothing to train: use a guide "
            "such as guides.Laplace()."
        )
    _check_covers(guide, model, example, resolved)
    if earlier is not None:
        go_on(earlier, model, guide, method.guide)
    if method.kl == "auto":
        with seeded(seed, "kl"):
            kl = choose_kl(model, guide, source.example(model)) if method.ends_by_itself else "mc"
        resolved = dataclasses.replace(resolved, kl=kl)
    check_trainable(model, guide, resolved, example)
    return Parts(model, guide, resolved, example)


def _resolved(method: SVI, model: BNN, source: Source, seed: int) -> SVI:
    """Return the method with what it leaves open, but the KL, which depends on the built guide.

    | left open        | the fit ends by itself          | `steps` or `epochs` given |
    |------------------|---------------------------------|---------------------------|
    | start of scales  | narrow                          | as the guide says         |
    | noise of a guide | "local", "flipout" or "shared"  | "shared"                  |
    | schedule         | a cosine in each cycle          | none                      |
    | KL               | without draws where there is one | "mc"                     |
    """
    if not method.ends_by_itself:
        return dataclasses.replace(method, guide=with_shared_noise(method.guide))
    batch_size = source.batch_size(method.batch_size)
    guide = with_least_noise(narrowed(method.guide), model, source, batch_size, seed)
    schedule = Schedule("cosine_annealing_lr") if method.schedule is None else method.schedule
    return dataclasses.replace(method, guide=guide, schedule=schedule)


def start(
    bnn: BNN, method: SVI, source: Source, seed: int, device: str, *, earlier: Posterior | None = None
) -> tuple[Posterior, TrainingState]:
    """Return the posterior before its first step, and the fit that trains it.

    The caller's `seeded` block draws the starting values; `seed` orders the mini-batches, and is the posterior's.
    """
    model, guide, method, example = build_parts(bnn, method, source, seed, device, earlier=earlier)
    posterior = Posterior(model, guide, example=example, x_scaler=source.x_scaler, y_scaler=source.y_scaler, seed=seed)
    batches = source.batches(model, method.batch_size, derive(seed, "batches"))
    length = method.length(source.batches_per_epoch(method.batch_size))
    return posterior, TrainingState(
        model, guide, method, batches, example=example, num_data=source.num_data, schedule_steps=length.cycle
    )


def _check_laplace(method: SVI, model: BNN, example: Batch) -> None:
    if method.temperature != 1:
        raise InputError(
            "Laplace puts the curvature of the posterior itself around its mode, at temperature 1, got "
            f"temperature={method.temperature}: leave it out."
        )
    checked_setting(method.guide, model, example, latent_sites(model, *example))


def fresh_model(bnn: BNN, source: Source, device: str) -> tuple[BNN, tuple[X, torch.Tensor]]:
    """Return an untrained copy in the units of the data, in evaluation mode, and a row of data to run it with."""
    model = bnn.fresh().to(resolve_device(device, source.products))
    model.scale_targets(source.target_scale)
    example = source.example(model.eval())
    check_range(torch.stack([source.y_scaler.loc, source.y_scaler.scale]).to(example[1].dtype), "y")
    return model, example


def _check_covers(guide: PyroModule, model: BNN, example: Batch, method: SVI) -> None:
    with torch.no_grad(), poutine.block():
        drawn = set(latent_names(poutine.trace(guide).get_trace(*example)))
    missing = [site.name for site in latent_sites(model, *example) if site.name not in drawn]
    if missing:
        raise InputError(
            f"The guide {method.guide!r} does not draw {', '.join(missing)}: a guide must cover every latent site."
        )

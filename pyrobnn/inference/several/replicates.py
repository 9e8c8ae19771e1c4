"""Many fits at once: seeds, data sets of equal size, or settings, trained side by side in one captured graph."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyrobnn._core.errors import InputError, PoorFitWarning, shown, waiting, warn_user
from pyrobnn._core.modes import gradients
from pyrobnn.bnn import BNN
from pyrobnn.data.loader import as_data
from pyrobnn.inference.method import Callback, Engine, Run, checked_method
from pyrobnn.inference.scales.measure import measure
from pyrobnn.inference.svi.svi import SVI, aligned, fit_side_by_side
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.verdict.checks import complaint

_MAY_DIFFER = ("guide", "lr", "schedule", "temperature", "kl_warmup", "eval_every", "tolerance")  # others make a graph


def fit_replicates(
    bnn: BNN | list[BNN],
    data: Any,
    method: SVI | list[SVI],
    *,
    seed: int = 0,
    replicates: int | None = None,
    bootstrap: bool = False,
    device: str = "auto",
    engine: Engine = "auto",
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | None = None,
    every: int = 1000,
) -> list[Posterior]:
    """Infer several independent posteriors at once, each with the distribution of a single `fit` under another seed.

    Captured, they share a vmapped graph; eagerly, they take steps in turn, with other noise of the same distribution.

    Args:
        bnn: the model, or a list of R models, equal except for numbers such as the prior's scale.
        data: `Data` or a tuple (x, y) for all replicates, or a list of R data sets with the same number of examples.
        method: the method, or a list of R, which may differ in `guide`, `lr`, `schedule`, `temperature`, `kl_warmup`,
            `eval_every` and `tolerance`.
        seed: each replicate gets a seed derived from it.
        replicates: number of replicates R; not needed if a list is given.
        bootstrap: train each on N examples, drawn from its data with replacement; units still follow from all data.
        device: as in `fit`.
        engine: as in `fit`.
        progress: as in `fit`.
        callbacks: as in `fit`; they see the mean ELBO, and model and guide of the first replicate.
        checkpoint: as in `fit`, shared by all.
        every: as in `fit`.

    Raises:
        InputError: lists of different lengths, methods that differ in other settings, data of different shapes.
        FloatingPointError: the ELBO of a replicate is no longer finite.

    Examples:
        >>> models = [bnn.BNN(bnn.MLP(1, [10], 1), prior=bnn.priors.Normal(scale)) for scale in (0.1, 0.3, 1.0)]
        >>> fits = bnn.fit_replicates(models, bnn.datasets.sinusoid(), bnn.SVI(steps=20), seed=0, progress=False)
        >>> [fit.bnn.settings["prior"].scale for fit in fits]
        [0.1, 0.3, 1.0]
    """
    for model in bnn if isinstance(bnn, list) else [bnn]:
        if not isinstance(model, BNN):
            raise InputError(f"`fit_replicates` takes models, got {shown(model)}: wrap the network, bnn.BNN(network).")
    for one in method if isinstance(method, list) else [method]:
        checked_method(one, data)
    data = [as_data(part) for part in data] if isinstance(data, list) else as_data(data)
    shared: dict[str, Any] = {"callbacks": callbacks, "checkpoint": checkpoint, "every": every}
    run = Run(seed=seed, device=device, engine=engine, progress=progress, **shared)
    posteriors = replicates_in_silence(bnn, data, method, run, replicates=replicates, bootstrap=bootstrap)
    pairs = [*zip(posteriors, *aligned(len(posteriors), data), strict=True)]
    with waiting("checking", shown=progress):
        texts = [complaint(*pair, briefly=True) for pair in pairs]
    told = Counter(text for text in texts if text is not None)
    for text, _ in told.most_common(1):
        verb = "warns" if told.total() == 1 else "warn"
        warn_user(f"{told.total()} of {len(texts)} fits {verb}: {text}", PoorFitWarning)
    return posteriors


@gradients()
def replicates_in_silence(
    bnn: BNN | list[BNN],
    data: Any,
    method: SVI | list[SVI],
    run: Run,
    *,
    replicates: int | None = None,
    bootstrap: bool = False,
) -> list[Posterior]:
    """Do the work of `fit_replicates`."""
    methods = method if isinstance(method, list) else [method]
    first = methods[0]
    if wrong := [one for one in methods if not isinstance(one, SVI) or type(one) is not type(first)]:
        raise InputError(f"Replicates run SVI(...), or IVON(...), side by side, got {wrong[0]!r}.")
    if any(one.patience is not None for one in methods):
        raise InputError("Replicates run the same number of steps: leave `patience` out of the method.")
    for name in (field.name for field in dataclasses.fields(first) if field.name not in _MAY_DIFFER):
        if any(getattr(one, name) != getattr(first, name) for one in methods):
            differ = ", ".join(_MAY_DIFFER)
            raise InputError(f"The methods of replicates must agree in `{name}`; they may differ in {differ}.")
    is_one = not (isinstance(bnn, list) or isinstance(data, list))
    pairs = [(bnn, data)] if is_one else [*zip(*aligned(replicates, bnn, data), strict=True)]
    closed = [measure(model, rows, run, *methods) for model, rows in pairs]
    models = closed[0].bnn if is_one else [model.bnn for model in closed]
    posteriors = fit_side_by_side(models, method, data, run, replicates=replicates, bootstrap=bootstrap)
    for (model, _), found, posterior in zip(itertools.cycle(pairs), itertools.cycle(closed), posteriors):
        run.note(posterior, model.settings["likelihood"], found.record)
    return posteriors

"""`fit`: from a model, data and a method to a posterior."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

from pyrobnn._core.errors import InputError, PoorFitWarning, shown, unknown_setting, waiting, warn_user
from pyrobnn._core.modes import gradients
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import fields_of
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import as_data
from pyrobnn.guides.base import built
from pyrobnn.inference.defaults import choose, settled
from pyrobnn.inference.method import Callback, Engine, Method, Run, check_offered, checked_method
from pyrobnn.inference.parts import Facts, Given, Parts
from pyrobnn.inference.scales.measure import measure
from pyrobnn.inference.several.replicates import fit_replicates
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.inference.training.state import model_of
from pyrobnn.likelihoods.base import as_likelihood, with_offset
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.tables.schema import Task
from pyrobnn.verdict.checks import complaint


class Arguments(TypedDict, total=False):
    """The arguments of `fit` that have defaults."""

    device: str
    engine: Engine
    progress: bool
    validation: Any
    callbacks: Sequence[Callback]
    checkpoint: str | Path | None
    every: int
    start: Any


_OF_FIT = [*Arguments.__annotations__]
_FEWEST_ROWS = 5  # to choose a method by


@overload
def fit[R](bnn: BNN, data: Any, method: Method[R], *, seed: int = 0, **arguments: Unpack[Arguments]) -> R: ...
@overload
def fit(
    bnn: BNN, data: Any, method: str | None = None, *, seed: int = 0, **arguments: Unpack[Arguments]
) -> Posterior | Mixture: ...
def fit(
    bnn: BNN,
    data: Any,
    method: Any = None,
    *,
    seed: int = 0,
    device: str = "auto",
    engine: Engine = "auto",
    progress: bool = True,
    validation: Any = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | None = None,
    every: int = 1000,
    start: Any = None,
) -> Any:
    """Infer the posterior of a model's weights.

    Without a method, the first rule of `pyrobnn.inference.defaults` that holds for model and data gives one;
    `record.choice` says which. See docs/explanations/defaults.md.

    Scales named "tuned", the default for priors and noise, are measured first: they make the data most probable
    (`EvidenceFramework`), on up to 500 examples. A guide starts at the mode with them.

    The model is not changed: its parts are built anew, under the seed, and trained as a copy. The same arguments give
    the same bits on the same machine. Random states, and modes of torch around the call, stay as they were.

    A `PoorFitWarning` tells at the end of a fit that predicts no better than a constant, or worse than a linear model.
    Ctrl-C ends a fit by `SVI` after a step, and a warning says which one. The posterior so far is returned; with
    `checkpoint` the state is kept, and a KeyboardInterrupt tells so. A second one stops at once, as in other methods.

    Args:
        bnn: the model.
        data: `Data`, a pair (x, y) of arrays or tensors, or a DataLoader of such pairs, as it is or in a `Loader`.
        method: the inference method, such as `SVI()`, or its name, such as "nuts"; by the rules if left out.
        seed: seed of starting values, mini-batches and draws; 0 if left out.
        device: "cpu", "cuda", ..., or "auto": a GPU if there is one, but the CPU below 10,000 multiplications for an
            example, which it runs faster.
        engine: "captured" records the step once and runs it without Python, "eager" runs Pyro at each step. With a
            single particle both give the same numbers for the same seed, up to rounding. "auto" captures from 100
            steps on. `Posterior.record.engine` names it, and why.
        progress: show a progress bar with the ELBO.
        validation: `Data`, a pair (x, y) or a loader whose log score `SVI` follows, and decides by with `patience`.
        callbacks: functions called with a `Progress` after every 50 steps; one that returns True ends the fit.
        checkpoint: a folder for the state of the fit, by `SVI` or an `Ensemble` of it. After an interruption the same
            call resumes there, to the same bits on the same machine; after the end it returns the same posterior.
        every: steps between two checkpoints.
        start: a posterior of this model and guide to go on from, with its scales and in its units; for SVI and IVON.

    Returns:
        The `Posterior`, or a `Mixture` of several.

    Raises:
        InputError: arguments that do not fit together, before training starts.
        FloatingPointError: the ELBO or a parameter is no longer finite; it names the site.
        KeyboardInterrupt: Ctrl-C, where it does not return the posterior so far.

    Examples:
        >>> model, method = bnn.BNN(bnn.MLP(1, [10], 1)), bnn.SVI(guide="laplace", steps=50)
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, progress=False)
        >>> lower, upper = posterior.predict([[0.0], [1.0]]).interval(0.9)
    """
    if not isinstance(bnn, BNN):
        raise InputError(f"`fit` takes a model, got {shown(bnn)}: wrap the network, bnn.BNN(network).")
    method = None if method is None else checked_method(method, data)
    data = as_data(data)
    held_out = None if validation is None else as_data(validation)
    run = Run(
        seed=seed,
        device=device,
        engine=engine,
        progress=progress,
        callbacks=callbacks,
        validation=held_out,
        checkpoint=checkpoint,
        every=every,
        start=start,
        method=method,
    )
    tell_of_constants(with_offset(bnn.settings["likelihood"], data))
    with seeded(seed, "run"):  # no part of a fit, seeded or not, moves the streams of the caller
        if method is None:
            bnn, run = by_rules(bnn, data, run)
        posterior = fit_in_silence(bnn, data, run.method, run)
    if posterior.record.stopped_by == "Ctrl-C":
        go_on = ", or go on from here by `start=` of fit" if built(posterior.guide).trainable else ""
        said = f"it was {posterior.record.stop_reason}. Its predictions may be far off, and its uncertainty too small"
        warn_user(f"The fit has not converged: {said}. Fit again{go_on}.", PoorFitWarning)
        return posterior
    tell_of_empty_classes(data, posterior)
    tell(posterior, data, held_out if isinstance(held_out, Data) else None, progress=progress)
    return posterior


def tell(posterior: Any, data: Any, validation: Data | None = None, *, progress: bool) -> None:
    """Warn with the `complaint` about a fit."""
    with waiting("checking", shown=progress):
        text = complaint(posterior, data, validation)
    if text is not None:
        warn_user(text, PoorFitWarning)


def by_rules(bnn: BNN, data: Any, run: Run) -> tuple[BNN, Run]:
    """Return the model and the run with what the rules choose."""
    if not isinstance(data, Data) or len(data) < _FEWEST_ROWS:
        rule = f"Without a method, one is chosen by data in memory, at least {_FEWEST_ROWS} examples"
        remedy = "pass Data(x, y), as bnn.Loader(loader).in_memory() makes of a loader, or a method such as SVI()"
        raise InputError(f"{rule}: {remedy}.")
    if run.start is not None:
        raise InputError("`start` goes with a method: pass bnn.SVI(guide=...), with the guide of the posterior.")

    def build(parts: Parts, _: Data) -> BNN:
        return bnn.with_parts(prior=parts.prior, likelihood=parts.likelihood)

    likelihood = bnn.settings["likelihood"]
    task: Task = "classification" if as_likelihood(likelihood).has_labels else "regression"
    given = Given(**{name: bnn.settings[name] for name in ("net", "prior", "likelihood")}, inputs=data.inputs)
    parts, record = settled(choose(Facts.of(task, data, given, model=bnn)), data, run, build)
    return build(parts, data), dataclasses.replace(run, method=parts.method, choice=record)


@gradients()
def fit_in_silence(bnn: BNN, data: Any, method: Any, run: Run) -> Any:
    """Do the work of `fit`: no word on the result."""
    check_offered(method, run)
    likelihood = bnn.settings["likelihood"]
    bnn = bnn if run.start is None else model_of(run.start, bnn)
    method.check(bnn, data, run)
    closed = measure(bnn, data, run, method, starts_there=method.offer().starts_at_mode)
    posterior = method.infer(closed.bnn, data, run)
    if isinstance(posterior, (Posterior, Mixture)):
        run.note(posterior, likelihood, closed.record)
        posterior.note(num_data=len(data) if isinstance(data, Data) else posterior.record.num_data)
    return posterior


def tell_of_constants(data: Any) -> None:
    """Warn of inputs that never vary."""
    constant = data.constant_inputs if isinstance(data, Data) else []
    if not constant:
        return
    names = ", ".join(map(repr, constant[:3])) + (f" and {len(constant) - 3} more" if len(constant) > 3 else "")
    why = "The data say nothing of their weights, so predictions for other values are as wide as the prior"
    text = f"Inputs that have the same value in all rows: {names}. {why}. Leave out constant inputs."
    warn_user(text, PoorFitWarning)


def tell_of_empty_classes(data: Any, posterior: Any) -> None:
    """Warn of outputs of a network for classes of which there is no example."""
    if not (isinstance(data, Data) and data.y.ndim == 1 and isinstance(posterior, (Posterior, Mixture))):
        return
    has_labels = as_likelihood(posterior.bnn.settings["likelihood"]).has_labels
    outputs = posterior.members[0].outputs.shape[-1]
    counts = data.class_counts(outputs) if has_labels and outputs > 1 else []
    if empty := [str(label) for label, num in enumerate(counts) if not num]:
        text = f"No example has the label {' or '.join(empty)}, and the network has {outputs} outputs, one for each"
        remedy = "Give it as many outputs as there are classes, or pass examples of all of them"
        warn_user(f"{text}. {remedy}.", PoorFitWarning)


def fit_svi(
    bnn: BNN,
    x: Any,
    y: Any = None,
    *,
    seed: int = 0,
    standardize: bool = False,
    replicates: int | None = None,
    **arguments: Any,
) -> Posterior | list[Posterior]:
    """Fit by SVI: x may be inputs (with y), `Data` or a DataLoader; see `BNN.fit`."""
    if y is None and standardize:
        raise InputError("`standardize` belongs to Data here: pass Data(x, y, standardize=True).")
    if isinstance(y, (Method, str)):
        raise InputError(f"BNN.fit got {shown(y)} as targets `y`: for a method, call bnn.fit(model, data, method).")
    data = x if y is None else Data(x, y, standardize=standardize)
    known = [*fields_of(SVI), "seed", "standardize", "replicates", *_OF_FIT]
    if unknown := [name for name in arguments if name not in known]:
        raise InputError(f"BNN.fit: {unknown_setting(unknown[0], known)}")
    method = SVI(**{name: value for name, value in arguments.items() if name not in _OF_FIT})
    fit_arguments = {name: value for name, value in arguments.items() if name in _OF_FIT}
    if replicates is None:
        return fit(bnn, data, method, seed=seed, **fit_arguments)
    if fit_arguments.pop("validation", None) is not None:
        raise InputError("Replicates are not followed on validation data: leave `validation` out.")
    if fit_arguments.pop("start", None) is not None:
        raise InputError("Replicates begin at random: leave `start` out, or go on from each posterior by fit.")
    return fit_replicates(bnn, data, method, seed=seed, replicates=replicates, **fit_arguments)

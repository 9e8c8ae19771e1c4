"""`fit`: from a model, a method and data to a posterior."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

from pyrobnn._core.errors import InputError
from pyrobnn.bnn import BNN
from pyrobnn.inference.automatic import Automatic
from pyrobnn.inference.base import Method, Run, check_offered
from pyrobnn.inference.ending import tell
from pyrobnn.inference.engine import Engine
from pyrobnn.inference.monitor import Callback
from pyrobnn.inference.open_scales import run_measured
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior


class Arguments(TypedDict, total=False):
    """The arguments of `fit` that have defaults."""

    device: str
    engine: Engine
    progress: bool
    validation: Any
    callbacks: Sequence[Callback]
    checkpoint: str | Path | None
    every: int


@overload
def fit[R](bnn: BNN, method: Method[R], data: Any, *, seed: int, **arguments: Unpack[Arguments]) -> R: ...
@overload
def fit(bnn: BNN, method: Any, *, seed: int, **arguments: Unpack[Arguments]) -> Posterior | Mixture: ...
def fit(
    bnn: BNN,
    method: Any,
    data: Any = None,
    *,
    seed: int,
    device: str = "auto",
    engine: Engine = "auto",
    progress: bool = True,
    validation: Any = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | None = None,
    every: int = 1000,
) -> Any:
    """Infer the posterior of a model's weights.

    Without a method, `fit(bnn, data, seed=0)` tries several and keeps the one that predicts held-out examples best
    (`Automatic`).

    What the model leaves open is measured first, where the length of the fit is open too (no `steps` and `epochs`, and
    chains): scales of priors and noise named "tuned", which are the defaults. Modes are found from several starts, with
    the scales that make the data most probable (`EvidenceFramework`), on up to 500 examples. A fit of a given length
    takes the model as it is: "tuned" priors are "he", and "tuned" noise is trained with the guide.

    The model is not changed: its parts are built anew, under the seed, and trained as a copy. The same arguments give
    the same bits on the same machine, and every global random state is left as it was. Numbers below float32's normal
    range count as zero meanwhile. When the ELBO or a parameter is no longer finite, the fit goes back to a state that
    was good, by at most 500 steps, and on with a quarter of the learning rate, up to five times
    (`Posterior.info["rewinds"]`); then, or if the first step is not finite, it ends with an error that names the site.

    Args:
        bnn: the model.
        method: how to infer it: `SVI`, or any setting with a function `run` (`Method`), such as `NUTS`. It may be left
            out, the data in its place.
        data: `Data`, a pair (x, y) of arrays or tensors, `StoredData`, or a DataLoader of such pairs.
        seed: seed of starting values, mini-batches and draws.
        device: "cpu", "cuda", ..., or "auto" for a GPU where there is one.
        engine: "captured" compiles the whole step once and runs it without Python, "eager" runs Pyro at each step. With
            one particle or one antithetic pair they give the same numbers for the same seed, up to rounding (from 2^17
            weights on with one thread), else other noise of the same distribution. "auto" takes what is predicted to
            end sooner, from what the first step computes and figures kept in the code, not from a clock or from what
            was compiled before: the same call takes the same, and has the bits that it has where that is asked for.
            `Posterior.info` tells what was used and why.
        progress: show a progress bar with the ELBO, and warn at the end of a fit that is no better than a constant.
        validation: `Data` or a pair (x, y) whose log score is followed, and decides if `method.patience` is set; for
            `SVI` only.
        callbacks: functions called with a `Progress` after every 50 steps, and again where the fit went back; one that
            returns True ends the fit.
        checkpoint: a folder in which the fit keeps its place. After an interruption the same call goes on from there,
            on the same machine to the same bits as without one; after the end it returns the same posterior at once.
            For `SVI`, and for an `Ensemble` of it; callbacks are not called again for steps done before.
        every: steps between two checkpoints.

    Returns:
        The `Posterior`, or what the method's `run` returns.

    Raises:
        InputError: anything that does not fit together, before training starts.
        FloatingPointError: the ELBO is no longer finite, also after going back with smaller steps.
    """
    if data is None:
        method, data = Automatic(), method
    if not isinstance(method, Method) or isinstance(method, type):
        raise InputError(f"Expected a method such as SVI(...), got {method!r}.")
    kept: dict[str, Any] = {"validation": validation, "checkpoint": checkpoint, "every": every}
    run = Run(seed=seed, device=device, engine=engine, progress=progress, callbacks=callbacks, **kept)
    check_offered(method, run)
    found = run_measured(bnn, method, data, run)
    if progress:
        tell(found, data, validation)
    return found

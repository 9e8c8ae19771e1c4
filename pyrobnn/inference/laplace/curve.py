"""The second phase of the Laplace approximation: a Gaussian with the curvature at the mode replaces the point."""

import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pyro import poutine
from torch import Tensor
from tqdm.auto import tqdm

import pyrobnn
from pyrobnn._core.errors import InputError
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import to_dict
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.curvature.gaussian import Result, gaussian
from pyrobnn.curvature.hessian import Batch
from pyrobnn.curvature.likelihood import Passes, Point, check_size, choose_sites
from pyrobnn.curvature.prior import PriorCurvature, log_entries, prior_curvature, prior_laws
from pyrobnn.curvature.recursion import layers_of
from pyrobnn.guides.blocks import FullBlock
from pyrobnn.guides.laplace import BlockGaussian, BlockGuide, Laplace, require_real
from pyrobnn.guides.sites import Site
from pyrobnn.inference.memory import named_batch_size
from pyrobnn.inference.source import Source
from pyrobnn.posterior.posterior import Posterior

_PACKAGE = str(Path(pyrobnn.__file__).parent)
_WIDE = 4000
"""Width of a layer from which the eigenvectors of its Kronecker factors take more than a minute on a CPU."""
_EIGEN_STEPS = 9
"""Operations that eigenvectors of a symmetric matrix take, over its width cubed (Golub & Van Loan 2013, sec. 8.3)."""
_A_MINUTE = 60 * 20e9
"""Operations in a minute at 20 GFLOPS, a usual rate of two CPU cores."""


def curve(posterior: Posterior, setting: Laplace, source: Source, latents: list[Site], *, progress: bool) -> Posterior:
    """Put the Gaussian around the mode that a posterior's guide stands at, in its place.

    Args:
        posterior: its guide is a point; changed in place.
        setting: curvature and structure.
        source: the training data.
        latents: the latent sites of the posterior's model.
        progress: show a progress bar.

    Returns:
        The same posterior. `info["laplace"]` has the setting, `log_evidence` and its parts, and what was repaired.

    Raises:
        InputError: a setting that does not fit the network or its prior, or a loader that leaves out examples.
        FloatingPointError: curvature that is not finite.
    """
    bnn = posterior.bnn
    values = posterior.guide.mean()
    weights = {name: values[name] for name in bnn.site_names}
    others = {name: value for name, value in values.items() if name not in weights}
    with seeded(posterior.seed, "curvature"), fast_pyro(), poutine.block(), named_batch_size(setting.batch_size):
        sites = checked_sites(setting, bnn, posterior.example, latents)
        prior = prior_curvature(bnn, weights, others, sites)
        if setting.subnetwork is not None and prior.joint:
            raise InputError(
                f"Laplace: a subnetwork needs a prior of independent weights, that of {next(iter(prior.joint))!r} "
                "correlates them: leave out `subnetwork`."
            )
        point = Point(bnn, weights, conditioned_likelihood(bnn, others), prior, sites)

        def passes() -> Iterator[Batch]:
            return one_pass(source, bnn, setting.batch_size, progress=progress)

        result = gaussian(setting, point, passes)
        gaussian_setting = BlockGaussian(tuple(result.specs), setting.linearized)
        guide = BlockGuide(latents, gaussian_setting)
        with torch.no_grad():
            points = posterior.guide.points_by_name()
            guide.loc.copy_(torch.cat([points[name].reshape(-1) for name in guide.points()]))
        fill(guide, result)
        fit = log_likelihood(point, passes) if result.log_likelihood is None else result.log_likelihood
        fit -= source.num_data * float(source.y_scaler.log_volume())
        evidence = evidence_parts(point, guide, others, fit)
    _tell(setting, prior, result)
    posterior.guide = guide
    if isinstance(posterior.info["method"], dict):  # else it is no setting, and stands there as it prints
        posterior.info["method"] = {**posterior.info["method"], "guide": to_dict(gaussian_setting)}
    posterior.info["laplace"] = {"setting": to_dict(setting), **evidence, **repairs(prior, result)}
    return posterior


def checked_sites(setting: Laplace, bnn: BNN, example: Batch, latents: list[Site]) -> list[str]:
    """Return the names of the weights that are to be Gaussian; what does not fit is refused before training.

    Args:
        setting: curvature and structure.
        bnn: the model.
        example: one row of inputs and targets.
        latents: the latent sites of the model.

    Raises:
        InputError: sites that are not there, that are bounded, too few for the rank or subnetwork, or too many for
            memory; or a network that the recursion does not run through.
    """
    weights = {name: value for name, value in bnn.initial_values.items() if name in bnn.site_names}
    names = choose_sites(bnn, weights, example[0], setting.sites)
    check_size(setting, sum(weights[name].numel() for name in names))
    if setting.structure == "kron":
        _tell_cost({name: weights[name] for name in names})
    require_real(latents, names)
    if setting.curvature == "recursion":
        layers_of(bnn.net, weights)
    return names


def _tell_cost(weights: Mapping[str, Tensor]) -> None:
    """Warn of a layer so wide that the eigenvectors of its Kronecker factors take minutes or hours."""
    sides = {name: max(len(w), w.shape[1:].numel()) for name, w in weights.items() if w.ndim > 1}
    name = max(sides, key=lambda key: sides[key], default="")
    side = sides.get(name, 0)
    if side >= _WIDE:
        warnings.warn(
            f"Laplace: structure='kron' takes the eigenvectors of a {side:,} x {side:,} matrix for {name!r}, some "
            f"{_EIGEN_STEPS * side**3:.0e} operations ({_EIGEN_STEPS * side**3 / _A_MINUTE:.0f} minutes at 20 GFLOPS) "
            f"without a progress bar, and {8 * side**2 / 2**30:.1f} GiB: structure='diag' or 'low_rank', or "
            "sites='last_layer', take less.",
            skip_file_prefixes=(_PACKAGE,),
        )


def one_pass(source: Source, bnn: BNN, batch_size: int, *, progress: bool) -> Iterator[Batch]:
    """Return every example once, in parts."""
    seen = 0
    with tqdm(total=source.num_data, desc="Laplace", unit="example", disable=not progress, leave=False) as bar:
        for x, y in source.one_pass(bnn, batch_size):
            yield x, y
            seen += len(x)
            bar.update(len(x))
            ONE_THREAD.let_waiting_in()
    if seen != source.num_data:
        raise InputError(
            f"Laplace adds curvature up over all {source.num_data} examples, and a pass of the DataLoader gave {seen}: "
            "use drop_last=False."
        )


def conditioned_likelihood(bnn: BNN, others: Mapping[str, Tensor]) -> Any:
    """Return the likelihood with its own latent sites, such as a noise scale under a prior, at given values."""
    latents = {name: value for name, value in others.items() if not name.startswith("prior.")}
    return poutine.condition(bnn.likelihood, data=latents) if latents else bnn.likelihood


def fill(guide: BlockGuide, result: Result) -> None:
    """Give the blocks of a guide their curvature."""
    with torch.no_grad():
        for block, curvature in zip(guide.covered(), result.fills, strict=True):
            block.fill(*curvature)
            if isinstance(block, FullBlock) and result.index is not None:
                block.index.copy_(result.index)


def log_likelihood(point: Point, passes: Passes) -> float:
    """Return the log-likelihood of all data at the mode, in the units of the model."""
    with torch.no_grad():
        parts = (point.likelihood(point.bnn.outputs(point.weights, x)).log_prob(y) for x, y in passes())
        return sum(float(part.double().sum()) for part in parts)


def evidence_parts(point: Point, guide: BlockGuide, others: Mapping[str, Tensor], fit: float) -> dict[str, float]:
    """Return the log evidence by Laplace's method, and its parts, in the original units of the targets.

    log p(D) = log p(D | w) + log p(w) + D / 2 log 2 pi - 1 / 2 log det (precision), given all that is not Gaussian:
    what stays at the mode counts as known.
    """
    with torch.no_grad():
        laws = prior_laws(point.bnn, point.weights, others)
        log_prior = sum(_log_prior_of(block, laws, point.weights) for block in guide.covered())
        log_det = float(guide.log_det())
    dimension = sum(block.dimension for block in guide.covered())
    total = fit + log_prior + 0.5 * dimension * math.log(2 * math.pi) - 0.5 * log_det
    return {
        "log_evidence": total,
        "log_likelihood": fit,
        "log_prior": log_prior,
        "log_det": log_det,
        "dimension": dimension,
    }


def _log_prior_of(block: Any, laws: Mapping[str, Any], weights: Mapping[str, Tensor]) -> float:
    """Return the log prior density of the entries that a block covers."""
    if block.dimension == sum(block.sizes):
        return float(sum(laws[name].log_prob(weights[name]).double().sum() for name in block.shapes))
    entries = torch.cat([log_entries(laws[name], weights[name]).reshape(-1) for name in block.shapes])
    return float(entries[block.index].double().sum())


def repairs(prior: PriorCurvature, result: Result) -> dict[str, Any]:
    """Return what was repaired or approximated, for `info["laplace"]`."""
    return {
        "clipped": {name: count for name, count in prior.clipped.items() if count},
        "repaired": result.repaired,
        "product_error": result.product_error,
        "slow": result.slow,
    }


def _tell(setting: Laplace, prior: PriorCurvature, result: Result) -> None:
    """Warn of what was repaired or approximated."""
    clipped = {name: count for name, count in prior.clipped.items() if count}
    lines = []
    if clipped:
        lines.append(
            f"{sum(clipped.values()):,} weights ({', '.join(clipped)}) stand where the log prior is not concave, and "
            "take 1 / variance of the prior for its curvature"
        )
    if prior.joint and setting.structure != "full":
        lines.append(
            f"the prior correlates the entries of {', '.join(prior.joint)}, and structure={setting.structure!r} takes "
            "the diagonal alone: structure='full' takes all of it"
        )
    if result.repaired:
        lines.append(
            f"{result.repaired:,} directions of the curvature were not positive, and take the prior's precision: the "
            "weights may not be at a mode (train longer), or use curvature='ggn'"
        )
    if result.product_error:
        worst = max(result.product_error.values())
        lines.append(
            f"the prior's precision of {', '.join(result.product_error)} is not a product over inputs and outputs, and "
            f"the closest one, at most {worst:.3g} times off, stands in: structure='full' or 'diag' take it as it is"
        )
    if result.slow:
        lines.append(f"{', '.join(result.slow)} belong to layers of unknown structure, and took a slower path")
    for line in lines:
        warnings.warn(f"Laplace: {line}.", skip_file_prefixes=(_PACKAGE,))

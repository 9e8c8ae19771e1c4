"""The weights that are to be Gaussian: picked by patterns, and refused before training where they do not fit."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from pyro import poutine
from torch import Tensor
from torch.func import grad

from pyrobnn._core.errors import InputError, progress_bar, warn_user
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import assign, to_dict
from pyrobnn._torch.inputs import X
from pyrobnn._torch.matrices import as_matrix, eigh, settled
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn._torch.transforms import missing_forward_mode
from pyrobnn.bnn import BNN
from pyrobnn.curvature.base import Curvature, Examples, Point, conditioned_likelihood
from pyrobnn.curvature.kinds import KINDS
from pyrobnn.curvature.metric import log_probs
from pyrobnn.curvature.prior import PriorCurvature, log_entries, prior_curvature, prior_laws
from pyrobnn.curvature.tracker import Tracker, refuse_mixed_examples
from pyrobnn.data.batches import Batch
from pyrobnn.guides.blocks import BlockSpec
from pyrobnn.guides.laplace import BlockGaussian, BlockGuide, Laplace, Structure, require_real
from pyrobnn.guides.sites import Site, latent_sites
from pyrobnn.inference import limits
from pyrobnn.inference.data import Source
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.output_draws import MOST_DERIVATIVES, Tangent
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import LaplaceRecord, with_guide_table

_MOST_MATRIX_BYTES = 2**35  # of three copies in double precision


def checked_setting(setting: Laplace, bnn: BNN, example: Batch, latents: list[Site]) -> tuple[Laplace, list[str]]:
    """Return the setting with its structure chosen, and the names of the weights that are to be Gaussian."""
    refuse_mixed_examples(bnn.net)
    weights = {name: value for name, value in bnn.initial_values.items() if name in bnn.site_names}
    names = _choose(bnn, weights, example[0], setting.sites)
    size = sum(weights[name].numel() for name in names)
    if setting.structure is None:
        # labels get Kronecker factors, as the whole curvature leaves them too much in doubt (explanations/defaults)
        takes_whole = size <= limits.MOST_FULL and not as_likelihood(bnn.settings["likelihood"]).has_labels
        takes_whole &= setting.sharing == "expand" and setting.joint_bias
        wanted: tuple[Structure, ...] = ("full", "kron", "diag")
        wanted = wanted if takes_whole or setting.subnetwork is not None else wanted[1:]
        possible = KINDS[setting.curvature].structures
        setting = dataclasses.replace(setting, structure=next(name for name in wanted if name in possible))
    if setting.structure == "low_rank" and setting.rank >= size:
        raise InputError(f"Laplace: a rank of {setting.rank} was asked for of {size} weights: use structure='full'.")
    if setting.subnetwork is not None and setting.subnetwork > size:
        raise InputError(f"Laplace: a subnetwork of {setting.subnetwork} weights was asked for of {size}.")
    dimension = setting.subnetwork or size
    needed = 3 * 8 * dimension**2
    if setting.structure == "full" and needed > _MOST_MATRIX_BYTES:
        fault = f"Laplace(structure='full') over {dimension:,} weights needs {needed / 2**30:,.0f} GiB"
        raise InputError(f"{fault}: use 'kron' or 'diag', sites='last_layer', or a subnetwork.")
    if setting.structure == "kron":
        _check_sides(bnn, weights, names, example[0][:1])
    require_real(latents, names)
    KINDS[setting.curvature].check(bnn, weights)
    _check_derivatives(setting, bnn, weights, names, example[0][:1])
    return setting, names


def _choose(bnn: BNN, weights: Mapping[str, Tensor], example: X, patterns: tuple[str, ...]) -> list[str]:
    """Return the names of the weights that patterns pick, in the order of the model."""
    names = list(bnn.site_names)
    if patterns == ("last_layer",):
        recording = Tracker(bnn, weights, names, example[:1]).alone
        last = next((use for use in recording.uses if recording.last in use.sites), None)
        if last is None:
            raise InputError("Laplace(sites='last_layer'): the last layer is of an unknown kind: name its sites.")
        return [name for name in names if name in last.sites]
    covers_all = all(any(fnmatchcase(name, pattern) for pattern in patterns) for name in names)
    by_pattern = assign(patterns if covers_all else [*patterns, "*"], names, "Laplace")
    return [name for name in names if any(name in by_pattern[pattern] for pattern in patterns)]


def _check_derivatives(setting: Laplace, bnn: BNN, weights: Mapping[str, Tensor], names: list[str], x: X) -> None:
    """Refuse a network whose operations lack a derivative that curvature or predictions need."""

    def outputs(*values: Tensor) -> Tensor:
        return bnn.outputs({**weights, **dict(zip(names, values, strict=True))}, x)

    values = [weights[name].detach() for name in names]
    is_second = setting.curvature == "hessian"
    if is_second or setting.structure == "low_rank":
        slope = grad(lambda *moved: outputs(*moved).square().sum(), tuple(range(len(values))))
        fault = missing_forward_mode(slope if is_second else outputs, *values)
        if fault:
            option, use = "curvature='hessian'", "'ggn'"
            if not is_second:
                option, use = "structure='low_rank'", "'kron' or 'diag'"
            lacks = f"needs forward-mode derivatives, which torch lacks for this network ({fault})"
            raise InputError(f"Laplace: {option} {lacks}: use {use}.", page="how-to/laplace")
    with torch.no_grad():
        num_outputs = outputs(*values).shape[1]
    if setting.linearized and num_outputs * sum(value.numel() for value in values) > MOST_DERIVATIVES:
        Tangent(bnn, weights, x).function(tuple(names))


def _check_sides(bnn: BNN, weights: Mapping[str, Tensor], names: list[str], x: X) -> None:
    """Refuse Kronecker factors that do not fit into memory; a table of embeddings has none."""
    most = math.isqrt(_MOST_MATRIX_BYTES // 24)
    if all(max(len(w), w[0].numel()) <= most for w in (weights[name] for name in names) if w.ndim):
        return
    for use in Tracker(bnn, weights, names, x).alone.uses:
        side = max(use.inputs.shape[2], use.positions(use.output).shape[2]) if use.kind == "matrix" else 0
        if side > most:
            size = f"{side:,} x {side:,} matrix for {use.sites[0]!r}, in {24 * side**2 / 2**30:,.0f} GiB"
            remedy = "use structure='diag', or sites='last_layer'"
            raise InputError(f"Laplace(structure='kron') takes eigenvectors of a {size}: {remedy}.")


_PRODUCT_TOLERANCE = 1e-3
_LEAST_PRECISION = 1e-6  # in units of the prior's precision


@dataclasses.dataclass(eq=False)
class Result:
    """The blocks of a Gaussian, with what `LaplaceRecord` says of repairs."""

    curvature: Curvature  # of the likelihood, the source of the blocks
    blocks: list[tuple[BlockSpec, tuple[Tensor, ...]]] = dataclasses.field(default_factory=list)  # with what fills them
    clipped: dict[str, int] = dataclasses.field(default_factory=dict)
    repaired: int = 0
    product_error: dict[str, float] = dataclasses.field(default_factory=dict)

    def fill(self, guide: BlockGuide, *, progress: bool = False) -> None:
        options = {"desc": "Laplace", "unit": "block", "leave": False}
        with torch.no_grad(), progress_bar(total=len(self.blocks), shown=progress, **options) as bar:
            for block, (spec, precision) in zip(guide.gaussian_blocks(), self.blocks, strict=True):
                bar.set_description(f"Laplace, {spec.kind} block of {spec.sites[0]}")
                block.fill(*precision)
                bar.update()


def likelihood_curvature(setting: Laplace, point: Point, prior: PriorCurvature, data: Examples) -> Curvature:
    """Return the curvature that a setting names; the prior decides which part a subnetwork or a low rank keeps."""
    kind = KINDS[setting.curvature]
    if setting.structure == "kron":
        curvature = kind.kronecker(point, data, sharing=setting.sharing, joint_bias=setting.joint_bias)
    elif setting.structure == "diag":
        curvature = kind.diagonal(point, data)
    elif setting.structure == "low_rank":
        curvature = kind.low_rank(point, data, point.flat(prior.precision), setting.rank)
    elif setting.subnetwork is None:
        curvature = kind.full(point, data)
    else:  # the weights of largest marginal variance, by the diagonal
        rough = kind.diagonal(point, data).diagonal
        precision = torch.cat([(rough[name] + prior.precision[name]).flatten() for name in point.sites])
        curvature = kind.full(point, data, precision.argsort(stable=True)[: setting.subnetwork].sort().values)
    curvature.require_finite(point.sites)
    return curvature


def assemble(point: Point, prior: PriorCurvature, curvature: Curvature) -> Result:
    """Return the blocks with the curvature of likelihood and prior."""
    result = Result(curvature, clipped={name: count for name, count in prior.clipped.items() if count})
    if curvature.full is not None:
        _add_full(point, prior, curvature.full, result)
    if curvature.low_rank is not None:
        spec = BlockSpec("low_rank", tuple(point.sites), len(curvature.low_rank[1]))
        result.blocks.append((spec, (point.flat(prior.precision), *curvature.low_rank)))
    for factor in curvature.factors:
        spec = BlockSpec("kron", factor.sites, transposed=factor.transposed)
        parts = [(prior.precision[name].flatten(), prior.precision[name].shape) for name in spec.sites]
        matrix = torch.cat([as_matrix(*part, transposed=spec.transposed) for part in parts], 1)  # the bias last
        outer_prior, inner_prior, error = product_of(matrix)
        if error > 1 + _PRODUCT_TOLERANCE:
            result.product_error[factor.sites[0]] = error
        result.blocks.append((spec, (factor.outer, factor.inner, outer_prior, inner_prior)))
    for name, value in curvature.diagonal.items():
        added = prior.precision[name]
        is_bad = ~(value + added > _LEAST_PRECISION * added)
        result.repaired += int(is_bad.sum())
        result.blocks.append((BlockSpec("diag", (name,)), (torch.where(is_bad, added, value + added).flatten(),)))
    return result


def _add_full(point: Point, prior: PriorCurvature, total: Tensor, result: Result) -> None:
    index = result.curvature.index
    prior_matrix = torch.diag(point.flat(prior.precision))
    places = point.by_site(torch.arange(point.size, device=prior_matrix.device))
    for name, joint in prior.joint.items():
        place = places[name].flatten()
        prior_matrix[place[:, None], place] = joint
    prior_matrix = prior_matrix if index is None else prior_matrix[index][:, index]
    lower, failed = torch.linalg.cholesky_ex((total + prior_matrix).double())
    rounding = len(total) * torch.finfo(total.dtype).eps * (total.diagonal() / prior_matrix.diagonal()).max()
    if not (int(failed) or rounding > 1):
        root = torch.linalg.solve_triangular(lower.mT, torch.eye(len(lower)).to(lower), upper=True)
    else:  # in units of the prior, where rounding is told from curvature
        lower = torch.linalg.cholesky(prior_matrix.double())
        half = torch.linalg.solve_triangular(lower, total.double(), upper=False)
        values, vectors = eigh(torch.linalg.solve_triangular(lower, half.mT, upper=False))
        above = 1 + settled(values, total.dtype)
        is_bad = above <= _LEAST_PRECISION
        result.repaired = int((is_bad | (above == 1)).sum())
        roots = vectors * torch.where(is_bad, 1.0, above).rsqrt()
        root = torch.linalg.solve_triangular(lower.mT, roots, upper=True)
        root = torch.linalg.qr(root.flip(0).mT)[1].mT.flip(0, 1)  # with the same product, and a triangle
        root = root * root.diagonal().sign()
    spec = BlockSpec("full", tuple(point.sites), None if index is None else len(index))
    result.blocks.append((spec, (root,) if index is None else (root, index)))


def product_of(matrix: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return d_O (O,) and d_I (I,) whose product is closest, in logs, to a matrix (O, I), and the largest error."""
    logs = matrix.log()
    rows, columns = logs.mean(1), logs.mean(0) - logs.mean()
    error = (logs - rows[:, None] - columns).abs().max()
    return rows.exp(), columns.exp(), math.exp(min(700.0, float(error)))


def complete(posterior: Posterior, setting: Any, source: Source, *, progress: bool) -> None:
    """Replace a mode by the Gaussian of a setting of the guide `Laplace`, and note it in the posterior's record."""
    bnn = posterior.bnn
    with seeded(posterior.seed, "latent sites"), fast_pyro():
        latents = latent_sites(bnn, *posterior.example)
    values = posterior.guide.mean()
    weights = {name: values[name] for name in bnn.site_names}
    others = {name: value for name, value in values.items() if name not in weights}
    with seeded(posterior.seed, "curvature"), fast_pyro(), poutine.block():
        setting, sites = checked_setting(setting, bnn, posterior.example, latents)
        prior = prior_curvature(bnn, weights, others, sites)
        if setting.subnetwork is not None and prior.joint:
            name = next(iter(prior.joint))
            raise InputError(f"Laplace: `subnetwork` needs a prior of independent weights, unlike that of {name!r}.")
        point = Point(bnn, weights, conditioned_likelihood(bnn, others), sites)
        data = examples(source, bnn, setting.batch_size, progress=progress)
        result = assemble(point, prior, likelihood_curvature(setting, point, prior, data))
        gaussian_setting = BlockGaussian(tuple(spec for spec, _ in result.blocks), setting.linearized)
        guide = BlockGuide(latents, gaussian_setting)
        with torch.no_grad():
            points = posterior.guide.points_by_name()
            guide.loc.copy_(torch.cat([points[name].reshape(-1) for name in guide.points_by_name()]))
        result.fill(guide, progress=progress)
        at_mode = log_likelihood(point, data, result.curvature)
        at_mode -= source.total_weight * float(source.y_scaler.log_volume())
        record = laplace_record(to_dict(setting), point, result, guide=guide, others=others, log_likelihood=at_mode)
    _tell(setting, prior, record)
    posterior.guide = guide
    table = with_guide_table(posterior.record.method, to_dict(gaussian_setting))
    posterior.note(method=table, laplace=record)


def examples(source: Source, bnn: BNN, batch_size: int, *, progress: bool) -> Examples:
    """Return the training data in parts, in the units of the model."""

    def one_pass() -> Iterator[Batch]:
        with progress_bar(total=source.num_data, desc="Laplace", unit="example", shown=progress, leave=False) as bar:
            for batch in source.one_pass(bnn, batch_size):
                yield batch
                bar.update(len(batch[0]))
                ONE_THREAD.let_waiting_in()

    return Examples(one_pass, batch_size)


def log_likelihood(point: Point, data: Examples, curvature: Curvature) -> float:
    """Return the log-likelihood of all data at the mode, in the units of the model, by a pass if it is not known."""
    if curvature.log_likelihood is not None:
        return curvature.log_likelihood
    with torch.no_grad():
        pairs = ((point.bnn.outputs(point.weights, x), targets) for x, *targets in data)
        parts = (log_probs(point.likelihood, f, *targets) for f, targets in pairs)
        return sum(float(part.double().sum()) for part in parts)


def laplace_record(
    setting: dict[str, Any],
    point: Point,
    result: Result,
    *,
    guide: BlockGuide,
    others: Mapping[str, Tensor],
    log_likelihood: float,
) -> LaplaceRecord:
    """Return the log evidence by Laplace's method, its parts in the original units of the targets, and the repairs.

    log p(D) = log p(D | w) + log p(w) + D / 2 log 2 pi - 1 / 2 log det (precision), given all sites not Gaussian.
    """
    log_prior, weights = 0.0, point.weights
    with torch.no_grad():
        laws = prior_laws(point.bnn, weights, others)
        blocks: list[Any] = guide.gaussian_blocks()
        for block in blocks:
            if block.dimension == sum(block.sizes):
                log_prior += float(sum(laws[name].log_prob(weights[name]).double().sum() for name in block.shapes))
            else:  # of the entries that the block covers
                entries = torch.cat([log_entries(laws[name], weights[name]).reshape(-1) for name in block.shapes])
                log_prior += float(entries[block.index].double().sum())
        log_det = float(guide.log_det())
    dimension = sum(block.dimension for block in guide.gaussian_blocks())
    return LaplaceRecord(
        setting=setting,
        log_evidence=log_likelihood + log_prior + 0.5 * dimension * math.log(2 * math.pi) - 0.5 * log_det,
        log_likelihood=log_likelihood,
        log_prior=log_prior,
        log_det=log_det,
        dimension=dimension,
        clipped=result.clipped,
        repaired=result.repaired,
        product_error=result.product_error,
        slow=result.curvature.slow,
    )


def _tell(setting: Laplace, prior: PriorCurvature, record: LaplaceRecord) -> None:
    if record.clipped:
        weights = f"{sum(record.clipped.values()):,} weights ({', '.join(record.clipped)})"
        fault = "stand where the log prior is not concave, and take 1 / variance of the prior for its curvature"
        remedy = "check it on held-out data, take a normal prior, or guide='mean_field'"
        warn_user(f"Laplace: {weights} {fault}, so their spread is a rough guess: {remedy}.")
    if prior.joint and setting.structure != "full":
        text = f"structure={setting.structure!r} takes the diagonal alone: structure='full' takes all of it"
        warn_user(f"Laplace: the prior correlates the entries of {', '.join(prior.joint)}, and {text}.")
    if record.repaired:
        fault = f"{record.repaired:,} directions of the curvature were not positive, or mere rounding"
        remedy = "train longer, use curvature='ggn', or float64"
        warn_user(f"Laplace: {fault}, and take the prior's precision: {remedy}.")
    if record.product_error:
        fault = f"the prior's precision of {', '.join(record.product_error)} is no product over inputs and outputs"
        stands_in = f"the closest, at most {max(record.product_error.values()):.3g} times off, stands in"
        warn_user(f"Laplace: {fault}, and {stands_in}: structure='full' or 'diag' take it exactly.")
    if record.slow:
        warn_user(f"Laplace: {', '.join(record.slow)} belong to layers of unknown structure, and took a slower path.")

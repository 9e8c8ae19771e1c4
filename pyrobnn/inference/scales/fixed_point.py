"""MacKay's fixed point: the next precisions of normal priors and the next noise, for groups of weights around a mode.

With gamma the number of weights that the data determine, the evidence is largest where alpha = gamma / sum w^2 and the
variance of the noise is the sum of squared errors / (targets - gamma) (MacKay 1992, "Bayesian Interpolation").
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyrobnn import priors
from pyrobnn._core.errors import InputError
from pyrobnn.bnn import BNN
from pyrobnn.curvature.prior import prior_laws
from pyrobnn.distributions.support import base_of
from pyrobnn.inference import limits
from pyrobnn.priors.given import choices_of

_PRECISIONS = (1e-12, 1e8)
_UNDETERMINED_SHARE = 1e-8
_LEAST_SQUARES = 1e-30
_LEAST_FREE = 1e-3
"""Least share of the targets that is left to tell the noise by."""


@dataclasses.dataclass(frozen=True)
class Hyperprior:
    """The prior of scales: gamma priors of precisions, and a price for weights."""

    counts: float = 0.0  # weights that each group counts beside those that the data determine
    share: float | None = None  # their mean square, in declared variances, of at most all weights; None: it is 1
    noise_counts: float = 0.0  # targets that normal noise counts likewise, of a tenth of the variance of the targets
    penalty: float = 0.0  # nats taken off the leave-one-out score for each weight that the data determine

    @classmethod
    def of_real_targets(cls, num_data: float, num_inputs: int, counts: float | None = None) -> "Hyperprior":
        """Return the prior for real targets; without counts, fewer than six rows per input are few."""
        if counts is None:
            counts = limits.FEW_ROW_COUNTS if num_data < limits.ROWS_FOR_EACH_INPUT * num_inputs else 0.0
        return cls(counts, limits.PRIOR_SHARE, min(counts, 1.0), penalty=1.0)

    @classmethod
    def of_labels(cls, counts: float | None = None, *, is_linear: bool = False) -> "Hyperprior":
        """Return the prior for labels and counts, of which any number of rows is few."""
        share = limits.SHARE_OF_LINEAR_LABELS if is_linear else limits.PRIOR_SHARE
        return cls(limits.LABEL_COUNTS if counts is None else counts, share, penalty=1.0)


def next_variance(squares: Tensor, free: Tensor, targets: float) -> Tensor:
    """Return the next variance of the noise from the sum of squared errors and targets - gamma, of so many targets."""
    return squares / free.clamp_min(_LEAST_FREE * targets)


@dataclasses.dataclass(frozen=True, eq=False)
class PriorScales:
    """Precisions of normal priors that groups of weights share. All but `loc` is flat over the sites, (P,)."""

    loc: dict[str, Tensor]  # means, by site
    precision: Tensor  # in double precision
    group: Tensor  # the number of each weight's group
    is_held: Tensor  # whether the prior of a weight stays
    counted: Tensor  # 1 for weights that their group counts, else 0
    extra_counts: Tensor  # weights that the hyperprior counts in the group of each
    extra_squares: Tensor  # the sum of their squares
    undetermined: Tensor | None  # precisions of groups that the outputs do not depend on; None: they stay

    @classmethod
    def of(
        cls,
        bnn: BNN,
        weights: Mapping[str, Tensor],
        group: Tensor,
        hyperprior: Hyperprior = Hyperprior(),
        held: Collection[str] = (),
    ) -> "PriorScales":
        """Return the scales that a model declares for some weights, under a hyperprior; sites may be held."""
        normals = {name: _normal_of(law, name) for name, law in prior_laws(bnn, weights, {}).items()}
        loc = {name: law.loc.detach().expand(weights[name].shape) for name, law in normals.items()}
        scales = [law.scale.detach().expand(weights[name].shape).reshape(-1) for name, law in normals.items()]
        precision = torch.cat(scales).double().pow(-2)
        ones, is_held = torch.ones_like(precision), [torch.full_like(mean, name in held) for name, mean in loc.items()]
        counts = squares = hyperprior.counts * ones
        if hyperprior.share is not None:
            sizes = sum_by_group(group, ones)
            counts = counts.minimum(sizes)
            squares = counts * hyperprior.share * sum_by_group(group, 1 / precision) / sizes
        return cls(loc, precision, group, _flat(is_held).bool(), ones, counts, squares, undetermined=precision)

    def fixed_point(self, determined: Tensor, squares: Tensor, rounding: float = 0.0) -> Tensor:
        """Return the next precisions, (gamma + counts) / (sum w^2 + counted squares) of each group.

        `determined` adds up to gamma, with a relative error of `rounding`; `squares` are squared distances to the means
        of the prior. Groups that the outputs do not depend on, as those of a constant input, have no next precision.
        """
        gamma, total, sizes = (sum_by_group(self.group, values) for values in (determined, squares, self.counted))
        is_determined = gamma > max(_UNDETERMINED_SHARE, rounding) * sizes
        moved = (gamma + self.extra_counts) / (total + self.extra_squares).clamp_min(_LEAST_SQUARES)
        return torch.where(is_determined, moved, self.precision if self.undetermined is None else self.undetermined)

    def updated(self, determined: Tensor, squares: Tensor) -> "PriorScales":
        """Return the scales after a step of the fixed point, within bounds."""
        return self._moved(self.fixed_point(determined, squares).clamp(*_PRECISIONS))

    def multiplied(self, factor: float) -> "PriorScales":
        return self._moved(factor * self.precision)

    def narrowed(self, name: str, ratio: Tensor) -> "PriorScales":
        """Return scales of a site times numbers for its columns."""
        precisions = self.by_site()
        precisions[name] = precisions[name] / ratio.to(self.precision).square()
        return self.with_precisions(precisions)

    def with_precisions(self, precisions: Mapping[str, Tensor]) -> "PriorScales":
        """Return scales with the precisions of each site."""
        return self._moved(_flat(precisions.values()))

    def _moved(self, precision: Tensor) -> "PriorScales":
        return dataclasses.replace(self, precision=torch.where(self.is_held, self.precision, precision))

    def by_site(self) -> dict[str, Tensor]:
        """Return the precisions by site."""
        parts = self.precision.split([loc.numel() for loc in self.loc.values()])
        return {name: part.view(loc.shape) for (name, loc), part in zip(self.loc.items(), parts, strict=True)}

    def deviation(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return weights less the means of their prior, flat."""
        return _flat(weights[name] - loc for name, loc in self.loc.items())

    def model(self, declared: BNN, numbers: Mapping[str, Any], target_scale: Tensor, fitted: BNN) -> BNN:
        """Return a declared model with these scales, numbers of its likelihood, and all else that is fitted."""
        like = fitted.like
        scales = {name: value.rsqrt().to(like) for name, value in self.by_site().items()}
        prior = {name: _normal_prior(name, self.loc[name], scale) for name, scale in scales.items()}
        likelihood = dataclasses.replace(declared.settings["likelihood"], **numbers)
        left_out = {f"likelihood.{name}" for name in numbers}
        state = fitted.net.state_dict(prefix="net.") | fitted.likelihood.state_dict(prefix="likelihood.")
        return declared.fresh(
            {"prior": prior | _others(declared, list(scales)), "likelihood": likelihood},
            device=like.device,
            target_scale=target_scale,
            state={name: value for name, value in state.items() if name not in left_out},
        )


def _flat(values: Iterable[Tensor]) -> Tensor:
    return torch.cat([value.reshape(-1) for value in values])


def sum_by_group(group: Tensor, values: Tensor) -> Tensor:
    """Return for each weight the sum over its group."""
    return values.new_zeros(int(group.max()) + 1).index_add(0, group, values)[group]


def first_layer(weights: Mapping[str, Tensor], num_inputs: int) -> str | None:
    """Return the name of the first matrix with a column per input, or None."""
    return next((name for name, value in weights.items() if value.ndim == 2 and value.shape[1] == num_inputs), None)


def groups_of(weights: Mapping[str, Tensor], per: str, num_inputs: int | None = None) -> Tensor:
    """Return the number of each weight's group, flat: of all, of a site, or of each weight alone.

    "input" is "site", with a group for each column of the first layer if there is a number of inputs.
    """
    first = first_layer(weights, num_inputs) if per == "input" and num_inputs is not None else None
    groups, start = list[Tensor](), 0
    for name, value in weights.items():
        group = torch.arange(value.numel()) if per == "weight" else torch.zeros(value.numel(), dtype=torch.int64)
        group = torch.arange(value.shape[1]).expand(value.shape).reshape(-1) if name == first else group
        groups.append(group + start)
        start += 0 if per == "all" else int(group.max()) + 1
    return torch.cat(groups).to(next(iter(weights.values())).device)


def _normal_of(law: Any, name: str) -> Any:
    """Return the normal distributions of the entries of a site."""
    law = base_of(law)
    if not isinstance(law, dist.Normal):
        raise InputError(
            f"The evidence tunes the precision of normal priors, but {name!r} has {type(law).__name__}: compare "
            "fits with other settings on held-out data, or take a prior with latent scales, such as Hierarchical()."
        )
    return law


def _normal_prior(name: str, loc: Tensor, scale: Tensor) -> Any:
    """Return the normal prior of a site: with a single number if all entries share it."""
    if bool((scale == scale.reshape(-1)[0]).all() & (loc == loc.reshape(-1)[0]).all()):
        return priors.Normal(scale=float(scale.reshape(-1)[0]), loc=float(loc.reshape(-1)[0]))
    return priors.FromPosterior({name: (loc.contiguous(), scale.contiguous())})


def _others(old: BNN, sites: list[str]) -> dict[str, Any]:
    """Return the priors of the parameters that were not tuned, by pattern."""
    names = [name for name, value in old.net.named_parameters() if value.requires_grad] + list(old.site_names)
    choices = dict(choices_of(old.settings["prior"]))
    first = {next((p for p in choices if fnmatchcase(name, p)), None) for name in names if name not in sites}
    return {pattern: choice for pattern, choice in choices.items() if pattern in first}

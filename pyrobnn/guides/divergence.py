"""KL divergences of the sites of a guide from their priors, without draws."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from pyro.distributions.util import sum_rightmost
from torch import Tensor
from torch.distributions import Normal, constraints, kl_divergence

from pyrobnn.distributions.latents import ScaleMixtureNormal
from pyrobnn.distributions.support import base_of
from pyrobnn.guides.joint import RealPart

KL = Literal["auto", "mc", "analytic", "quadrature"]
_QUADRATURE_POINTS = 32


def quadrature_kl(q: Any, p: Any) -> Tensor:
    """Return KL(q || p), the batch shape of q, without a draw: in closed form, else by quadrature for a normal q.

    It is -entropy(q) - E_q[log p] for each entry; entries that depend on each other count their joint entropy. A
    `ScaleMixtureNormal` computes its expectation itself. For any other p it is Gauss-Hermite with 32 nodes: good if
    log p is smooth over the width of q, blind to features of p between two nodes.

    Raises:
        NotImplementedError: no closed form, and q is not an elementwise normal or p not elementwise on all reals.
    """
    if isinstance(q, RealPart) and q.normal:
        return quadrature_kl(q.entries.to_event(q.event_dim), p) + q.excess
    try:
        return kl_divergence(q, p)
    except NotImplementedError:
        entries, density = base_of(q), base_of(p)
        normal = isinstance(entries, Normal) and type(entries).log_prob is Normal.log_prob
        normal = normal and isinstance(density.support, type(constraints.real))
        if not normal or density.event_shape or q.event_shape != p.event_shape:
            raise
    if isinstance(density, ScaleMixtureNormal):
        log_p = density.expected_log_prob(entries.loc, entries.scale)
    else:
        rule = np.polynomial.hermite_e.hermegauss(_QUADRATURE_POINTS)
        nodes, weights = (entries.loc.new_tensor(each).view(-1, *[1] * entries.loc.ndim) for each in rule)
        log_p = (density.log_prob(entries.loc + entries.scale * nodes) * (weights / weights.sum())).sum(0)
    return sum_rightmost(-entries.entropy() - log_p, q.event_dim)


DIVERGENCES: dict[KL, Callable[[Any, Any], Tensor]] = {"analytic": kl_divergence, "quadrature": quadrature_kl}
"""KL(q || p) of a site without its draw, for each setting that needs none."""

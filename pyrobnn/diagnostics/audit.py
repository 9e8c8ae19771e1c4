"""The audited objective: every term of the ELBO on its true scale, with its Monte Carlo error and its closed form."""

import contextlib
import dataclasses
import math
from typing import Any

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import kl_divergence

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive, seeded
from pyrobnn._torch.private import tree_map
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import in_memory
from pyrobnn.guides.base import built
from pyrobnn.guides.empirical import require_density
from pyrobnn.posterior.mixture import require_single
from pyrobnn.posterior.posterior import Posterior, latent_names

_FEW_ROWS, _ROUNDING = 100, 1e-3  # by which a linearised network is told from the network


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A Monte Carlo estimate in nats: its `mean`, with the standard error `stderr`."""

    mean: float
    stderr: float

    @classmethod
    def of(cls, draws: Tensor) -> "Estimate":
        """Return mean and standard error of independent draws (S,)."""
        values = draws.double()
        return cls(float(values.mean()), float(values.std()) / math.sqrt(len(values)))

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.stderr:.2f}"


@dataclasses.dataclass(frozen=True)
class SiteTerms:
    """The terms of a latent site with `size` entries, as those of `ElboReport` in total: KL = -entropy - E_q[log p]."""

    name: str
    size: int
    log_prior: Estimate
    entropy: Estimate
    kl: Estimate
    kl_exact: float | None


@dataclasses.dataclass(frozen=True)
class ElboReport:
    """The ELBO and its terms for the whole data set, in nats, in the original units of targets; str() is a table.

    Attributes:
        sites: terms by latent site; a joint guide of Pyro has one more, of size 0, with the entropy of all.
        log_likelihood: E_q[log p(D | w)], of the model that predicts: the linearised network where the guide takes it.
        log_prior, entropy, kl: E_q[log p(w)], -E_q[log q(w)] and KL(q || p) in total.
        kl_exact: KL(q || p) if every site has a closed form, else None.
        elbo: log_likelihood - kl, a lower bound on log p(D) where `reservation` is empty.
        num_draws: number of draws in the estimates.
        reservation: why `elbo` bounds the evidence of no network, in words: a linearised one, or weights at a point.
    """

    sites: tuple[SiteTerms, ...]
    log_likelihood: Estimate
    log_prior: Estimate
    entropy: Estimate
    kl: Estimate
    kl_exact: float | None
    elbo: Estimate
    num_draws: int
    reservation: str = ""

    @property
    def is_joint(self) -> bool:
        """Whether the guide has one density of all sites, whose entropy and KL exist in total alone."""
        return any(site.size == 0 for site in self.sites)

    def __str__(self) -> str:
        size = sum(site.size for site in self.sites)
        total = SiteTerms("total", size, self.log_prior, self.entropy, self.kl, self.kl_exact)
        rows: list[tuple[Any, ...]] = [("site", "size", "log prior", "entropy", "KL", "KL exact")]
        for of in [*(site for site in self.sites if site.size), total]:
            exact = "-" if of.kl_exact is None else f"{of.kl_exact:.2f}"
            known = (of.entropy, of.kl, exact) if of is total or not self.is_joint else ("-",) * 3
            rows.append((of.name, of.size, of.log_prior, *known))
        lines = [f"{name:<24}{size:>9}{p!s:>20}{q!s:>20}{kl!s:>20}{exact:>14}" for name, size, p, q, kl, exact in rows]
        lines += [f"expected log-likelihood {self.log_likelihood}", f"ELBO {self.elbo} {self.reservation}".rstrip()]
        return "\n".join(lines)


def elbo_report(posterior: Posterior, data: Any, *, num_draws: int = 1000, seed: int | None = None) -> ElboReport:
    """Estimate each term of the ELBO, per site and in total, beside the closed-form KL if it exists.

    The KL is not weighted by a temperature: this is the bound on the evidence, for any trained objective. Densities are
    those of targets in original units, so fits with and without `standardize` compare.

    Args:
        posterior: the posterior to audit; its guide needs a density, as from `SVI` or `SWAG`.
        data: the training data in original units, as `Data` or a pair (x, y).
        num_draws: number of draws, at least 2.
        seed: seed of the draws; the fit's if not given.

    Raises:
        InputError: a mixture, pruned weights, stored draws of Markov chains, or data that do not fit the model.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> report = bnn.elbo_report(posterior, data, num_draws=100)
        >>> abs(report.kl.mean - report.kl_exact) < 5 * report.kl.stderr
        True
    """
    require_single(posterior, "elbo_report")
    if num_draws < 2:
        raise InputError(f"`num_draws` must be at least 2 for a standard error, got {num_draws}.")
    data = in_memory(data, weighted=True)
    require_density(posterior.guide)
    if built(posterior.guide).pruned_sites():
        raise InputError("`elbo_report`: pruned weights are points at zero, without a density: take the fit before.")

    def with_likelihood(block: tuple[dict[str, Tensor], ...]) -> tuple[Any, ...]:
        *terms, values = block
        parts = [log_likelihoods(posterior, part, values).sum(1) for part in data.parts()]
        return (*terms, torch.stack(parts).sum(0))

    seed = derive(posterior.seed if seed is None else seed, "audit")
    blocks = posterior.map_traces(lambda trace: _of_latents(posterior, trace), with_likelihood, num_draws, seed=seed)
    log_q, log_p, kl_closed, log_likelihood = tree_map(lambda *parts: torch.cat(parts).double(), *blocks)
    log_p = dict.fromkeys(log_q, torch.zeros_like(log_likelihood)) | log_p  # 0 at the site that a joint guide adds
    exact = {name: float(values[0]) for name, values in kl_closed.items() if bool((values == values[0]).all())}
    sizes = {name: value[0].numel() for name, value in posterior.draw(1, seed=seed).items()}
    sites = [_site_terms(name, sizes.get(name, 0), log_p[name], q, exact.get(name)) for name, q in log_q.items()]
    total_p, total_q = (torch.stack([*values.values()]).sum(0) for values in (log_p, log_q))
    return ElboReport(
        tuple(sites),
        log_likelihood=Estimate.of(log_likelihood),
        log_prior=Estimate.of(total_p),
        entropy=Estimate.of(-total_q),
        kl=Estimate.of(total_q - total_p),
        kl_exact=sum(exact.values()) if len(exact) == len(log_q) else None,
        elbo=Estimate.of(log_likelihood + total_p - total_q),
        num_draws=num_draws,
        reservation=_reservation(posterior, data, seed),
    )


def _site_terms(name: str, size: int, log_p: Tensor, log_q: Tensor, kl_exact: float | None) -> SiteTerms:
    """Return the terms of a site from log p and log q of its draws (S,)."""
    return SiteTerms(name, size, Estimate.of(log_p), Estimate.of(-log_q), Estimate.of(log_q - log_p), kl_exact)


def _reservation(posterior: Posterior, data: Data, seed: int) -> str:
    """Return why the ELBO is no bound on the evidence of the network, in words; "" where it is one."""
    two, some = posterior.draw(2, seed=seed), next(data.parts(_FEW_ROWS))
    if any(bool((values[0] == values[1]).all()) for values in two.values()):
        return "(no bound: some sites are at a point, and a density at a point is no ELBO)"
    if not built(posterior.guide).linearized:
        return ""
    linear, itself = (log_likelihoods(posterior, some, two, linearized=each) for each in (True, False))
    is_same = torch.allclose(linear, itself, _ROUNDING, _ROUNDING)  # as without a hidden layer
    return "" if is_same else "(of the linearised model, not comparable)"


def _of_latents(posterior: Posterior, guide_trace: Any) -> tuple[dict[str, Tensor], ...]:
    """Return log q, log p, KL of a closed form, and values of a draw by site; the model runs on a single example."""
    model_trace = posterior.trace(poutine.replay(posterior.bnn, trace=guide_trace))
    guide_trace.compute_log_prob()
    latents = latent_names(guide_trace)
    model_trace.compute_log_prob(lambda name, site: name in latents)
    log_q = {name: torch.zeros(()) for name in latents}
    closed = dict[str, Tensor]()
    for name, node in guide_trace.nodes.items():
        if node["type"] == "sample":
            site = name.removesuffix("_unconstrained") if node["infer"].get("is_auxiliary") else name
            log_q[site] = log_q.get(site, torch.zeros(())) + node["log_prob_sum"]
    for name in latents:
        with contextlib.suppress(NotImplementedError):
            closed[name] = kl_divergence(guide_trace.nodes[name]["fn"], model_trace.nodes[name]["fn"]).sum()
    log_p = {name: model_trace.nodes[name]["log_prob_sum"] for name in latents}
    return log_q, log_p, closed, {name: guide_trace.nodes[name]["value"] for name in latents}


def log_prior_density(member: Posterior, draws: dict[str, Tensor]) -> Tensor:
    """Return the log prior density of each joint draw (B, *event), summed in float64, (B,)."""

    def density(values: dict[str, Tensor]) -> Tensor:
        trace = member.trace(poutine.condition(member.bnn, data=values))
        trace.compute_log_prob(lambda name, site: name in values)
        return torch.stack([trace.nodes[name]["log_prob_sum"].double() for name in values]).sum()

    with seeded(member.seed, "log prior"):
        return torch.func.vmap(density, randomness="different")(draws)


def log_likelihoods(fit: Posterior, data: Data, draws: dict[str, Tensor], *, linearized: bool | None = None) -> Tensor:
    """Return log p(y_n | x_n, w_s) in original units, times the weight of the example if given, (S, N)."""
    log_probs = fit.predict(data.x, draws=draws, linearized=linearized).draw_log_prob(data.y).double()
    return log_probs if data.weights is None else log_probs * data.weights.to(log_probs.device)

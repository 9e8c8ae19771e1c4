"""Curvature that is a sum of outer products of columns, pulled back through the network: Gauss-Newton and Fisher."""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.func import jvp, vjp

from pyrobnn._torch.inputs import X
from pyrobnn._torch.transforms import load_forward_mode
from pyrobnn.curvature.base import Curvature, Examples, Factors, Kind, Point, require_finite
from pyrobnn.curvature.metric import (
    Columns,
    DiagonalLess,
    Outer,
    diagonal_less,
    fisher_columns,
    log_probs,
    score_columns,
)
from pyrobnn.curvature.tracker import Pulled, Tracker
from pyrobnn.likelihoods.base import as_module


class OuterProducts(Kind):
    """J^T (sum_k v_k v_k^T) J, for columns v_k in the space of the outputs; it can be kept as anything."""

    structures: ClassVar[tuple[str, ...]] = ("kron", "full", "diag", "low_rank")

    @abstractmethod
    def columns(self, point: Point, f: Tensor, y: Tensor) -> Tensor:
        """Return the columns, (K, B, C), for outputs (B, C) and targets."""

    def information(self, point: Point, f: Tensor) -> DiagonalLess | None:
        """Return the sum of the columns' outer products where it needs no columns; None elsewhere."""
        return None

    def weighted_columns(self, point: Point, f: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return columns whose outer products count each example with its weight, if given."""
        columns = self.columns(point, f, y)
        return columns if weights is None else columns * weights.sqrt()[:, None]

    def diagonal(self, point: Point, data: Examples) -> Curvature:
        sweep = _Sweep(self, point, data)
        return sweep.found(diagonal=add_diagonal(sweep, point.sites))

    def full(self, point: Point, data: Examples, index: Tensor | None = None) -> Curvature:
        sweep = _Sweep(self, point, data, point.size)
        return sweep.found(full=add_full(sweep, point.sites, index), index=index)

    def kronecker(self, point: Point, data: Examples, *, sharing: str, joint_bias: bool) -> Curvature:
        sweep = _Sweep(self, point, data)
        factors, diagonal = add_kronecker(sweep, sharing, joint_bias=joint_bias)
        return sweep.found(factors=factors, diagonal=diagonal)

    def low_rank(self, point: Point, data: Examples, prior: Tensor, rank: int) -> Curvature:
        load_forward_mode()
        root = prior.rsqrt()

        def product(vector: Any) -> Any:
            v = torch.from_numpy(np.ascontiguousarray(vector)).reshape(-1).to(root) * root
            image = self._times(point, data, v)
            require_finite(image, ", ".join(point.sites))
            return (root * image).double().cpu().numpy()

        from scipy.sparse.linalg import LinearOperator, eigsh  # a quarter of a second

        start = np.random.default_rng(0).standard_normal(point.size)
        operator = LinearOperator((point.size, point.size), matvec=product, dtype=np.float64)
        values, vectors = eigsh(operator, k=rank, which="LA", v0=start)
        order = np.argsort(-values)
        parts = [torch.from_numpy(np.ascontiguousarray(part)).to(prior) for part in (vectors[:, order], values[order])]
        return Curvature(low_rank=(parts[0], parts[1].clamp_min(0)))

    def _times(self, point: Point, data: Examples, vector: Tensor) -> Tensor:
        """Return the curvature times a vector over the sites, with two passes through the network for each part."""
        primal = tuple(point.weights[name].detach() for name in point.sites)
        tangent = tuple(point.by_site(vector).values())
        total = torch.zeros_like(vector)
        for x, *targets in data:

            def outputs(*values: Tensor, x: X = x) -> Tensor:
                return point.bnn.outputs({**point.weights, **dict(zip(point.sites, values, strict=True))}, x)

            f, change, *_ = jvp(outputs, primal, tangent)
            columns = self.weighted_columns(point, f, *targets)
            pushed = (columns * (columns * change).sum(-1, keepdim=True)).sum(0)
            total += torch.cat([part.reshape(-1) for part in vjp(outputs, *primal)[1](pushed)])
        return total


class GGN(OuterProducts):
    """J^T F J, with F the Fisher information of a target in the outputs; never negative."""

    name: ClassVar[str] = "ggn"

    def columns(self, point: Point, f: Tensor, y: Tensor) -> Tensor:
        columns, present = fisher_columns(point.likelihood, f), as_module(point.likelihood).present(y)
        return columns if present is None else columns * present

    def information(self, point: Point, f: Tensor) -> DiagonalLess | None:
        return diagonal_less(point.likelihood, f)


class EmpiricalFisher(OuterProducts):
    """The sum over examples of the outer products of the gradients of the log-likelihood in the weights."""

    name: ClassVar[str] = "fisher"
    noise_power: ClassVar[int] = 2

    def columns(self, point: Point, f: Tensor, y: Tensor) -> Tensor:
        return score_columns(point.likelihood, f, y)


class _Sweep:
    """All data as pulled columns, in parts small enough for memory, with `numbers` more for each row."""

    def __init__(self, kind: OuterProducts, point: Point, data: Examples, numbers: int = 1) -> None:
        self._kind, self._point, self._data, self._numbers = kind, point, data, numbers
        self._slow: list[str] = []
        self._log_likelihood = 0.0

    def __iter__(self) -> Iterator[Pulled]:
        point, tracker, size, is_direct = self._point, None, 1, False
        for batch in self._data:
            if tracker is None:
                tracker = Tracker(point.bnn, point.weights, point.sites, batch[0][:1])
                self._slow = tracker.alone.others
                f = tracker.alone.f.detach()
                is_direct = tracker.look.is_last_layer and self._kind.information(point, f) is not None
                count = 0 if is_direct else len(self._kind.columns(point, f, batch[1][:1]))
                size = tracker.examples_at_once(count, self._numbers)
            for x, *targets in zip(*(values.split(size) for values in batch), strict=True):

                def columns_at(f: Tensor, targets: Sequence[Tensor] = targets, *, has: bool = not is_direct) -> Tensor:
                    return self._kind.weighted_columns(point, f, *targets) if has else f.new_empty(0, *f.shape)

                pulled = tracker.pull(x, columns_at)
                if is_direct:
                    pulled = dataclasses.replace(pulled, information=self._information(pulled.f, *targets[1:]))
                self._log_likelihood += float(log_probs(point.likelihood, pulled.f, *targets).detach().double().sum())
                yield dataclasses.replace(pulled, counts=targets[1]) if len(targets) > 1 else pulled

    def _information(self, f: Tensor, weights: Tensor | None = None) -> DiagonalLess | None:
        found = self._kind.information(self._point, f)
        return found if found is None or weights is None else found.weighted(weights)

    def found(self, **parts: Any) -> Curvature:
        """Return the curvature made of the parts, with the other results of the sweep."""
        return Curvature(**parts, slow=self._slow, log_likelihood=self._log_likelihood)


def add_diagonal(parts: Iterable[Pulled], sites: list[str]) -> dict[str, Tensor]:
    """Return the diagonal by site, in the shape of the site."""
    total: dict[str, Tensor] = {}
    for pulled in parts:
        _add_squares(total, pulled, sites)
    return total


def _add_squares(total: dict[str, Tensor], pulled: Pulled, sites: list[str]) -> None:
    squares = pulled.squares(sites)
    for name in sites:
        total[name] = total[name] + squares[name] if name in total else squares[name]


def add_full(parts: Iterable[Pulled], sites: list[str], index: Tensor | None = None) -> Tensor:
    """Return the whole matrix over the sites' entries in their order, or over some of them, (D, D).

    It is summed in double precision, so that rounding gives no curvature to directions without information in the data.
    """
    total: Tensor | None = None
    order: Tensor | None = None
    for pulled in parts:
        alone = pulled.only_matrix(sites) if index is None else None
        if alone is None:
            rows = pulled.rows(sites).flatten(0, 1).double()
            rows = rows if index is None else rows[:, index]
            total = rows.T @ rows if total is None else total.addmm_(rows.T, rows)
        else:
            _, a, order = alone
            total = _add_layer(total, pulled.outer(0), a.double())
    if total is None:
        raise ValueError("there were no data")
    if order is None:
        return total
    upper = total.view(len(order), -1).triu()  # blocks on and above the diagonal
    return (upper + upper.triu(1).T)[order][:, order]


def _add_layer(total: Tensor | None, outer: Outer, a: Tensor) -> Tensor:
    """Add a^T diag(sum_k g_o g_p) a for each pair of outputs o <= p of a layer and its inputs a (B, I), (O, I, O, I).

    Columns are summed before products are taken, which saves a factor of their number.
    """
    outputs, inputs = outer.row(0).shape[1], a.shape[1]
    total = a.new_zeros(outputs, inputs, outputs, inputs) if total is None else total
    for o in range(outputs):
        products = outer.row(o).double()
        right = (products[:, :, None] * a[:, None]).flatten(1)
        rows = total[o].view(inputs, -1)[:, o * inputs :]
        rows.addmm_(a.T, right)
    return total


def add_kronecker(
    parts: Iterable[Pulled], sharing: str, *, joint_bias: bool
) -> tuple[list[Factors], dict[str, Tensor]]:
    """Return factors of the layers that are matrices, and the diagonal of all other sites.

    With weights at T positions of each of N examples, "expand" takes (N T)^-1 (sum g g^T) (x) (sum a a^T), sums over
    both; "reduce" takes N^-1 (sum g g^T) (x) (sum a a^T) with g added and a averaged over positions.
    """
    by_sites: dict[tuple[str, ...], Factors] = {}
    rest: dict[str, Tensor] = {}
    for pulled in parts:
        places = [place for place, use in enumerate(pulled.uses) if use.kind == "matrix"]
        for place in places:
            use = pulled.uses[place]
            for sites in [tuple(use.sites)] if joint_bias else [(name,) for name in use.sites]:
                _add(by_sites, sites, pulled, place, sharing)
        in_factors = {name for place in places for name in pulled.uses[place].sites}
        _add_squares(rest, pulled, [name for name in pulled.shapes if name not in in_factors])
    for factors in by_sites.values():
        factors.inner /= factors.count
    return list(by_sites.values()), rest


def _add(
    by_sites: dict[tuple[str, ...], Factors], sites: tuple[str, ...], pulled: Pulled, place: int, sharing: str
) -> None:
    use, g, counts = pulled.uses[place], pulled.gradients[place], pulled.counts
    is_reduced = sharing == "reduce"
    g = g.sum(2) if is_reduced else g.flatten(1, 2)
    a = use.inputs_of(sites, use.inputs.mean(1) if is_reduced else use.inputs.flatten(0, 1))
    if sites not in by_sites:
        outer, inner = g.new_zeros(g.shape[2], g.shape[2]), a.new_zeros(a.shape[1], a.shape[1])
        by_sites[sites] = Factors(sites, use.transposed, outer, inner)
    factors = by_sites[sites]
    factors.outer += Columns(g).total() if pulled.information is None else pulled.information.total()
    of_rows = None if counts is None else counts.repeat_interleave(len(a) // len(counts))
    factors.inner.addmm_((a if of_rows is None else a * of_rows[:, None]).T, a)
    factors.count += float(len(a) if of_rows is None else of_rows.sum())

"""Curvature of the negative log-likelihood, summed over the data, in each structure.

Every function takes parts of the data as columns pulled back through the network (`Pulled`). Their outer products are
the curvature. Memory holds one part at a time.
"""

from collections.abc import Iterable

from torch import Tensor

from pyrobnn.curvature.base import Factors
from pyrobnn.curvature.metric import Columns, Outer
from pyrobnn.curvature.tracker import Pulled


def diagonal(parts: Iterable[Pulled], sites: list[str]) -> dict[str, Tensor]:
    """Return the diagonal by site, in the shape of the site."""
    total: dict[str, Tensor] = {}
    for pulled in parts:
        _add_squares(total, pulled, sites)
    return total


def _add_squares(total: dict[str, Tensor], pulled: Pulled, sites: list[str]) -> None:
    squares = pulled.squares(sites)
    for name in sites:
        total[name] = total[name] + squares[name] if name in total else squares[name]


def full(parts: Iterable[Pulled], sites: list[str], index: Tensor | None = None) -> Tensor:
    """Return the whole matrix over the sites' entries in their order, or over some of them, (D, D).

    It is summed in double precision. With rounding to 1e-7 of the largest eigenvalue, directions without information in
    the data would have more curvature than the prior if the noise is small.
    """
    total: Tensor | None = None
    order: Tensor | None = None
    for pulled in parts:
        alone = pulled.only_matrix(sites) if index is None else None
        if alone is None:
            total = _add_rows(total, pulled, sites, index)
        else:
            _, a, order = alone
            total = _add_layer(total, pulled.outer(0), a.double())
    if total is None:
        raise ValueError("there were no data")
    return total if order is None else _symmetric(total)[order][:, order]


def _add_rows(total: Tensor | None, pulled: Pulled, sites: list[str], index: Tensor | None) -> Tensor:
    rows = pulled.rows(sites).flatten(0, 1).double()
    rows = rows if index is None else rows[:, index]
    return rows.T @ rows if total is None else total.addmm_(rows.T, rows)


def _add_layer(total: Tensor | None, outer: Outer, a: Tensor) -> Tensor:
    """Add a^T diag(sum_k g_o g_p) a for each pair of outputs o <= p of a layer, (O, I, O, I).

    Columns are summed before products are taken, which saves a factor of their number.

    Args:
        total: the sum so far.
        outer: outer products of derivatives in the outputs.
        a: inputs with the bias's input as the last column, (B, I).
    """
    outputs, inputs = outer.row(0).shape[1], a.shape[1]
    total = a.new_zeros(outputs, inputs, outputs, inputs) if total is None else total
    for o in range(outputs):
        products = outer.row(o).double()
        right = (products[:, :, None] * a[:, None]).flatten(1)
        rows = total[o].view(inputs, -1)[:, o * inputs :]
        rows.addmm_(a.T, right)
    return total


def _symmetric(total: Tensor) -> Tensor:
    """Return the whole matrix from the summed blocks on and above the diagonal."""
    matrix = total.view(total.shape[0] * total.shape[1], -1)
    upper = matrix.triu()
    return upper + upper.triu(1).T


def kronecker(parts: Iterable[Pulled], sharing: str, *, joint_bias: bool) -> tuple[list[Factors], dict[str, Tensor]]:
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
    if sharing == "reduce":
        g, inputs = g.sum(2), use.inputs.mean(1)
    else:
        g, inputs = g.flatten(1, 2), use.inputs.flatten(0, 1)
    a = use.inputs_of(sites, inputs)
    if sites not in by_sites:
        outer, inner = g.new_zeros(g.shape[2], g.shape[2]), a.new_zeros(a.shape[1], a.shape[1])
        by_sites[sites] = Factors(sites, use.transposed, outer, inner)
    factors = by_sites[sites]
    factors.outer += Columns(g).total() if pulled.information is None else pulled.information.total()
    if counts is None:
        factors.inner.addmm_(a.T, a)
        factors.count += float(len(a))
    else:
        of_rows = counts.repeat_interleave(len(a) // len(counts))
        factors.inner.addmm_((a * of_rows[:, None]).T, a)
        factors.count += float(of_rows.sum())

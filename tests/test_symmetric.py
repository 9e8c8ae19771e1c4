import pytest
import torch

from pyrobnn._torch.matrices import eigh

ROOT = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
MATRIX = ROOT @ ROOT.T


@pytest.mark.parametrize("fails", [None, "raises", "gives NaN"])
def test_eigenvectors_and_eigenvalues_make_the_matrix_also_where_single_precision_fails(fails, monkeypatch):
    real, seen = torch.linalg.eigh, []

    def of_lapack(matrix):
        seen.append(matrix.dtype)
        if fails == "raises" and matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("linalg.eigh: The algorithm failed to converge")
        values, vectors = real(matrix)
        if fails == "gives NaN" and matrix.dtype == torch.float32:
            vectors[2] = torch.nan
        return values, vectors

    monkeypatch.setattr(torch.linalg, "eigh", of_lapack)
    values, vectors = eigh(MATRIX)
    assert seen == ([torch.float32, torch.float64] if fails else [torch.float32])
    assert values.dtype == vectors.dtype == torch.float32
    torch.testing.assert_close(vectors * values @ vectors.T, MATRIX, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(6), rtol=0, atol=1e-5)


def of_rank(size, rank, dtype):
    """A sum of outer products, added up in parts as curvature is, of columns whose mean is not 0."""
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros(size, size, dtype=dtype)
    for part in torch.rand(rank, size, generator=generator, dtype=dtype).split(10):
        total.addmm_(part.T, part)
    return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rank", "is_quick"), [(1, True), (40, True), (60, True), (70, False), (600, False)])
def test_a_large_matrix_of_low_rank_is_taken_apart_without_lapacks_eigenvectors_of_all_of_it(
    rank, is_quick, dtype, monkeypatch
):
    """Up to an eighth of its rows. The error is some units of rounding; that of LAPACK is 42 of them for rank 600."""
    monkeypatch.setattr("pyrobnn._torch.matrices.LARGE", 500)
    monkeypatch.setattr("pyrobnn._torch.matrices._FIRST_RANK", 20)
    matrix, sizes, real = of_rank(500, rank, dtype), [], torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda of: sizes.append(len(of)) or real(of))
    state = torch.get_rng_state()
    values, vectors = eigh(matrix)
    assert torch.equal(state, torch.get_rng_state())
    assert (max(sizes) < 500) == is_quick
    assert bool((values.diff() >= 0).all())
    eps = torch.finfo(dtype).eps
    assert float((vectors * values @ vectors.T - matrix).norm() / matrix.norm()) < (20 if is_quick else 100) * eps
    assert float((vectors.T @ vectors - torch.eye(500, dtype=dtype)).abs().max()) < 50 * eps


def test_small_eigenvalues_beside_a_large_one_are_no_low_rank(monkeypatch):
    """A mean that is far from 0 makes one eigenvalue large; the others count, too."""
    monkeypatch.setattr("pyrobnn._torch.matrices.LARGE", 400)
    rows = torch.randn(400, 400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    matrix = (rows.T @ rows + 1e6 * torch.ones(400, 400)).float()
    values, _ = eigh(matrix)
    exact = torch.linalg.eigvalsh(matrix.double())
    torch.testing.assert_close(values.double()[100:], exact[100:], rtol=0, atol=20 * 400 * 1e6 * 2**-23)
    assert float(values[200]) > 50

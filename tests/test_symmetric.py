import pytest
import torch

from pyrobnn._torch.symmetric import eigh

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

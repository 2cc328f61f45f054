"""MLA's projections of a few tokens against their definition, in each form that runs everywhere."""

from types import ModuleType

import numba
import pytest
import torch
from torch import Tensor

from hybridrt.kernels.cpu import mla_project, mla_project_pairs
from tests.harness.tolerance import assert_close

# With dtypes of queries and weights, and of absorbed queries and latents.
FORMS = [
    pytest.param(mla_project, torch.float32, torch.float32, id="float32"),
    pytest.param(mla_project, torch.bfloat16, torch.float32, id="bfloat16-in-lanes"),
    pytest.param(mla_project_pairs, torch.bfloat16, torch.float32, id="bfloat16-by-pairs"),
    pytest.param(mla_project_pairs, torch.bfloat16, torch.bfloat16, id="rounded"),
]
# Of `nope_dim`, `rank` and `v_dim`; rows of a weight are taken 32 or 64 at a time.
SIZES = [(64, 512, 64), (70, 100, 75), (33, 32, 33), (7, 13, 5), (1, 1, 1)]
HEADS, ROPE_DIM = 5, 6


def _inputs(rows: int, sizes: tuple[int, int, int], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Queries in two parts and latents, and both weights, which stand side by side as in a model.

    Around the queries and weights is NaN.
    """
    nope, rank, v_dim = sizes
    draw = torch.Generator().manual_seed(0)
    queries = torch.full((rows, HEADS, nope + ROPE_DIM + 2), torch.nan, dtype=dtype)
    queries[..., 1:-1].normal_(generator=draw)
    weights = torch.full((HEADS, nope + v_dim + 2, rank), torch.nan, dtype=dtype)
    weights[:, 1:-1].normal_(generator=draw).mul_(rank**-0.5)
    _, q_nope, q_pe, _ = queries.split([1, nope, ROPE_DIM, 1], dim=-1)
    _, w_uk, w_uv, _ = weights.split([1, nope, v_dim, 1], dim=1)
    return q_nope, q_pe, torch.randn(rows, HEADS, rank, generator=draw), w_uk, w_uv


@pytest.mark.parametrize("rows", [1, 3, 16, 37])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("form", "dtype", "between"), FORMS)
def test_equal_their_definition_whatever_the_threads(
    form: ModuleType,
    dtype: torch.dtype,
    between: torch.dtype,
    sizes: tuple[int, int, int],
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q_nope, q_pe, latents, w_uk, w_uv = _inputs(rows, sizes, dtype)
    latents = latents.to(between)
    absorbed = torch.einsum("thd,hdr->thr", q_nope.double(), w_uk.double())
    expanded = torch.einsum("thr,hvr->thv", latents.double(), w_uv.double())
    monkeypatch.setattr(form, "SMALL", 0)
    monkeypatch.setattr(form, "ABSORBED", between, raising=False)
    found: list[tuple[Tensor, Tensor]] = []
    for threads in (1, 2, 3, 16):
        monkeypatch.setattr(numba, "get_num_threads", lambda n=threads: n)
        out = torch.full(expanded.shape, torch.nan, dtype=dtype)
        form.expand_values(latents, w_uv, out)
        found.append((form.absorb(q_nope, q_pe, w_uk), out))
    for queries, values in found:
        assert torch.equal(queries, found[0][0]) and torch.equal(values, found[0][1])
    queries, values = found[0]
    assert torch.equal(queries[..., sizes[1] :], q_pe.to(between))
    _assert_rounded_once(queries[..., : sizes[1]], absorbed)
    _assert_rounded_once(values, expanded)


def _assert_rounded_once(found: Tensor, exact: Tensor) -> None:
    if found.dtype == torch.float32:
        assert_close(found, exact)
    else:
        error = (found.double() - exact).abs()
        assert (error <= exact.abs() * 2**-8 + 1e-5 * exact.abs().max()).all()

"""Rows and assignments sorted by expert, to the bit."""

import pytest
import torch

from tests.kernels.triton.conftest import ONE_DTYPE_HERE

Place = tuple[str, torch.dtype]


@ONE_DTYPE_HERE
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "hidden"),
    [(1, 1, 1, 1), (5, 7, 3, 33), (300, 40, 6, 16), (700, 3, 2, 5), (200, 600, 10, 40)],
)
def test_equals_a_stable_sort(
    place: Place, tokens: int, experts: int, top_k: int, hidden: int
) -> None:
    from hybridrt.kernels.triton.spread_rows import spread_rows

    draw = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, 2 * hidden, generator=draw).to(*place)[:, ::2]
    ids = torch.randint(experts, (tokens, 2 * top_k), generator=draw).to(place[0])[:, :top_k]
    if tokens == 700:
        ids[:650] = 1  # crowded
    spread = spread_rows(x, ids, experts)
    order = ids.flatten().argsort(stable=True)
    assert torch.equal(spread.rows, x[order // top_k])
    assert torch.equal(spread.expert_ids, ids.flatten()[order])
    assert torch.equal(spread.places.flatten()[order].cpu(), torch.arange(len(order)).int())
    ends = torch.bincount(ids.flatten(), minlength=experts).cumsum(0)
    assert torch.equal(spread.ends, ends.int())


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "rows"),
    [(1, 1, 1, 16), (300, 40, 6, 16), (700, 3, 2, 64), (200, 600, 10, 16), (0, 4, 2, 64)],
)
@ONE_DTYPE_HERE
def test_tiles_hold_each_place_once(
    place: Place, tokens: int, experts: int, top_k: int, rows: int
) -> None:
    from hybridrt.kernels.triton.sort_by_expert import sort_by_expert

    draw = torch.Generator().manual_seed(tokens)
    ids = torch.randint(experts, (tokens, top_k), generator=draw).to(place[0])
    ids[: tokens // 2] = experts - 1  # crowded
    sort = sort_by_expert(ids, experts, rows)
    assert torch.equal(sort.order.long(), ids.flatten().argsort(stable=True))
    held = [tile for tile in sort.tiles.t().tolist() if tile[0] >= 0]
    assert [place for _, first, stop in held for place in range(first, stop)] == [
        *range(tokens * top_k)
    ]
    for expert, first, stop in held:
        assert stop - first <= rows
        assert set(sort.expert_ids[first:stop].tolist()) == {expert}
    counts = ids.flatten().bincount(minlength=experts)
    assert len(held) == int((counts + rows - 1).div(rows, rounding_mode="floor").sum())

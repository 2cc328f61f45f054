"""Rows sorted by expert, to the bit."""

import pytest
import torch

Place = tuple[str, torch.dtype]


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

"""Every format in one buffer: what a layer writes changes its bytes and no others.

The buffer is poisoned and has layers of all kinds, with sizes that would break alignment.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from hybridrt.cache.plan import CachePlan, LayerPlan
from hybridrt.cache.pool import POISON, Pool
from hybridrt.cache.spec import ALIGNMENT, CacheSpec, State, Window, align
from hybridrt.layers.cached import CachedLayer
from tests.cache.stand_ins import CPU, StandIn, plan_of

BLOCK, R = 3, 2  # tokens of a kernel block, and kernel blocks of a page
BF16, F32, F16 = torch.bfloat16, torch.float32, torch.float16
FP8, I8 = torch.float8_e4m3fn, torch.int8


Tensors = tuple[str, tuple[int, ...], torch.dtype]


def tokens(*states: Tensors) -> CacheSpec:
    return CacheSpec("full", tuple(State(*state) for state in states), BLOCK)


def window(
    size: int, chunked: bool, *states: tuple[str, tuple[int, ...], torch.dtype]
) -> CacheSpec:
    named = tuple(State(*state) for state in states)
    return CacheSpec("window", named, BLOCK, Window(size, chunked))


def state(*states: Tensors) -> CacheSpec:
    return CacheSpec("state", tuple(State(*state) for state in states))


FORMATS = {
    "attention": tokens(("kv", (2, BLOCK, 10), BF16)),
    "attention, HND, unlike sizes": tokens(("kv", (3, BLOCK, 5 + 8), BF16)),
    "attention, NHD, unlike sizes": tokens(("kv", (BLOCK, 3, 5 + 8), BF16)),
    "attention, one head of one": tokens(("kv", (1, BLOCK, 1 + 1), F16)),
    "window": window(7, False, ("kv", (1, BLOCK, 9 + 4), BF16)),
    "window of another size": window(5, False, ("kv", (2, BLOCK, 3 + 3), F32)),
    "chunks": window(7, True, ("kv", (2, BLOCK, 7 + 7), BF16)),
    "latents": tokens(("c_kv", (BLOCK, 21), BF16), ("k_pe", (BLOCK, 3), BF16)),
    "latents, fp8": tokens(
        ("c_kv", (BLOCK, 21), FP8), ("k_pe", (BLOCK, 3), BF16), ("c_kv_scale", (BLOCK, 1), F32)
    ),
    "attention, fp8": tokens(("kv", (3, BLOCK, 5 + 8), FP8)),
    "attention, int8": tokens(
        ("k", (3, BLOCK, 5), I8),
        ("v", (3, BLOCK, 7), I8),
        ("k_scale", (3, BLOCK), F32),
        ("v_scale", (3, BLOCK), BF16),
    ),
    "attention, int8, a token first": tokens(
        ("k", (BLOCK, 1, 5), I8), ("v", (BLOCK, 1, 3), I8), ("scale", (BLOCK, 1, 2), F16)
    ),
    "mamba1": state(("conv_state", (3, 5), BF16), ("ssm_state", (5, 7), F32)),
    "mamba2": state(("conv_state", (3, 13), BF16), ("ssm_state", (3, 4, 5), F32)),
    "mamba2, all in bfloat16": state(("conv_state", (3, 13), BF16), ("ssm_state", (3, 5, 5), BF16)),
    "short conv": state(("conv_state", (2, 9), BF16)),
    "gated delta net": state(("conv_state", (3, 11), BF16), ("ssm_state", (3, 5, 3), F32)),
    "kda": state(
        ("q_conv_state", (3, 3), BF16),
        ("k_conv_state", (3, 3), BF16),
        ("v_conv_state", (3, 5), BF16),
        ("ssm_state", (1, 3, 5), F32),
    ),
    "lightning": state(("kv_state", (3, 5, 5), F32)),
    "a single byte": state(("flag", (1,), I8)),
}


class Keeper(CachedLayer):
    """A layer of any format, which keeps the views that it is given."""

    mixer = "stand-in"

    def __init__(self, name: str, spec: CacheSpec) -> None:
        super().__init__()
        self.name, self._spec = name, spec

    @property
    def cache_spec(self) -> CacheSpec:
        return self._spec

    def _bind(self, *views: Tensor) -> None:
        self.views = views


@dataclass
class Bound:
    plan: CachePlan
    pool: Pool
    layers: dict[str, Keeper]
    rows: dict[str, LayerPlan]

    def where(self, name: str, block: int) -> Iterator[tuple[int, int]]:
        """First and last byte in the pool of each of a layer's states, by formula."""
        row = self.rows[name]
        begin = block * self.plan.group(row.group).block_stride + row.offset
        for part in self.layers[name].cache_spec.states:
            yield begin, begin + part.num_bytes
            begin += align(part.num_bytes)


@pytest.fixture(scope="module")
def bound() -> Bound:
    plan = plan_of(
        [StandIn(spec) for spec in FORMATS.values()],
        2**16,
        page_size=BLOCK * R,
        kernel_block_size=BLOCK,
    )
    pool = Pool(plan, CPU)
    layers = {name: Keeper(name, spec) for name, spec in FORMATS.items()}
    rows = dict(zip(FORMATS, plan.layers, strict=True))
    for name, layer in layers.items():
        layer.bind_kv_cache(pool.layer_pages(rows[name]))
    return Bound(plan, pool, layers, rows)


def test_all_kinds_share_the_buffer(bound: Bound) -> None:
    kinds = [group.kind for group in bound.plan.groups]
    assert kinds == ["full", "window", "window", "window", "state"]
    assert all(group.blocks_per_page in (1, R) for group in bound.plan.groups)


@pytest.mark.parametrize("name", FORMATS)
def test_writing_a_page_changes_exactly_its_bytes(bound: Bound, name: str) -> None:
    pool, layer = bound.pool, bound.layers[name]
    flat = pool.bytes.view(-1)
    r = bound.plan.group(bound.rows[name].group).blocks_per_page
    num_pages = len(layer.views[0]) // r
    for page in (0, 1, num_pages // 2, num_pages - 1):
        blocks = range(page * r, page * r + r)
        for index, view in enumerate(layer.views):
            flat.fill_(POISON)
            view[page * r : page * r + r] = 0
            runs = [list(bound.where(name, block))[index] for block in blocks]
            changed = (flat != POISON).nonzero()[:, 0]
            assert changed.tolist() == [byte for run in runs for byte in range(*run)]


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_written_is_read_back_beside_all_the_others(bound: Bound, name: str) -> None:
    bound.pool.bytes.fill_(POISON)
    written = {}
    for number, (other, layer) in enumerate(bound.layers.items()):
        block = block_of_own(bound, other, number)
        for index, view in enumerate(layer.views):
            written[other, index] = random_bytes(view[block], seed=10 * number + index)
            raw_of(view, block).copy_(written[other, index])
    layer = bound.layers[name]
    block = block_of_own(bound, name, list(FORMATS).index(name))
    for index, view in enumerate(layer.views):
        assert raw_of(view, block).equal(written[name, index])


def block_of_own(bound: Bound, name: str, number: int) -> int:
    """A kernel block in a slab that only this layer uses."""
    row = bound.rows[name]
    group = bound.plan.group(row.group)
    return number * group.pages_per_slab * group.blocks_per_page


def random_bytes(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    num_bytes = like.numel() * like.itemsize
    return torch.randint(0, 256, (num_bytes,), generator=generator, dtype=torch.uint8)


def raw_of(view: Tensor, block: int) -> Tensor:
    """The bytes of one block of a view, in place."""
    raw = view[block].flatten()
    assert raw.data_ptr() == view[block].data_ptr(), "a block is one run of bytes"
    return raw.view(torch.uint8)


@pytest.mark.parametrize("name", FORMATS)
def test_views_are_the_pool_aligned_and_never_move(bound: Bound, name: str) -> None:
    pool, layer = bound.pool, bound.layers[name]
    before = pool.bytes.data_ptr()
    for view, (begin, _) in zip(layer.views, bound.where(name, 0), strict=True):
        assert view.data_ptr() == before + begin and begin % ALIGNMENT == 0
        assert view.stride(0) * view.itemsize % ALIGNMENT == 0
        view[len(view) // 2] = 0
        view.zero_()
        assert view.data_ptr() == before + begin == pool.bytes.data_ptr() + begin
    assert {view.untyped_storage().data_ptr() for view in layer.views} == {before}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("wrong", [lambda size: size + 16, lambda size: size - 1])
def test_rows_of_another_size_are_refused_with_the_layer_and_both_sizes(
    name: str, wrong: Callable[[int], int]
) -> None:
    layer = Keeper(f"model.layers.3.{name}", FORMATS[name])
    own = layer.cache_spec.block_bytes
    pages = torch.zeros(4, wrong(own), dtype=torch.uint8)
    with pytest.raises(ValueError) as refusal:
        layer.bind_kv_cache(pages)
    for word in (layer.name, f"{wrong(own)} bytes", f"take {own}"):
        assert word in str(refusal.value)

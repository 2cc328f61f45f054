"""Bugs that other systems had (the numbers are FACTS.md's), through the whole engine."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridrt import LLM
from hybridrt.cache.pool import POISON
from hybridrt.layers.attention import Attention
from tests.harness.allocations import nothing_larger_than
from tests.harness.engines import (
    GREEDY,
    assert_all_same,
    assert_same,
    free_slabs,
    jobs,
    leave_room_for,
    open_llm,
    run,
)

HYBRIDS = (
    "hybrid_stack-every-mixer",
    "jamba-experts-every-second-layer",
    "bamba-attention-in-the-middle",
)
STATES_ONLY = ("mamba-tied-embeddings", "mamba2-two-groups")
ALL = (*HYBRIDS, *STATES_ONLY, "llama-grouped-heads", "deepseek_v2-greedy-routing")


def _live_pages(llm: LLM, request_id: str) -> list[set[int]]:
    """Physical ids, group by group, of a request that runs."""
    (name,) = (s for s in _sequences(llm) if s.startswith(request_id))
    return [set(table.physical_ids) for table in llm.engine.pages.tables(name)]


def _sequences(llm: LLM) -> list[str]:
    return list(llm.engine.pages)


@pytest.mark.parametrize("poison", [False, True], ids=["stale", "poison"])
@pytest.mark.parametrize("name", [*HYBRIDS, *STATES_ONLY])
def test_bug_08_attention_and_states_of_a_new_sequence_are_its_own(name: str, poison: bool) -> None:
    """It gets the pages of one that finished and of one that was aborted, and runs as if alone."""
    options: dict[str, Any] = {"poison_freed_pages": poison, "enable_prefix_caching": False}
    llm = open_llm(name, page_size=4, max_num_batched_tokens=16, **options)
    leave_room_for(llm, llm.plan.slabs_for(64))  # the longest job has fewer tokens
    held: dict[str, list[set[int]]] = {}

    def note() -> None:
        for request_id in _sequences(llm):
            pages = held.setdefault(request_id, [set() for _ in llm.plan.groups])
            for before, now in zip(pages, _live_pages(llm, request_id), strict=True):
                before |= now

    row = jobs(name)
    for number in range(free_slabs(llm)):  # slabs are used in turn: each of them now
        run(llm, {f"finished-{number}": (0, row["job-41"])}, after_step=note)
        run(llm, {f"aborted-{number}": (0, row["job-12"])}, {f"aborted-{number}": 3}, note)
    (output,) = run(llm, {"new": (0, row["job-17"])}, after_step=note).values()
    *earlier, new = held.values()
    for group, pages in enumerate(new):
        assert pages & set().union(*(one[group] for one in earlier)), "it had no page of another"
    assert_same(output, row["job-17"])


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16, 40])
@pytest.mark.parametrize("name", [*HYBRIDS, *STATES_ONLY])
def test_bug_09_states_go_on_at_every_chunk_of_a_prompt(name: str, chunk: int) -> None:
    llm = open_llm(name, max_num_batched_tokens=chunk)
    job = jobs(name)["job-41"]
    (output,) = run(llm, {"a": (0, job)}).values()
    assert_same(output, job)


def _free_bytes(llm: LLM) -> Tensor:
    """Which bytes of the pool no sequence holds."""
    pool = llm.engine.pool
    free = torch.ones(pool.bytes.shape, dtype=torch.bool)
    for request_id in _sequences(llm):
        for group, pages in zip(llm.plan.groups, _live_pages(llm, request_id), strict=True):
            free.view(-1).unflatten(0, (-1, group.page_stride))[list(pages)] = False
    return free


def _watch_free_bytes(llm: LLM) -> Callable[[], None]:
    """To be called after each step: free bytes are as they were, or have become poison."""
    pool = llm.engine.pool
    was_free, contents = _free_bytes(llm), pool.bytes.clone()

    def check() -> None:
        nonlocal was_free, contents
        free = _free_bytes(llm)
        freed = free & ~was_free
        assert pool.bytes[freed].eq(POISON).all(), "a freed byte is no poison"
        kept = free & was_free
        # A page may be given, filled and freed within one step: then it is poison.
        changed = pool.bytes[kept].ne(contents[kept])
        assert pool.bytes[kept][changed].eq(POISON).all(), "a write into free bytes"
        was_free, contents = free, pool.bytes.clone()

    return check


@pytest.mark.parametrize("name", ALL)
def test_bug_11_freed_pages_stay_poison_until_they_are_given_again(name: str) -> None:
    """Batches grow and shrink, requests are preempted and aborted; every byte is watched."""
    options: dict[str, Any] = {"cache_memory": "512KiB", "enable_prefix_caching": False}
    llm = open_llm(name, page_size=4, max_num_batched_tokens=24, **options)
    leave_room_for(llm, llm.plan.slabs_for(llm.max_model_len) + 2)
    row = jobs(name)
    requests = {request_id: (i, job) for i, (request_id, job) in enumerate(row.items())}
    requests["aborted"] = (2, row["job-17"])
    outputs = run(llm, requests, {"aborted": 6}, after_step=_watch_free_bytes(llm))
    assert_all_same(outputs, name)
    assert llm.engine.pool.bytes.eq(POISON).any()


@pytest.mark.parametrize("kernel_block_size", [1, 2, 8])
@pytest.mark.parametrize("kv_layout", ["HND", "NHD"])
def test_bug_12_pages_cut_into_kernel_blocks_mean_what_the_layer_reads(
    kv_layout: str, kernel_block_size: int
) -> None:
    """Bytes found from physical ids, by the order [kernel block][layer][bytes], are the layer's."""
    name = "hybrid_stack-attention-of-unlike-geometries"
    choices = {"kv_layout": kv_layout, "kernel_block_size": kernel_block_size}
    llm = open_llm(name, page_size=8, **choices)
    llm.add_request(list(range(3, 29)), GREEDY, "a")
    llm.step()
    (group,) = llm.plan.groups
    ((pages,),) = ([t.physical_ids for t in llm.engine.pages.tables(s)] for s in _sequences(llm))
    layers = llm.engine.model.cached_layers()
    for plan in llm.plan.layers:
        layer = layers[plan.name]
        assert isinstance(layer, Attention)
        for t in range(26):
            page, offset = pages[t // 8], t % 8
            block, j = divmod(offset, kernel_block_size)
            start = page * group.page_stride + block * group.block_stride + plan.offset
            raw = llm.engine.pool.bytes.view(-1)[start : start + plan.block_bytes]
            stored = raw.view(torch.float32)[: layer.kv[0].numel()]
            heads, _, content = layer.kv[0].shape
            shape = (heads, kernel_block_size, content)
            by_hand = (
                stored.view(shape)[:, j]
                if kv_layout == "HND"
                else stored.view(kernel_block_size, heads, content)[j]
            )
            kernel_id = page * (8 // kernel_block_size) + block
            assert torch.equal(layer.kv[kernel_id, :, j], by_hand)
            assert by_hand.abs().sum() > 0


@pytest.mark.parametrize("kv_layout", ["HND", "NHD"])
@pytest.mark.parametrize("name", ALL)
def test_bug_17_layers_read_and_write_the_pool_and_never_copy_it(name: str, kv_layout: str) -> None:
    llm = open_llm(
        name, cache_memory="64MiB", kv_layout=kv_layout, poison_freed_pages=False, page_size=4
    )
    pool = llm.engine.pool.bytes
    assert pool.numel() > 60 * 2**20
    for layer in llm.engine.model.cached_layers().values():
        views = [view for view in vars(layer).values() if isinstance(view, Tensor)]
        assert len(views) == len(layer.cache_spec.states)
        for view in views:
            assert view.untyped_storage().data_ptr() == pool.untyped_storage().data_ptr()
    requests = {request_id: (0, job) for request_id, job in jobs(name).items()}
    with nothing_larger_than(2**20, pool):
        outputs = run(llm, requests)
    assert_all_same(outputs, name)

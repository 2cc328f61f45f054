"""Pools of tokens: which tokens they are, and what is cached of them."""

import pytest
import torch

from hybridrt.cache.spec import CacheFormat, Window
from hybridrt.layers.indexer import IndexerConfig
from hybridrt.layers.mla import MLAConfig
from hybridrt.layers.pooled_sparse_mla import PooledIndexer, PooledSparseMLA, tokens_of_pools

INDEX = IndexerConfig(
    hidden_size=24, query_input_size=10, index_n_heads=3, index_head_dim=8, index_topk=12
)
LATENT = MLAConfig(
    hidden_size=24,
    num_attention_heads=3,
    q_lora_rank=10,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=0,
    v_head_dim=6,
)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("most", [1, 2, 4])
def test_pools_and_what_is_behind_the_last(size: int, most: int) -> None:
    draw = torch.Generator().manual_seed(size)
    pools, right = torch.full((40, most), -1, dtype=torch.int32), []
    for position in range(40):
        ended = (position + 1) // size
        chosen = sorted(torch.randperm(ended, generator=draw)[:most].tolist())
        pools[position, : len(chosen)] = torch.tensor(chosen, dtype=torch.int32)
        tokens = [size * i + j for i in chosen for j in range(size)]
        tokens += range(ended * size, position + 1)
        right.append(tokens + [-1] * (most * size + size - 1 - len(tokens)))
    found = tokens_of_pools(pools, torch.arange(40), size)
    assert found.dtype == torch.int32
    assert found.tolist() == right


@pytest.mark.parametrize("dtype", ["auto", "fp8_e4m3"])
def test_a_pool_takes_the_place_of_one_token(dtype: str) -> None:
    indexer = PooledIndexer(INDEX, 4)
    layer = PooledSparseMLA(LATENT, indexer)
    for part in (layer, indexer.pools, indexer.pools.chunk_inputs):
        part.cache_format = CacheFormat(kernel_block_size=16, kv_cache_dtype=dtype)  # pyright: ignore
    assert "k_index" not in [state.name for state in layer.cache_spec.states]
    (entries,) = indexer.pools.cache_spec.states
    assert (entries.shape, entries.dtype) == ((4, 8), torch.float32)
    window = indexer.pools.chunk_inputs.cache_spec
    assert window.window == Window(4, chunked=True)
    assert window.states[0].shape == (16, 16)


def test_a_selection_is_of_whole_pools() -> None:
    with pytest.raises(ValueError, match="index_topk=12 should be a multiple of 5"):
        PooledIndexer(INDEX, 5)

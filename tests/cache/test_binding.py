"""Binding: a layer gets its rows of the pool once, and only rows of its size."""

import pytest
import torch
from torch import Tensor

from hybridrt.cache.pool import Pool
from hybridrt.cache.spec import CacheSpec
from hybridrt.layers.cached import CachedLayer
from tests.cache.stand_ins import CPU, attention, plan_of, recurrent


class Recurrent(CachedLayer):
    """A layer that keeps whatever views it is given."""

    mixer = "stand-in"
    name = "model.layers.7.mixer"

    @property
    def cache_spec(self) -> CacheSpec:
        return recurrent(5, 3).cache_spec

    def _bind(self, *views: Tensor) -> None:
        self.conv_state, self.ssm_state = views


def test_a_bound_layer_reads_and_writes_the_pool_itself() -> None:
    plan = plan_of([attention(24), recurrent(5, 3)], 2**14)
    pool = Pool(plan, CPU)
    row = plan.layers[1]
    layer = Recurrent()
    layer.bind_kv_cache(pool.layer_pages(row))
    assert layer.conv_state.data_ptr() == pool.bytes.data_ptr() + row.offset
    layer.ssm_state[3] = torch.tensor([1.0, 2.0, 3.0])
    start = 3 * plan.group("state").block_stride + row.offset + 16
    assert pool.bytes.view(-1)[start : start + 12].view(torch.float32).tolist() == [1, 2, 3]


def test_binding_twice_is_refused_with_the_layer_and_both_sizes() -> None:
    layer = Recurrent()
    pages = torch.zeros(4, 32, dtype=torch.uint8)
    layer.bind_kv_cache(pages)
    with pytest.raises(RuntimeError, match=r"model\.layers\.7\.mixer is bound already: 32 .* 48"):
        layer.bind_kv_cache(torch.zeros(4, 48, dtype=torch.uint8))
    assert layer.conv_state.data_ptr() == pages.data_ptr()


def test_rows_of_the_wrong_size_are_refused_with_the_layer_and_both_sizes() -> None:
    layer = Recurrent()
    with pytest.raises(ValueError, match=r"model\.layers\.7\.mixer: pages of 48 bytes.*take 32"):
        layer.bind_kv_cache(torch.zeros(4, 48, dtype=torch.uint8))
    layer.bind_kv_cache(torch.zeros(4, 32, dtype=torch.uint8))
    assert layer.conv_state.shape == (4, 5)

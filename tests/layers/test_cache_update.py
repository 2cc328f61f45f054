"""Who writes a cache: the layer before it attends, a backend that does both, or another layer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheFormat, Window
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.mla import MLA, MLAConfig
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.layers.token_cached import TokenCached
from hybridrt.models.hybrid_stack import Config, Model
from tests.harness.batches import TOKENS, Row, make_batch
from tests.harness.bench import POISON, random_tokens
from tests.harness.random_weights import randomise
from tests.harness.small_layers import HIDDEN

SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
CONFIG = AttentionConfig(hidden_size=HIDDEN, **SIZES)


class _Fused(TokenCached):
    """Stands for a backend with one kernel for both; nobody else may write."""

    fuses_cache_update = True
    _is_fusing = False

    def update_kv_cache(self, *args: Any) -> None:
        assert self._is_fusing, "the layer has written what its backend writes"
        super().update_kv_cache(*args)

    def attend(self, *args: Any) -> Tensor:
        *queries, batch, new_tokens = args
        self._is_fusing = True
        self.update_kv_cache(*new_tokens, batch)
        self._is_fusing = False
        return super().attend(*queries, batch)


class FusedAttention(_Fused, Attention):
    """Attention whose kernel writes too."""


class FusedMLA(_Fused, MLA):
    """MLA whose kernel writes too."""


def _rope(dim: int) -> Rope:
    rope = Rope(RopeConfig(), dim)
    rope.prepare(64, torch.device("cpu"))
    return rope


def _attention(kind: type[Attention], **changes: Any) -> Attention:
    return kind(CONFIG.model_copy(update=changes), _rope(6))


def _mla(kind: type[MLA]) -> MLA:
    sizes = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
    return kind(MLAConfig(hidden_size=HIDDEN, num_attention_heads=3, **sizes), _rope(4))


PAIRS: dict[str, tuple[Callable[[], TokenCached], Callable[[], TokenCached], str]] = {
    "attention": (lambda: _attention(Attention), lambda: _attention(FusedAttention), "auto"),
    "window": (
        lambda: _attention(Attention, window=Window(5)),
        lambda: _attention(FusedAttention, window=Window(5)),
        "auto",
    ),
    "fp8": (lambda: _attention(Attention), lambda: _attention(FusedAttention), "fp8_e4m3"),
    "int8": (lambda: _attention(Attention), lambda: _attention(FusedAttention), "int8"),
    "MLA": (lambda: _mla(MLA), lambda: _mla(FusedMLA), "auto"),
    "MLA in fp8": (lambda: _mla(MLA), lambda: _mla(FusedMLA), "fp8_e4m3"),
}


def _batches() -> list[ForwardBatch]:
    """A prefill; then a batch that shrinks, but is run at the size it was captured with."""
    # The window of 5 has left the first block of both rows behind when they decode.
    prefill = [Row(0, 9, (3, 6, 1)), Row(0, 8, (4, 2))]
    decode = [Row(9, 1, (6, 1), released=1), Row(8, 1, (2, 5), released=1)]
    shrunk = [Row(10, 1, (6, 1), released=1)]
    return [
        make_batch(prefill, num_decodes=0, block_size=4, padding=5),
        make_batch(decode, num_decodes=2, block_size=4, padding=2),
        make_batch(shrunk, num_decodes=1, block_size=4, padding=3),
    ]


def _full_batches() -> list[ForwardBatch]:
    """The same where nothing is released."""
    prefill = [Row(0, 9, (3, 6, 1)), Row(0, 8, (4, 2))]
    decode = [Row(9, 1, (3, 6, 1)), Row(8, 1, (4, 2, 5))]
    shrunk = [Row(10, 1, (3, 6, 1))]
    return [
        make_batch(prefill, num_decodes=0, block_size=4, padding=5),
        make_batch(decode, num_decodes=2, block_size=4, padding=2),
        make_batch(shrunk, num_decodes=1, block_size=4, padding=3),
    ]


def _run(layer: TokenCached, kv_cache_dtype: Any) -> tuple[list[Tensor], Tensor]:
    """Outputs of every batch, padding included, and the pool behind the last."""
    randomise(layer)
    layer.cache_format = CacheFormat(4, kv_cache_dtype=kv_cache_dtype)
    layer.cache_group = TOKENS
    pool = torch.full((8, layer.cache_spec.block_bytes), POISON, dtype=torch.uint8)
    layer.bind_kv_cache(pool)
    batches = _batches() if layer.cache_spec.window else _full_batches()
    with torch.inference_mode():
        outs = [layer(random_tokens(batch.num_tokens, seed=1), batch) for batch in batches]
    return outs, pool


@pytest.mark.parametrize("name", PAIRS)
def test_a_split_update_equals_a_fused_one_bit_for_bit(name: str) -> None:
    split, fused, kv_cache_dtype = PAIRS[name]
    outs, pool = _run(split(), kv_cache_dtype)
    fused_outs, fused_pool = _run(fused(), kv_cache_dtype)
    assert all(torch.equal(a, b) for a, b in zip(outs, fused_outs, strict=True))
    assert torch.equal(pool, fused_pool)
    assert all(out.isfinite().all() for out in outs)
    assert pool[[0, 7]].eq(POISON).all()


def test_a_layer_that_doesnt_fuse_is_not_given_what_to_write() -> None:
    layer = _attention(Attention)
    batch = _full_batches()[0]
    with pytest.raises(AssertionError, match="doesn't fuse"):
        layer.attend(torch.zeros(22, 4, 6), batch, (torch.zeros(1), torch.zeros(1)))


def test_a_layer_that_shares_has_no_keys_values_or_pages() -> None:
    source = _attention(Attention, qk_norm_eps=1e-5)
    source.name = "model.layers.0.mixer"
    config = source.config.model_copy(update={"num_attention_heads": 6})
    reader = Attention(config, _rope(6), shares_cache_of=source)
    assert sorted(dict(reader.named_parameters())) == [
        "o_proj.weight",
        "q_norm.weight",
        "qkv_proj.weight",
    ]
    assert reader.qkv_proj.weight.shape == (36, HIDDEN)
    assert [*reader.buffers()] == []
    assert source not in reader.modules()
    with pytest.raises(RuntimeError, match=r"shares the cache of model\.layers\.0\.mixer"):
        reader.bind_kv_cache(torch.zeros(2, source.cache_spec.block_bytes, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_key_value_heads", 1), ("head_dim", 8), ("head_dim_v", 4), ("window", Window(4))],
)
def test_only_alike_caches_are_shared(name: str, value: object) -> None:
    source, config = _attention(Attention), CONFIG.model_copy(update={name: value})
    named = {"head_dim_v": "value_dim"}.get(name, name)
    with pytest.raises(ValueError, match=f"{named}=.* should be"):
        Attention(config, None, shares_cache_of=source)


ENTRY = {"type": "attention", **SIZES}


def _stack(*layers: dict[str, Any]) -> Model:
    sizes = {"vocab_size": 11, "hidden_size": HIDDEN, "max_position_embeddings": 64}
    config = Config.from_json({"model_type": "hybrid_stack", "layers": [*layers], **sizes})
    assert isinstance(config, Config)
    return Model(config)


def test_a_model_plans_only_layers_with_a_cache_of_their_own() -> None:
    reader = {**ENTRY, "share_cache_of": 0}
    mamba = {"type": "mamba1", "intermediate_size": 8, "state_size": 4, "time_step_rank": 2}
    model = _stack(ENTRY, reader, {"type": "parallel", "mixers": [reader, ENTRY, mamba]})
    mixers = ("0.mixer", "2.mixer.mixers.1", "2.mixer.mixers.2")
    assert [*model.cached_layers()] == [f"model.layers.{mixer}" for mixer in mixers]
    assert len(model.ropes) == 4


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([{**ENTRY, "share_cache_of": 0}], r"layers\[0\]: share_cache_of=0 .* earlier"),
        ([ENTRY, {**ENTRY, "share_cache_of": 2}], r"layers\[1\]: share_cache_of=2"),
        ([{"type": "mlp", "intermediate_size": 4}, {**ENTRY, "share_cache_of": 0}], "share_cache"),
        (
            [ENTRY, {**ENTRY, "share_cache_of": 0}, {**ENTRY, "share_cache_of": 1}],
            "a cache of its own",
        ),
        ([ENTRY, {**ENTRY, "share_cache_of": 0, "sliding_window": 3}], "window=.* should be None"),
        ([{**ENTRY, "sliding_window": 3, "attention_chunk_size": 4}], "one of them should be null"),
        ([{"type": "parallel", "mixers": []}], "mixers"),
        ([{"type": "parallel", "mixers": [{"type": "x"}]}], r"layers\[0\]\.mixers\[0\] has type"),
    ],
)
def test_what_a_stack_cant_be_made_of_is_refused_by_name(
    layers: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _stack(*layers)

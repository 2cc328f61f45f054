"""Sinks, soft caps and chunks as the models of `transformers` compute them that brought them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Llama4TextConfig
from transformers.masking_utils import create_chunked_causal_mask, create_sliding_window_causal_mask
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss

from hybridrt.kernels.reference.gather import Reach
from hybridrt.kernels.reference.softmax_attention import Softmax, causal_attention

TOKENS, HEADS, KV_HEADS, DIM = 23, 4, 2, 8
SCALE = 0.5


def _inputs() -> Sequence[Tensor]:
    draw = torch.Generator().manual_seed(0)
    heads = (HEADS, KV_HEADS, KV_HEADS)
    return [torch.randn(count, TOKENS, DIM, generator=draw) for count in heads]


def _causal() -> Tensor:
    return torch.full((TOKENS, TOKENS), -torch.inf).triu(1)[None, None]


def _module(**more: Any) -> Any:
    return SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, training=False, **more)


def _same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs[0].transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_sinks_as_in_gpt_oss() -> None:
    q, k, v = _inputs()
    sinks = torch.tensor([3.0, -1.0, 0.5, 8.0])
    theirs, _ = modeling_gpt_oss.eager_attention_forward(
        _module(sinks=sinks), q[None], k[None], v[None], _causal(), SCALE
    )
    _same(causal_attention(q, k, v, Softmax(SCALE, sinks=sinks)), theirs)


def test_soft_caps_as_in_gemma_2() -> None:
    q, k, v = _inputs()
    theirs, _ = modeling_gemma2.eager_attention_forward(
        _module(), q[None], k[None], v[None], _causal(), scaling=SCALE, softcap=0.7
    )
    _same(causal_attention(q, k, v, Softmax(SCALE, softcap=0.7)), theirs)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("window", [1, 5, 16, 40])
def test_windows_and_chunks_as_in_llama_4(window: int, chunked: bool) -> None:
    q, k, v = _inputs()
    size = {"attention_chunk_size" if chunked else "sliding_window": window}
    config = Llama4TextConfig(**size, attn_implementation="eager")
    make = create_chunked_causal_mask if chunked else create_sliding_window_causal_mask
    mask = make(
        config=config,
        inputs_embeds=torch.zeros(1, TOKENS, 4),
        attention_mask=None,
        past_key_values=None,
        position_ids=torch.arange(TOKENS)[None],
    )
    theirs, _ = modeling_gemma2.eager_attention_forward(
        _module(), q[None], k[None], v[None], mask, scaling=SCALE
    )
    _same(causal_attention(q, k, v, Softmax(SCALE), Reach(window, chunked)), theirs)

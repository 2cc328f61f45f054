"""Operations of attention's products, two a multiply-add: the least that a layer can do."""

from collections.abc import Iterator

from hybridrt.layers.attention import Attention
from hybridrt.layers.indexed_attention import IndexedAttention
from hybridrt.layers.mla import MLA
from hybridrt.layers.sparse_mla import SparseMLA
from hybridrt.models.causal_lm import CausalLM


def attentions(model: CausalLM) -> Iterator[Attention | MLA]:
    """Those layers whose tokens see all before them, or a window's: not a selection's few."""
    for module in model.modules():
        selects = isinstance(module, IndexedAttention | SparseMLA)
        if isinstance(module, Attention | MLA) and not selects:
            yield module


def step_operations(layer: Attention | MLA, context: int) -> int:
    """Of the products of a new token's query with what is cached of all that it sees.

    Of latents as they stand: to make keys and values of them again would take more.
    """
    seen = _seen(layer, context + 1) - _seen(layer, context)
    if isinstance(layer, MLA):
        return _products(layer, 2 * layer.config.kv_lora_rank + layer.config.qk_rope_head_dim, seen)
    return _products(layer, layer.config.head_dim + layer.config.value_dim, seen)


def prompt_operations(layer: Attention | MLA, tokens: int) -> int:
    """Of the products of every query of a prompt with the keys and values that it sees."""
    if isinstance(layer, MLA):
        mla = layer.config
        size = mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim
    else:
        size = layer.config.head_dim + layer.config.value_dim
    return _products(layer, size, _seen(layer, tokens))


def _products(layer: Attention | MLA, size: int, seen: int) -> int:
    """Operations of each head's products with `size` numbers of every token seen."""
    return 2 * layer.config.num_attention_heads * size * seen


def _seen(layer: Attention | MLA, tokens: int) -> int:
    """How many each of a sequence's first tokens sees, itself included, all together."""
    window = layer.config.window
    size = tokens if window is None else min(window.size, tokens)
    if window is not None and window.chunked and size:
        chunks, rest = divmod(tokens, size)
        return chunks * _sum_to(size) + _sum_to(rest)
    return _sum_to(size) + (tokens - size) * size


def _sum_to(number: int) -> int:
    """1 + 2 + ... + number."""
    return number * (number + 1) // 2

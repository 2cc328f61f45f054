"""Embeddings of n-grams, against their definition in plain loops."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hybridrt.layers.ngram_hash import hash_multipliers, primes_from
from hybridrt.layers.ngram_inputs import NgramConfig, NgramEmbedding, NgramInputs
from tests.harness.batches import STATES, Row, make_batch

VOCAB, END, HIDDEN, STREAMS = 19, 4, 6, 2
TOKENS = [4, 3, 1, 9, 4, 11, 2, 2, 4, 4, 7, 18, 0, 5, 4, 1, 1]


def _config(ngram_size: int = 4) -> NgramConfig:
    return NgramConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        hc_count=STREAMS,
        ple_embed_dim=6 * (ngram_size - 1),
        ple_conv_kernel_size=3,
        ngram_size=ngram_size,
        heads_per_ngram=2,
        ngram_vocab_size_base=23,
        make_ngram_vocab_size_divisible_by=16,
        split_ngram_parts=3,
        eos_token_id=END,
    )


def _text_up_to(position: int, ngram_size: int) -> list[int]:
    """The last tokens, the newest first. Behind an end token, or the first, only ends are seen."""
    seen, hidden = [TOKENS[position]], False
    for back in range(1, ngram_size):
        hidden = hidden or position < back or TOKENS[position - back] == END
        seen.append(END if hidden else TOKENS[position - back])
    return seen


def _embedded(module: NgramEmbedding, position: int) -> Tensor:
    seen, parts, head = _text_up_to(position, module.config.ngram_size), list[Tensor](), 0
    multipliers = module.layer_multipliers.tolist()
    for size in range(2, module.config.ngram_size + 1):
        mixed = 0
        for token, multiplier in zip(seen[:size], multipliers, strict=False):
            mixed ^= token * multiplier
        for _ in range(module.config.heads_per_ngram):
            row = mixed % int(module.ngram_heads_vocab_sizes[head])
            parts.append(module.ngram_embedding.weight[module.ngram_heads_offsets[head] + row])
            head += 1
    return torch.cat(parts)


def _layer(config: NgramConfig, index: int) -> NgramInputs:
    layer, draw = NgramInputs(config, index), torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=draw))
    layer.cache_group = STATES
    block = layer.cache_spec.block_bytes
    layer.bind_kv_cache(torch.full((3, block), 0xFF, dtype=torch.uint8))
    return layer


@pytest.mark.parametrize("cuts", [(), (1, 2, 3), (5, 9), tuple(range(1, len(TOKENS)))])
@pytest.mark.parametrize(("ngram_size", "index"), [(4, 1), (2, 0), (7, 3)])
def test_a_text_in_steps_gets_what_the_loops_give(
    ngram_size: int, index: int, cuts: tuple[int, ...]
) -> None:
    layer = _layer(_config(ngram_size), index)
    x = torch.randn(len(TOKENS), STREAMS * HIDDEN, generator=torch.Generator().manual_seed(1))
    embedded = torch.stack([_embedded(layer.ple_embedding, i) for i in range(len(TOKENS))])
    keys, queries = layer.norm_key(layer.key_proj(embedded)), layer.norm_query(x)
    outputs: list[Tensor] = []
    for start, stop in zip((0, *cuts), (*cuts, len(TOKENS)), strict=True):
        row = Row(start, stop - start, page=2)
        is_decode = bool(start) and stop == start + 1
        batch = make_batch([row], num_decodes=int(is_decode))
        batch.input_ids.copy_(torch.tensor(TOKENS[start:stop]))
        outputs.append(layer(x[start:stop], batch))
    fit = (keys * queries).unflatten(-1, (STREAMS, HIDDEN)).sum(-1) / HIDDEN**0.5
    fit = fit.sign() * fit.abs().clamp(min=1e-6).sqrt()
    values = (fit.sigmoid()[..., None] * layer.value_proj(embedded)[:, None]).flatten(1)
    padded = F.pad(layer.norm_conv(values).t(), (2 * ngram_size, 0))
    convolved = F.conv1d(padded, layer.conv1d.weight, dilation=ngram_size, groups=STREAMS * HIDDEN)
    torch.testing.assert_close(torch.cat(outputs), values + F.silu(convolved.t()))


def test_tables_have_prime_sizes_that_no_other_has() -> None:
    first, second = (NgramEmbedding(_config(), index) for index in range(2))
    sizes = [*first.ngram_heads_vocab_sizes.tolist(), *second.ngram_heads_vocab_sizes.tolist()]
    assert sizes == [23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71] == primes_from(23, 12)
    assert first.ngram_heads_offsets.tolist() == [0, 23, 52, 83, 120, 161]
    assert len(first.ngram_embedding.weight) == 208  # of 204, in sixteens
    assert primes_from(0, 3) == [2, 3, 5]


def test_no_product_with_a_token_overflows() -> None:
    for vocab_size in (1, 19, 250_000, 2**31):
        for index in range(3):
            numbers = hash_multipliers(vocab_size, 4, index, seed=1234)
            assert all(n % 2 == 1 and n * (vocab_size - 1) < 2**63 for n in numbers)
    assert len({tuple(hash_multipliers(99, 3, i, 7)) for i in range(5)}) == 5


def test_parts_of_a_table_are_its_rows_in_order() -> None:
    table = NgramEmbedding(_config(), 0).ngram_embedding
    parts, whole = table.checkpoint_layouts()
    assert [*parts] == [f"ngram_embedding.shard_{i}.weight" for i in range(3)]
    assert [len(part) for part in parts.values()] == [70, 70, 68]
    assert whole["ngram_embedding.weight"] is table.weight


def test_embeddings_that_heads_cannot_share_are_refused() -> None:
    with pytest.raises(ValueError, match="ple_embed_dim=20 should be a multiple of 6"):
        NgramConfig(**{**_config().model_dump(), "ple_embed_dim": 20})

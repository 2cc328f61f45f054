"""What a session's layers show is what a full forward without a cache has."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, rotate_half

from hybridrt import LLM
from tests.oracle.checkpoints import tiny_checkpoint
from tests.session.open_sessions import (
    CHUNKS,
    COMPRESSED,
    DEEPSEEK,
    EVERY_KIND,
    EVERY_STATE,
    INDEXED,
    MAMBA,
    NGRAMS,
    PROMPT,
    WINDOWS,
    open_llm,
)

LLAMA = "llama-grouped-heads"
MAMBA2 = "mamba2-two-groups"
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def _oracle(name: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_checkpoint(name), dtype=torch.float32)


def _inputs(modules: list[Any], model: Any) -> list[Tensor]:
    """What goes into each module in a full forward over the prompt, `[tokens, hidden]`."""
    seen: dict[int, Tensor] = {}

    def note(index: int) -> Callable[..., None]:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            x = args[0] if args else kwargs["hidden_states"]
            seen[index] = x[0].detach()

        return hook

    handles = [
        module.register_forward_pre_hook(note(i), with_kwargs=True)
        for i, module in enumerate(modules)
    ]
    with torch.no_grad():
        model(torch.tensor([PROMPT]), use_cache=False)
    for handle in handles:
        handle.remove()
    return [seen[i] for i in range(len(modules))]


def _read(name: str, **options: Any) -> list[dict[str, Tensor]]:
    with open_llm(name, **options).session(PROMPT[:20]) as session:
        session.layers[0].read()
        session.append(PROMPT[20:])
        return [layer.read() for layer in session.layers]


def _cos_sin(model: Any) -> tuple[Tensor, Tensor]:
    return model.model.rotary_emb(torch.zeros(1), torch.arange(len(PROMPT))[None])


@torch.no_grad()
@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_keys_behind_the_rotary_embedding_and_values(layout: str) -> None:
    model = _oracle(LLAMA)
    attention = [layer.self_attn for layer in model.model.layers]
    for x, layer, given in zip(
        _inputs(attention, model), attention, _read(LLAMA, kv_layout=layout), strict=True
    ):
        k = layer.k_proj(x).unflatten(-1, (-1, layer.head_dim)).transpose(0, 1)[None]
        k = apply_rotary_pos_emb(k, k, *_cos_sin(model))[1][0].transpose(0, 1)
        v = layer.v_proj(x).unflatten(-1, (-1, layer.head_dim))
        assert set(given) == {"k", "v"}
        torch.testing.assert_close(given["k"], k, **CLOSE)
        torch.testing.assert_close(given["v"], v, **CLOSE)


@torch.no_grad()
def test_latents_and_their_rotated_part() -> None:
    model = _oracle(DEEPSEEK)
    attention = [layer.self_attn for layer in model.model.layers]
    cos, sin = _cos_sin(model)
    for x, layer, given in zip(_inputs(attention, model), attention, _read(DEEPSEEK), strict=True):
        both = layer.kv_a_proj_with_mqa(x)
        rank = layer.kv_lora_rank
        torch.testing.assert_close(given["c_kv"], layer.kv_a_layernorm(both[:, :rank]), **CLOSE)
        # As pairs (2j, 2j + 1): transformers turns these and lays the halves apart.
        even, odd = both[:, rank::2], both[:, rank + 1 :: 2]
        c, s = (t[0, :, : even.shape[1]] for t in (cos, sin))
        turned = {tuple(t[0].tolist()): t for t in (even * c - odd * s, even * s + odd * c)}
        for t, part in zip(turned.values(), (slice(0, None, 2), slice(1, None, 2)), strict=True):
            halves = given["k_pe"][:, part]
            torch.testing.assert_close(halves, t, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_entries_of_compressed_tokens(page_size: int) -> None:
    model = _oracle(COMPRESSED)
    cache = model(torch.tensor([PROMPT]), use_cache=True).past_key_values
    given = open_llm(COMPRESSED, page_size=page_size).session(PROMPT)
    theirs = {
        f"model.layers.{i}.self_attn.{name}": entries[0]
        for i, layer in enumerate(cache.layers)
        for name, entries in getattr(layer, "compressed_kv", {}).items()
    }
    assert len(theirs) == 5
    ours = {layer.plan.name: layer.read() for layer in given.layers}
    for name, entries in theirs.items():
        torch.testing.assert_close(ours[name]["entries"], entries, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("page_size", [1, 16])
def test_index_keys_of_tokens_and_of_the_blocks_that_they_end(page_size: int) -> None:
    model = _oracle(INDEXED)
    attention = [layer.self_attn for layer in model.model.layers]
    given = _read(INDEXED, page_size=page_size)
    for x, layer, ours in zip(_inputs(attention, model), attention, given, strict=True):
        index = layer.indexer
        expected, size = index.index_qk_proj(x)[:, -index.index_head_dim :], index.compress_ratio
        whole = expected[: len(x) // size * size].unflatten(0, (-1, size)).mean(1)
        ends = slice(size - 1, None, size)
        cos, sin = (t[0] for t in _cos_sin(model))
        keys = index.k_layernorm(whole)
        rotated = keys[:, : cos.shape[-1]]
        turned = rotated * cos[::size][: len(keys)]
        turned += rotate_half(rotated) * sin[::size][: len(keys)]
        expected[ends] = torch.cat([turned, keys[:, cos.shape[-1] :]], dim=-1)
        torch.testing.assert_close(ours["k_index"], expected, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", [MAMBA, MAMBA2])
def test_states_of_convolutions_and_recurrences(name: str) -> None:
    model = _oracle(name)
    cache = model(torch.tensor([PROMPT]), use_cache=True).cache_params
    for index, given in enumerate(_read(name)):
        conv, ssm = _their_states(cache, index)
        kernel = given["conv_state"].shape[0] + 1
        torch.testing.assert_close(given["conv_state"], conv.T[-(kernel - 1) :], **CLOSE)
        torch.testing.assert_close(given["ssm_state"], ssm, **CLOSE)


def _their_states(cache: Any, index: int) -> tuple[Tensor, Tensor]:
    layer = cache.layers[index]
    return layer.conv_states[0][0], layer.recurrent_states[0][0]


def test_windows_say_which_tokens_they_hold() -> None:
    full = _read(EVERY_KIND, page_size=48)
    with open_llm(EVERY_KIND).session(PROMPT) as session:
        for layer, whole in zip(session.layers, full, strict=True):
            given, window = layer.read(), layer.plan.window
            if window is None:
                assert "positions" not in given
                continue
            positions = given["positions"]
            assert positions.tolist() == list(range(int(positions[0]), len(PROMPT)))
            assert len(PROMPT) - 12 <= positions[0] <= window.first_visible(len(PROMPT))
            for key in ("k", "v"):
                torch.testing.assert_close(given[key], whole[key][positions], **CLOSE)


@pytest.mark.parametrize(
    "name", [WINDOWS, CHUNKS, EVERY_KIND, EVERY_STATE, MAMBA, DEEPSEEK, COMPRESSED, INDEXED, NGRAMS]
)
def test_the_same_however_the_tokens_came(name: str) -> None:
    llm = open_llm(name, page_size=8)
    with llm.session(PROMPT) as whole, llm.session() as pieces:
        for token in PROMPT:
            pieces.append([token])
            pieces.layers[-1].read()
        for ours, theirs in zip(whole.layers, pieces.layers, strict=True):
            given = theirs.read()
            for key, tensor in ours.read().items():
                torch.testing.assert_close(tensor, given[key], **CLOSE)


@pytest.mark.parametrize(("kv_cache_dtype", "error"), [("fp8_e4m3", 2**-4), ("int8", 2**-6)])
def test_quantised_ones_are_read_as_numbers(kv_cache_dtype: str, error: float) -> None:
    name = WINDOWS if kv_cache_dtype == "int8" else EVERY_KIND
    exact, quantised = _read(name), _read(name, kv_cache_dtype=kv_cache_dtype)
    tensors = zip(exact[0].items(), quantised[0].values(), strict=True)
    for (key, ours), theirs in tensors:
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, key
        assert (ours - theirs).abs().max() <= 1.5 * error * ours.abs().max()
    for layer in quantised:
        assert all(tensor.dtype in (torch.float32, torch.int64) for tensor in layer.values())


def test_before_the_first_token_there_is_nothing() -> None:
    llm: LLM = open_llm(EVERY_KIND)
    with llm.session() as session:
        for layer in session.layers:
            for name, tensor in layer.read().items():
                assert not tensor.numel() or (name.endswith("_state") and not tensor.any())
        copy = session.layers[1].read()["ssm_state"].fill_(7)
        assert not session.layers[1].read()["ssm_state"].equal(copy)

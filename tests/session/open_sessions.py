"""Engines and prompts for the tests of sessions."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

from hybridrt import LLM, SamplingParams
from tests.oracle.checkpoints import tiny_checkpoint

EVERY_KIND = "hybrid_stack-every-kind-of-cache"
EVERY_STATE = "hybrid_stack-every-state-between-attention"
ATTENTION = "hybrid_stack-attention-alone"
MAMBA = "mamba-tied-embeddings"
DEEPSEEK = "deepseek_v3-grouped-routing"
COMPRESSED = "deepseek_v4-every-kind-of-layer"
INDEXED = "qwen4_exp_text-attention-only-with-biases"
NGRAMS = "qwen4_exp_text-n-grams-in-two-layers"
WINDOWS = "hybrid_stack-sliding-windows"
CHUNKS = "hybrid_stack-chunked-attention"
LONGROPE = "llama-longrope-long"
MODELS = (EVERY_KIND, EVERY_STATE, ATTENTION, MAMBA, DEEPSEEK, COMPRESSED, INDEXED, NGRAMS)

PROMPT = [3 + i * 7 % 50 for i in range(37)]
OTHER = [5 + i * 11 % 40 for i in range(23)]
DRAWN = SamplingParams(temperature=0.8, seed=7, max_tokens=11, ignore_eos=True, logprobs=2)
GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)


def open_llm(name: str, **options: Any) -> LLM:
    """Small pages and chunks, so that a session's tokens come in several of both."""
    choices: dict[str, Any] = {
        "dtype": "float32",
        "device": "cpu",
        "page_size": 4,
        "cache_memory": "2MiB",
        "max_model_len": 96,
        "max_num_batched_tokens": 16,
        "poison_freed_pages": True,
        **options,
    }
    return LLM(str(tiny_checkpoint(name)), **choices)


@lru_cache(maxsize=16)
def _cold(name: str) -> LLM:
    return open_llm(name, enable_prefix_caching=False, max_num_batched_tokens=512)


def cold(name: str, tokens: Sequence[int], params: SamplingParams) -> list[int]:
    """What the model generates behind these tokens, with nothing reused."""
    return [*_generated(name, tuple(tokens), params)]


@cache
def _generated(name: str, tokens: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
    (output,) = _cold(name).generate([list(tokens)], params)
    return tuple(output.outputs[0].token_ids)


@contextmanager
def nothing_left(llm: LLM) -> Iterator[None]:
    """Whatever happens inside, no sequence and no request is left behind."""
    yield
    assert not llm.has_unfinished and not len(llm.engine.held)
    assert not len(llm.engine.pages) and not llm.engine._entries and not llm._inboxes

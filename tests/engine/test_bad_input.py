"""Bad input is refused by name, with what would be right, and leaves the engine working."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridrt import LLM, EngineConfig, SamplingParams
from tests.engine.small import (
    ATTENTION,
    CONFIG,
    MAMBA2,
    assert_nothing_is_held,
    save_checkpoint,
    small_llm,
)

GREEDY = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def shared() -> LLM:
    return small_llm()


@pytest.fixture
def llm(shared: LLM) -> Iterator[LLM]:
    """An engine that works, and holds nothing, whatever a test gave it."""
    yield shared
    assert_nothing_is_held(shared)
    (output,) = shared.generate("works", GREEDY)
    assert len(output.outputs[0].token_ids) == 3


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", ["the prompt is empty", "at least one token"]),
        ([[]], ["the prompt is empty"]),
        ({"prompt_token_ids": []}, ["the prompt is empty"]),
        ([1] * 128, ["128 tokens", "max_model_len=128", "at most 127"]),
        ("x" * 500, ["500 tokens", "at most 127"]),
        ([1, 258], ["258", "[0, 258)"]),
        ([-1], ["-1", "[0, 258)"]),
        ([1, 2.0], ["2.0", "integers"]),
        ([1, "a"], ["'a'", "integers"]),
        ([1, None], ["None", "integers"]),
        ([True], ["True", "integers"]),
        ({"prompt_token_ids": "abc"}, ["prompt_token_ids", "'a'", "integers"]),
        ({"prompt_token_ids": 5}, ["prompt_token_ids", "5"]),
        ({"prompt_token_ids": None}, ["prompt_token_ids", "None"]),
        ({"prompt": 5}, ["prompt", "5"]),
        ({"prompt": None}, ["prompt", "None"]),
        ({"prompt": "a", "cache_salt": 5}, ["cache_salt", "5"]),
        ({"prompts": "a"}, ["'prompts'", "'prompt'", "'prompt_token_ids'", "'cache_salt'"]),
        ({"prompt": "a", 3: 4}, ["3", "'prompt_token_ids'"]),
        ({}, ["'prompt'", "'prompt_token_ids'"]),
        (None, ["prompt", "None"]),
        (5, ["prompt", "5"]),
        (1.5, ["prompt", "1.5"]),
        (b"abc", ["prompt", "b'abc'"]),
        ({1, 2}, ["prompt", "{1, 2}"]),
        ([None], ["prompt", "None"]),
        (["a", 1], ["prompt", "1"]),
        ([1.5], ["1.5"]),
        ("\ud800", ["not valid Unicode"]),
        (torch.tensor([1.5]), ["1.5", "integers"]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_prompt_that_can_not_be_served(llm: LLM, prompt: Any, words: list[str]) -> None:
    for prompts in (prompt, ["fine", prompt]):
        if prompts is not prompt and isinstance(prompt, list | torch.Tensor):
            continue  # among others it would be read as several prompts
        with pytest.raises(ValueError) as refusal:
            llm.generate(prompts, GREEDY)
        assert all(word in str(refusal.value) for word in words), refusal.value
        assert_nothing_is_held(llm)


BAD_PARAMS: list[tuple[str, Any]] = [
    ("n", 0), ("n", -1), ("n", 1.5), ("n", "2"), ("n", True), ("n", None),
    ("temperature", -0.1), ("temperature", NAN), ("temperature", INF), ("temperature", "hot"),
    ("top_p", 0), ("top_p", 1.1), ("top_p", -0.5), ("top_p", NAN), ("top_p", None),
    ("top_k", -2), ("top_k", 1.5), ("top_k", "5"),
    ("min_p", -0.1), ("min_p", 1.1), ("min_p", NAN),
    ("presence_penalty", 2.1), ("presence_penalty", -2.1), ("presence_penalty", NAN),
    ("frequency_penalty", 2.1), ("frequency_penalty", -2.1), ("frequency_penalty", NAN),
    ("repetition_penalty", 0), ("repetition_penalty", -1.0), ("repetition_penalty", INF),
    ("seed", -1), ("seed", 2**63), ("seed", 1.5),
    ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 2.5), ("max_tokens", "16"),
    ("min_tokens", -1), ("min_tokens", None),
    ("stop", ""), ("stop", ["a", ""]), ("stop", 5), ("stop", [5]), ("stop", b"a"),
    ("stop_token_ids", -1), ("stop_token_ids", [1, -5]), ("stop_token_ids", ["a"]),
    ("stop_token_ids", [1.5]),
    ("ignore_eos", 1), ("ignore_eos", "yes"),
    ("logprobs", -1), ("logprobs", 1.5), ("logprobs", True),
    ("prompt_logprobs", -1), ("prompt_logprobs", "all"),
    ("logit_bias", {-1: 0.0}), ("logit_bias", {1: 101.0}), ("logit_bias", {1: -101.0}),
    ("logit_bias", {1: NAN}), ("logit_bias", {"1": 0.0}), ("logit_bias", [1]),
    ("skip_special_tokens", 0),
    ("best_of", 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_PARAMS)
def test_a_wrong_sampling_parameter_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^SamplingParams\.{name}\b") as refusal:
        SamplingParams(**{name: value})
    assert type(refusal.value) is ValueError
    assert len(str(refusal.value).splitlines()) == 1


def test_parameters_that_contradict_each_other_are_refused_with_both() -> None:
    with pytest.raises(ValueError, match="min_tokens=9 should be at most max_tokens=8"):
        SamplingParams(min_tokens=9, max_tokens=8)
    SamplingParams(min_tokens=9, max_tokens=None)


def test_every_wrong_parameter_has_a_line() -> None:
    with pytest.raises(ValueError) as refusal:
        SamplingParams(n=0, top_p=2.0, surprise=1)
    lines = str(refusal.value).splitlines()
    assert [line.split("=")[0].split(".")[1] for line in lines] == ["n", "top_p", "surprise"]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"logprobs": 259}, "logprobs=259 should be at most 258"),
        ({"prompt_logprobs": 259}, "prompt_logprobs=259 should be at most 258"),
        ({"logit_bias": {258: 1.0}}, "logit_bias has token id 258; it should be below 258"),
    ],
)
def test_parameters_beyond_the_vocabulary_are_refused(
    llm: LLM, params: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        llm.generate(["a", "b"], [GREEDY, SamplingParams(**params)])


@pytest.mark.parametrize("params", [5, "greedy", {"n": 1}, [GREEDY, GREEDY], [], [5]], ids=repr)
def test_parameters_of_another_type_or_number_are_refused(llm: LLM, params: Any) -> None:
    with pytest.raises(ValueError, match="sampling_params"):
        llm.generate("a", params)
    if not isinstance(params, list):
        with pytest.raises(ValueError, match="sampling_params"):
            llm.add_request("a", params)


@pytest.mark.parametrize("request_id", [5, b"five", ("a", 1)], ids=repr)
def test_a_request_id_that_is_not_text_is_refused(llm: LLM, request_id: Any) -> None:
    # 5 and "5" would be two requests whose sequences have the same name.
    with pytest.raises(ValueError, match=re.escape(f"request_id={request_id!r} should be text")):
        llm.add_request("a", GREEDY, request_id=request_id)


BAD_CONFIGS: list[tuple[str, Any]] = [
    ("dtype", "float64"), ("dtype", torch.float32), ("dtype", None),
    ("device", "mps"), ("device", "cuda:x"), ("device", 0), ("device", ""),
    ("max_model_len", 0), ("max_model_len", -1), ("max_model_len", 1.5), ("max_model_len", "8k"),
    ("max_num_seqs", 0), ("max_num_seqs", True),
    ("max_num_batched_tokens", 0), ("max_num_batched_tokens", None),
    ("cache_memory", 0), ("cache_memory", -1), ("cache_memory", "lots"), ("cache_memory", "8 TB"),
    ("cache_memory", "-1GiB"), ("cache_memory", "0B"), ("cache_memory", 1.5),
    ("cache_policy", "radix"),
    ("page_size", 0), ("page_size", -16), ("page_size", 1.0),
    ("kernel_block_size", 0), ("kernel_block_size", 5), ("kernel_block_size", 32),
    ("kv_layout", "hnd"), ("kv_cache_dtype", "fp8"), ("state_dtype", "float16"),
    ("enable_prefix_caching", "yes"), ("checkpoint_interval", 0), ("checkpoint_memory", -1),
    ("attention_backend", "flash"), ("state_backend", "cuda"),
    ("seed", -1), ("seed", 2**63), ("seed", 0.5),
    ("poison_freed_pages", 1), ("ignore_config_keys", 5), ("ignore_config_keys", [5]),
    ("gpu_memory_utilization", 0.9),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_CONFIGS)
def test_a_wrong_engine_option_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^EngineConfig\.{name}\b") as refusal:
        small_llm(**{name: value})
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 * 2**30), ("500MB", 500 * 10**6), ("1.5 KiB", 1536), ("64b", 64), (77, 77)],
)
def test_memory_may_be_given_as_text(text: Any, size: int) -> None:
    assert EngineConfig(model="m", cache_memory=text).cache_memory == size


@pytest.mark.parametrize("model", [None, 5, "", "/no/such/folder", "a b", "../up"], ids=repr)
def test_a_model_that_is_neither_folder_nor_hub_id(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*args: Any, **options: Any) -> None:
        raise AssertionError("asked the Hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(ValueError, match="model="):
        LLM(model)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_cuda_device() -> None:
    for device in ("cuda", "cuda:1"):
        with pytest.raises(ValueError, match=f"device='{device}'.*no CUDA device.*'cpu'"):
            small_llm(device=device)


def test_a_backend_that_can_not_run_here() -> None:
    with pytest.raises(ValueError, match=r"state_backend='mamba_ssm' .*'cpu'; usable: \['ref"):
        small_llm(state_backend="mamba_ssm")


def test_memory_for_not_even_a_page_or_a_sequence() -> None:
    with pytest.raises(ValueError, match=r"cache_memory=100 bytes is not enough .* take \d+ bytes"):
        small_llm(cache_memory=100)
    with pytest.raises(
        ValueError, match=r"\d+ tokens at most, not max_model_len=100.*cache_memory"
    ):
        small_llm(cache_memory=4000, max_model_len=100)
    # Unasked, the limit is what the cache holds; and who asks for more is told.
    llm = small_llm(cache_memory=4000)
    assert 2 <= llm.max_model_len < 100
    with pytest.raises(ValueError, match=f"max_model_len={llm.max_model_len}"):
        llm.generate([1] * 100, GREEDY)


def test_a_sequence_longer_than_the_models_positions() -> None:
    with pytest.raises(ValueError, match=r"max_model_len=129 .* max_position_embeddings=128"):
        small_llm(max_model_len=129)


# What a config.json may have wrong, and words of the error.
BAD_MODELS: dict[str, tuple[Mapping[str, Any], list[str]]] = {
    "an unknown model_type": ({"model_type": "gpt9"}, ["'gpt9'", "llama", "hybrid_stack", "jamba"]),
    "no model_type": ({"model_type": None}, ["model_type=None", "llama"]),
    "an unknown key": ({"surprise": 3}, ["surprise=3", "ignore_config_keys"]),
    "quantised weights": ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
    "a size that is text": ({"vocab_size": "258"}, ["vocab_size='258'", "integer"]),
    "a size that is missing": ({"hidden_size": None}, ["hidden_size"]),
    "a negative size": ({"vocab_size": -3}, ["vocab_size=-3"]),
    "no positions": ({"max_position_embeddings": 0}, ["max_position_embeddings=0"]),
    "a flag that is text": ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings='yes'"]),
    "an unknown dtype": ({"dtype": "float64"}, ["dtype='float64'", "bfloat16"]),
    "no layers": ({"layers": []}, ["layers=[]"]),
    "an unknown layer": ({"layers": [{"type": "gru"}]}, ["layers[0]", "'gru'", "mamba2"]),
    "a layer with an unknown key": (
        {"layers": [MAMBA2, {**ATTENTION, "window": 7}]},
        ["layers[1]", "window=7"],
    ),
    "a head of no size": ({"layers": [{**ATTENTION, "head_dim": 0}]}, ["layers[0]", "head_dim=0"]),
    "heads that share no keys": (
        {"layers": [{**ATTENTION, "num_key_value_heads": 3}]},
        ["num_key_value_heads=3"],
    ),
    "heads that share no groups": ({"layers": [{**MAMBA2, "n_groups": 3}]}, ["n_groups=3"]),
    "a chunk of no size": ({"layers": [{**MAMBA2, "chunk_size": 0}]}, ["chunk_size=0"]),
    "more experts a token than there are": (
        {
            "layers": [
                {"type": "moe", "num_experts": 2, "num_experts_per_tok": 3}
                | {"moe_intermediate_size": 4}
            ]
        },
        ["num_experts_per_tok=3"],
    ),
    "an unknown rotary embedding": (
        {"layers": [{**ATTENTION, "rope_parameters": {"rope_type": "magic"}}]},
        ["rope_type='magic'", "yarn"],
    ),
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 8,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def refusal_of(path: Path, config: Mapping[str, Any]) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError) as refusal:
        small_llm(path, dtype="auto")
    return str(refusal.value)


@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_config_with(name: str, tmp_path: Path) -> None:
    changes, words = BAD_MODELS[name]
    message = refusal_of(tmp_path, {**CONFIG, **changes})
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_act", "gelu"), ("attention_bias", None), ("sliding_window", 4096)]
)
def test_a_value_that_the_model_file_does_not_compute_is_refused(
    key: str, value: Any, tmp_path: Path
) -> None:
    assert f"{key}={value!r}" in refusal_of(tmp_path, {**LLAMA, key: value})


def test_an_unknown_key_may_be_named_as_one_to_ignore(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "model", surprise=3, and_another="x")
    with pytest.raises(ValueError, match=r"and_another='x', surprise=3.*ignore_config_keys"):
        small_llm(path)
    with pytest.raises(ValueError, match="and_another='x'"):
        small_llm(path, ignore_config_keys=("surprise",))
    for keys in (("surprise", "and_another"), ["surprise", "and_another"]):
        assert len(small_llm(path, ignore_config_keys=keys).generate("a", GREEDY)) == 1


def test_an_error_of_the_checkpoint_reaches_who_asks_for_the_model(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "model")
    weights = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(weights[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors: truncated: \d+ bytes long"):
        small_llm(path)
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"pickles \(pytorch_model\.bin\)"):
        small_llm(path)
    (path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not valid JSON"):
        small_llm(path)
    (path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json: missing"):
        small_llm(path)


def test_text_for_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    llm = small_llm(save_checkpoint(tmp_path / "bare", tokenizer=False))
    for call in (
        lambda: llm.generate("a", GREEDY),
        lambda: llm.chat([{"role": "user", "content": "a"}], GREEDY),
        lambda: llm.generate([1], SamplingParams(stop="x")),
    ):
        with pytest.raises(ValueError, match="no tokenizer"):
            call()
        assert_nothing_is_held(llm)


@pytest.mark.parametrize("messages", ["hello", [], [5], [{"role": "user", "content": "a"}]])
def test_a_chat_that_can_not_be_written_down(llm: LLM, messages: Any) -> None:
    with pytest.raises(ValueError, match=r"messages|chat template"):
        llm.chat(messages, GREEDY)

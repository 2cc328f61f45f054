"""EngineConfig: every choice a user can make about the engine, checked at once."""

import os
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt, field_validator

from hybridrt.values import Value, as_tuple

_UNITS = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_bytes(size: Any) -> Any:
    """`8 * 2**30`, `"8GiB"` or `"500 MB"` as a number of bytes.

    Raises:
        ValueError: the text is not a number followed by B, KiB, MiB, GiB, KB, MB or GB.
    """
    if not isinstance(size, str):
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?I?B)\s*", size.upper())
    if match is None:
        raise ValueError(
            "should be a number of bytes, or a number with a unit such as '8GiB' or '500MB'"
        )
    return int(float(match[1]) * _UNITS[match[2]])


Bytes = Annotated[PositiveInt, BeforeValidator(parse_bytes)]


def _kernel_block_size_of_environment() -> int | None:
    text = os.environ.get("HYBRIDRT_KERNEL_BLOCK_SIZE")
    if text is None:
        return None
    if not text.isdecimal():
        raise ValueError(f"HYBRIDRT_KERNEL_BLOCK_SIZE={text!r} should be a number of tokens")
    return int(text)


def _publish_stats_of_environment() -> bool:
    text = os.environ.get("HYBRIDRT_PUBLISH_STATS", "0")
    if text not in ("0", "1"):
        raise ValueError(f"HYBRIDRT_PUBLISH_STATS={text!r} should be 0 or 1")
    return text == "1"


class EngineConfig(Value):
    """How a model is loaded, cached and scheduled. Sizes in tokens unless said otherwise.

    Attributes:
        model: a directory with `config.json` and safetensors, or a Hub id.
        dtype: of weights and activations; `"auto"` takes the checkpoint's.
        device: `"auto"` is CUDA where there is one, else the CPU.
        max_model_len: longest sequence, prompt and output together. `None`: the
            model's own limit, or what the cache holds if that is less.
        max_num_seqs: most sequences in one step.
        max_num_batched_tokens: most tokens in one step.
        cache_memory: bytes for the cache, or text such as `"8GiB"`. `None`: what
            `max_num_seqs` sequences can use, at most half of the free memory.
        cache_policy: `"paged"`, or `"contiguous"` (one page as long as the model).
        page_size: tokens in a page of attention and MLA layers.
        kernel_block_size: tokens that a kernel indexes at once; divides `page_size`.
            `None`: the environment's `HYBRIDRT_KERNEL_BLOCK_SIZE`, else in each group
            the largest that the kernels of all its layers can index.
        kv_layout: `"HND"` (heads before tokens) or `"NHD"` inside a kernel block.
        quantization: of the weights of linear layers and experts, when they are loaded: `"int8"`
            or `"int4"` (see `hybridrt.kernels.quantised_linear` for their errors). `None`: none.
        kv_cache_dtype: of cached keys and values: `"auto"` is the model's; `"fp8_e4m3"`
            and `"int8"` are quantised (see `hybridrt.kernels.quantise` for their errors).
        state_dtype: of SSM states.
        enable_prefix_caching: let prompts begin with what the cache has of earlier ones.
        checkpoint_interval: keep the states of long prompts every so many tokens. `None`:
            only while there are pages that are free.
        checkpoint_memory: most bytes of states that are kept for later prompts. `None`:
            all that nothing else needs.
        attention_backend: of attention and MLA; see `hybridrt.kernels.backend`.
        state_backend: of convolutions, scans and linear attention; see there too.
        compile: run decode steps through torch.compile; needs a C++ compiler.
        record_decode: on a CPU, record what a decode step of so many sequences, or a prompt of such
            a size alone, calls when there is a second one, and make those calls alone from then
            on; see `hybridrt.kernels.tape`.
        cuda_graphs: record decode steps when the engine starts. `None`: on a CUDA device, if
            nothing in a step of this model asks the device for anything.
        publish_stats: let `hybridrt top` see this engine: at most twice a second it writes numbers
            (no text, no token) to a file of this user. If not given, the environment's
            `HYBRIDRT_PUBLISH_STATS` (0 or 1), else false.
        seed: from which requests without a seed of their own draw theirs.
        poison_freed_pages: fill freed pages with NaN, to find stale reads.
        ignore_config_keys: keys of `config.json` that the model file does not know
            and that may be ignored; any other unknown key is refused.
    """

    model: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    max_model_len: PositiveInt | None = None
    max_num_seqs: PositiveInt = 64
    max_num_batched_tokens: PositiveInt = 2048
    cache_memory: Bytes | None = None
    cache_policy: Literal["paged", "contiguous"] = "paged"
    page_size: PositiveInt = 16
    kernel_block_size: PositiveInt | None = Field(
        default_factory=_kernel_block_size_of_environment, validate_default=True
    )
    kv_layout: Literal["HND", "NHD"] = "HND"
    quantization: Literal["int8", "int4"] | None = None
    kv_cache_dtype: Literal["auto", "fp8_e4m3", "int8"] = "auto"
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    enable_prefix_caching: bool = True
    checkpoint_interval: PositiveInt | None = None
    checkpoint_memory: Bytes | None = None
    attention_backend: Literal["auto", "reference", "numba", "triton"] = "auto"
    state_backend: Literal["auto", "reference", "numba", "triton", "mamba_ssm"] = "auto"
    compile: bool = False
    record_decode: bool = True
    cuda_graphs: bool | None = None
    publish_stats: bool = Field(
        default_factory=_publish_stats_of_environment, validate_default=True
    )
    seed: int = Field(default=0, ge=0, lt=2**63)
    poison_freed_pages: bool = False
    ignore_config_keys: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()

    @field_validator("kernel_block_size")
    @classmethod
    def _divides_page(cls, size: int | None, info: Any) -> int | None:
        page_size = info.data.get("page_size")
        if size is not None and page_size is not None and page_size % size:
            raise ValueError(f"should divide page_size={page_size}")
        return size

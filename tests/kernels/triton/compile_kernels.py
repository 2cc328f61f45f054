"""Compiles what the wrappers launch for an H100, without one.

Run with names of cases, or with none for all. The inputs are bfloat16, of the sizes of real
models, and on the device `meta`; a launch becomes a compilation. Prints each kernel with its bytes
of shared memory.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.triton import combine
from hybridrt.kernels.triton.causal_conv1d import causal_conv1d
from hybridrt.kernels.triton.gated_delta_rule import gated_delta_rule
from hybridrt.kernels.triton.mla_attention import mla_attention
from hybridrt.kernels.triton.moe import moe_experts
from hybridrt.kernels.triton.paged_attention import paged_attention
from hybridrt.kernels.triton.rms_norm import add_rms_norm, rms_norm
from hybridrt.kernels.triton.sample import sample
from hybridrt.kernels.triton.selective_scan import selective_scan
from hybridrt.kernels.triton.ssd import ssd
from hybridrt.kernels.triton.write_pages import write_pages

H100 = GPUTarget("cuda", 90, 32)
SHARED_MEMORY = 227 * 1024  # bytes that a program may have there
TYPES = {
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}
_OPTIONS = ("num_warps", "num_stages")


def _compile(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """In place of a launch."""
    options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
    given = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int], Any] = {}
    for i, (parameter, name) in enumerate(zip(kernel.params, kernel.arg_names, strict=True)):
        value = given[name]
        if isinstance(value, Tensor):
            signature[name] = "*" + TYPES[value.dtype]
            attributes[(i,)] = [["tt.divisibility", 16]]
        elif parameter.is_constexpr or value is None:
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            if value == 1 and not parameter.do_not_specialize:
                signature[name], constants[name] = "constexpr", value
                continue
            signature[name] = "i32"
            if value % 16 == 0 and not parameter.do_not_specialize:
                attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    shared = triton.compile(source, target=H100, options=options).metadata.shared
    print(kernel.__name__, shared)
    assert shared <= SHARED_MEMORY, f"{kernel.__name__} needs {shared} bytes of shared memory"


def of(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor of no values."""
    return torch.empty(shape, dtype=dtype, device="meta")


def rows(decodes: int, prefill: int) -> tuple[Rows, Tensor, Tensor]:
    """Decode rows and a prefill row, and the pages of their states."""
    count, ints = decodes + 1, torch.int32
    lengths = torch.tensor([1] * decodes + [prefill])
    contexts, follows = torch.full((count,), 1000), torch.zeros(count, dtype=torch.bool)
    on_device = (of(count, dtype=ints), of(count + 1, dtype=ints), of(count, dtype=torch.bool))
    pages = of(count, dtype=torch.int64)
    return Rows(*on_device, lengths, contexts, follows, decodes), pages, pages


def tokens(batch: Rows, blocks: int) -> TokenPages:
    """Where a batch's tokens are."""
    table = of(batch.num_rows, blocks, dtype=torch.int32)
    return TokenPages(table, of(int(batch.query_lens.sum()), dtype=torch.int64))


def _write() -> None:
    for dtype in (torch.bfloat16, torch.int8):
        kv = of(9, 8, 16, 256, dtype=dtype)[..., :128].transpose(1, 2)
        write_pages(of(100, 8, 128, dtype=dtype), kv, of(100, dtype=torch.int64))


def _attention(dim: int, dtype: torch.dtype, stored: torch.dtype | None = None, **how: Any) -> None:
    batch, *_ = rows(3, 200)
    k, v = of(9, 4, 16, 2 * dim, dtype=stored or dtype).chunk(2, dim=-1)
    q = of(203, 16, dim, dtype=dtype)
    paged_attention(q, k, v, tokens(batch, 100), batch, 0.1, **how)


def _mla(dtype: torch.dtype, quantised: bool = False, queries: int = 16, heads: int = 128) -> None:
    batch, *_ = rows(2, queries)
    c_kv = of(9, 16, 512, dtype=torch.float8_e4m3fn if quantised else dtype)
    scale = of(9, 16, 4, dtype=torch.float32) if quantised else None
    count = 2 + queries
    given = (of(count, heads, 128, dtype=dtype), of(count, heads, 64, dtype=dtype))
    weights = (of(heads, 128, 512, dtype=dtype), of(heads, 128, 512, dtype=dtype))
    pages = (tokens(batch, 100), batch)
    mla_attention(*given, c_kv, of(9, 16, 64, dtype=dtype), *weights, *pages, 0.1, scale)


def _convolution() -> None:
    batch, *pages = rows(3, 200)
    causal_conv1d(of(203, 8192), of(8192, 4), of(8192), of(9, 3, 8192), *pages, batch)


def _scan() -> None:
    batch, *pages = rows(3, 200)
    A, state = of(8192, 16, dtype=torch.float32), of(9, 8192, 16, dtype=torch.float32)
    B, C = of(203, 288)[:, 256:].split(16, dim=1)
    selective_scan(of(203, 8192), of(203, 8192), A, B, C, A[:, 0], state, *pages, batch)


def _dual(size: int, dtype: torch.dtype) -> None:
    batch, *pages = rows(3, 200)
    A, dt = of(64, dtype=torch.float32), of(203, 64, dtype=torch.float32)
    x, B = of(203, 64, 64, dtype=dtype), of(203, 8, size, dtype=dtype)
    state = of(9, 64, 64, size, dtype=torch.float32)
    ssd(x, dt, A, B, B, A, state, *pages, batch, 256)


def _delta(dtype: torch.dtype, dim: int, *channels: int, keys: torch.dtype | None = None) -> None:
    batch, *pages = rows(3, 200)
    beta, state = of(203, 32, dtype=torch.float32), of(9, 32, dim, dim, dtype=torch.float32)
    q, v = of(203, 16, dim, dtype=keys or dtype), of(203, 32, dim, dtype=dtype)
    g = of(203, 32, *channels, dtype=torch.float32)
    gated_delta_rule(q, q, v, g, beta, state, *pages, batch)


def _experts(count: int, *rest: Any) -> None:
    ids, weights = of(count, 8, dtype=torch.int64), of(count, 8, dtype=torch.float32)
    x, gate_up, down = of(count, 2048), of(64, 2816, 2048), of(64, 2048, 1408)
    moe_experts(x, gate_up, down, ids, weights, *rest)


def _norms() -> None:
    for size, dtype in ((2048, torch.bfloat16), (5000, torch.float32)):
        x, weight = of(9, size, dtype=dtype), of(size)
        add_rms_norm(x, of(9, size), weight, 1e-6, 1.0)
        rms_norm(x, weight, 1e-6, 0.0)
    rms_norm(of(9, 16, 256)[..., :128], of(128), 1e-6, 0.0)


def _sample() -> None:
    for vocab in (32_000, 262_144):
        numbers = torch.ones(3, 9, dtype=torch.float64)
        sample(of(9, vocab, dtype=torch.float32), *numbers)


BIASES = (of(64, 2816), of(64, 2048))
TOKEN_SCALES, HEAD_SCALES = (of(*shape, dtype=torch.float32) for shape in ((9, 4, 16), (4,)))
BF16, INT8, FP8 = torch.bfloat16, torch.int8, torch.float8_e4m3fn
CASES: dict[str, Callable[[], None]] = {
    "write_pages": _write,
    "attention": lambda: _attention(128, BF16),
    "attention, wide": lambda: _attention(256, BF16, window=512, softcap=50.0),
    "attention, sinks": lambda: _attention(64, BF16, window=128, sinks=of(16)),
    "attention, int8": lambda: _attention(
        128, BF16, INT8, k_scale=TOKEN_SCALES, v_scale=TOKEN_SCALES
    ),
    "attention, fp8": lambda: _attention(128, BF16, FP8, k_scale=HEAD_SCALES, v_scale=HEAD_SCALES),
    "attention, float32": lambda: _attention(256, torch.float32),
    "attention, narrow float32": lambda: _attention(64, torch.float32),
    "attention, 512 channels": lambda: _attention(512, BF16),
    "latents": lambda: _mla(BF16),
    "latents, few heads": lambda: _mla(BF16, heads=16),
    "latents, expanded": lambda: _mla(BF16, queries=2000),
    "latents, fp8": lambda: _mla(BF16, quantised=True),
    "latents, float32": lambda: _mla(torch.float32),
    "convolution": _convolution,
    "scan": _scan,
    "ssd": lambda: _dual(128, BF16),
    "ssd, float32": lambda: _dual(256, torch.float32),
    "delta rule": lambda: _delta(BF16, 128),
    "delta rule, a decay a channel": lambda: _delta(BF16, 128, 128),
    "delta rule, as a model has it": lambda: _delta(BF16, 128, keys=torch.float32),
    "delta rule, float32": lambda: _delta(torch.float32, 256, 256),
    "experts, few": lambda: _experts(4),
    "experts, many": lambda: _experts(1000),
    "experts, clamped": lambda: _experts(4, *BIASES, "clamped", 1.7, 7.0),
    "experts, gelu": lambda: _experts(4, None, None, "gelu"),
    "norms": _norms,
    "sample": _sample,
}

if __name__ == "__main__":
    JITFunction.run = _compile
    combine.num_processors = lambda _: 132  # so that contexts are split as there
    for name in sys.argv[1:] or CASES:
        CASES[name]()

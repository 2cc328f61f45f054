"""Compiles what the wrappers launch for an H100, without one.

Run with names of cases, or with none for all. The inputs are bfloat16, of the sizes of real
models, and on the device `meta`; a launch becomes a compilation. Prints each kernel with its bytes
of shared memory.
"""

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language import target_info
from triton.runtime.jit import JITFunction

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.moe import UNSORTED_TOKENS
from hybridrt.kernels.reference.gates import Gating
from hybridrt.kernels.reference.route import Routing
from hybridrt.kernels.shared_expert import SharedExpert
from hybridrt.kernels.triton import combine, few_rows, launch, mla_project
from hybridrt.kernels.triton import few_experts as few
from hybridrt.kernels.triton.causal_conv1d import causal_conv1d
from hybridrt.kernels.triton.delta_inputs import delta_inputs
from hybridrt.kernels.triton.few_experts import few_experts
from hybridrt.kernels.triton.few_rows import few_rows_linear
from hybridrt.kernels.triton.gated import add, add_gated, gated, gated_by, relu2, sigmoid_gated
from hybridrt.kernels.triton.gated_delta_rule import gated_delta_rule
from hybridrt.kernels.triton.gated_rms_norm import gated_rms_norm
from hybridrt.kernels.triton.kda_inputs import kda_inputs
from hybridrt.kernels.triton.mla_attention import mla_attention
from hybridrt.kernels.triton.mla_values import join_and_expand
from hybridrt.kernels.triton.moe import moe_experts
from hybridrt.kernels.triton.one_row import one_row_linear
from hybridrt.kernels.triton.one_row_experts import one_row_experts
from hybridrt.kernels.triton.one_row_pair import one_row_pair
from hybridrt.kernels.triton.paged_attention import paged_attention
from hybridrt.kernels.triton.rms_norm import add_rms_norm, rms_norm, rms_norm_three
from hybridrt.kernels.triton.rotate import rotate, rotate_normed
from hybridrt.kernels.triton.rotate_and_norm import rotate_and_norm
from hybridrt.kernels.triton.route import route
from hybridrt.kernels.triton.sample import likeliest, sample
from hybridrt.kernels.triton.scan_inputs import scan_inputs
from hybridrt.kernels.triton.selective_scan import selective_scan
from hybridrt.kernels.triton.spread_rows import spread_rows
from hybridrt.kernels.triton.ssd import ssd
from hybridrt.kernels.triton.weighted_sum import weighted_sum
from hybridrt.kernels.triton.write_pages import write_each, write_pages

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
_OPTIONS = ("num_warps", "num_stages", "launch_pdl")


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
    return Rows(*on_device, lengths, contexts, follows, decodes, False), pages, pages


def tokens(batch: Rows, blocks: int) -> TokenPages:
    """Where a batch's tokens are."""
    table = of(batch.num_rows, blocks, dtype=torch.int32)
    return TokenPages(table, of(int(batch.query_lens.sum()), dtype=torch.int64))


def _write() -> None:
    for dtype in (torch.bfloat16, torch.int8):
        kv = of(9, 8, 16, 256, dtype=dtype)[..., :128].transpose(1, 2)
        k, slots = of(100, 8, 128, dtype=dtype), of(100, dtype=torch.int64)
        write_pages(k, kv, slots)
        write_each((k, k), (kv, kv), slots)
    write_each((of(9, 512), of(9, 64)), (of(9, 16, 512), of(9, 16, 64)), slots)


def _attention(dim: int, dtype: torch.dtype, stored: torch.dtype | None = None, **how: Any) -> None:
    batch, *_ = rows(3, 200)
    k, v = of(9, 4, 16, 2 * dim, dtype=stored or dtype).chunk(2, dim=-1)
    q = of(203, 16, dim, dtype=dtype)
    paged_attention(q, k, v, tokens(batch, 100), batch, 0.1, **how)


def _mla(
    dtype: torch.dtype,
    quantised: bool = False,
    queries: int = 16,
    heads: int = 128,
    dims: tuple[int, int, int] = (128, 64, 128),
) -> None:
    batch, *_ = rows(2, queries)
    c_kv = of(9, 16, 512, dtype=torch.float8_e4m3fn if quantised else dtype)
    scale = of(9, 16, 4, dtype=torch.float32) if quantised else None
    nope, rope, v = dims
    given = [of(2 + queries, heads, dim, dtype=dtype) for dim in (nope, rope)]
    weights = [of(heads, dim, 512, dtype=dtype) for dim in (nope, v)]
    pages = (tokens(batch, 100), batch)
    mla_attention(*given, c_kv, of(9, 16, rope, dtype=dtype), *weights, *pages, 0.1, scale)


def _mla_projections() -> None:
    for dtype in (BF16, torch.float32):
        for heads in (16, 128):
            weights = of(heads, 256, 512, dtype=dtype)
            for count in (1, 17, 64, 128):
                q = of(count, heads, 192, dtype=dtype)[..., :128]
                latents = mla_project.absorb(q, weights[:, :128])
                mla_project.expand_values(
                    latents, weights[:, 128:], of(count, heads, 128, dtype=dtype)
                )
            for splits in (2, 64):
                parts = of(1, heads, splits, 512, dtype=torch.float32)
                out = of(1, heads, 128, dtype=dtype)
                join_and_expand(parts, parts[..., 0], weights[:, 128:], out)


def _convolution() -> None:
    batch, *pages = rows(3, 200)
    causal_conv1d(of(203, 8192), of(8192, 4), of(8192), of(9, 3, 8192), *pages, batch)


def _scan() -> None:
    batch, *pages = rows(3, 200)
    A, state = of(8192, 16, dtype=torch.float32), of(9, 8192, 16, dtype=torch.float32)
    B, C = of(203, 288)[:, 256:].split(16, dim=1)
    dt = of(203, 8192, dtype=torch.float32)
    selective_scan(of(203, 8192), dt, A, B, C, A[:, 0], state, *pages, batch)


def _dual(size: int, dtype: torch.dtype, heads: int = 64) -> None:
    batch, *pages = rows(3, 200)
    A, dt = of(heads, dtype=torch.float32), of(203, heads, dtype=torch.float32)
    x, B = of(203, heads, 64, dtype=dtype), of(203, max(1, heads // 8), size, dtype=dtype)
    state = of(9, heads, 64, size, dtype=torch.float32)
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
    run = few_experts if count <= UNSORTED_TOKENS else moe_experts
    run(x, gate_up, down, ids, weights, *rest)


def _few_experts(
    count: int, experts: int, top_k: int, inner: int, dtype: torch.dtype = torch.bfloat16
) -> None:
    ids, weights = of(count, top_k, dtype=torch.int64), of(count, top_k, dtype=torch.float32)
    matrices = of(experts, 2 * inner, 2048, dtype=dtype), of(experts, 2048, inner, dtype=dtype)
    few_experts(of(count, 2048, dtype=dtype), *matrices, ids, weights)


def _with_shared(experts: int, top_k: int, inner: int, shared: int, gated: bool) -> None:
    ids, weights = of(1, top_k, dtype=torch.int64), of(1, top_k, dtype=torch.float32)
    stacks = of(experts, 2 * inner, 2048), of(experts, 2048, inner)
    gate = of(1, 2048) if gated else None
    beside = SharedExpert(of(2 * shared, 2048), of(2048, shared), gate)
    one_row_experts(of(1, 2048), *stacks, ids, weights, shared=beside)


def _sorted_experts() -> None:
    for count in (100, 3000, 8192):
        for dtype in (torch.bfloat16, torch.float32):
            ids = of(count, 10, dtype=torch.int64)
            weights = of(count, 10, dtype=torch.float32)
            matrices = of(512, 1024, 2048, dtype=dtype), of(512, 2048, 512, dtype=dtype)
            moe_experts(of(count, 2048, dtype=dtype), *matrices, ids, weights)
    matrices = of(512, 1000, 2000), of(512, 2000, 1000)
    moe_experts(of(8192, 2000), *matrices, ids, weights, gating="relu2")
    moe_experts(of(8192, 1), of(9, 2, 1), of(9, 1, 1), ids, weights, of(9, 2), of(9, 1))


def _spread() -> None:
    for experts, top_k in ((64, 6), (512, 10), (8, 1)):
        ids = of(8192, top_k, dtype=torch.int64)
        spread = spread_rows(of(8192, 2048), ids, experts)
        weights = of(8192, top_k, dtype=torch.float32)
        weighted_sum(spread.rows, weights, spread.places, torch.bfloat16)


def _route() -> None:
    for count in (1, 64, 1000):
        for experts, top_k in ((64, 6), (512, 10)):
            x, weight = of(count, 2048), of(experts, 2048)
            route(x, weight, None, Routing(top_k, "softmax", True, 1e-20, 1.0))
        weight, bias = (of(*shape, dtype=torch.float32) for shape in ((256, 7168), (256,)))
        routing = Routing(8, "sigmoid", True, 1e-20, 2.5, 8, 4, "top2")
        route(of(count, 7168), weight, bias, routing)


def _norms() -> None:
    for size, dtype in ((2048, torch.bfloat16), (5000, torch.float32)):
        x, weight = of(9, size, dtype=dtype), of(size)
        add_rms_norm(x, of(9, size), weight, 1e-6, 1.0)
        rms_norm(x, weight, 1e-6, 0.0)
    rms_norm(of(9, 16, 256)[..., :128], of(128), 1e-6, 0.0)
    parts = of(9, 288).split([256, 16, 16], dim=-1)
    rms_norm_three(parts, (of(256), of(16), of(16)), 1e-6)


def _few_rows() -> None:
    for rows in (2, 64):
        few_rows_linear(of(rows, 4096), of(6144, 4096), None)  # in one part
        few_rows_linear(of(rows, 8192), of(4096, 8192), None)  # in two
        few_rows_linear(of(rows, 8192), of(288, 8192), of(288))  # the narrowest
        few_rows_linear(of(rows, 5000), of(77, 5000), of(77))


def _one_row() -> None:
    one_row_linear(of(1, 4096), of(6144, 4096), of(6144))
    one_row_linear(of(1, 5000), of(77, 5000), None)
    one_row_pair(of(1, 2048), (of(576, 2048), of(3072, 2048)), (None, None))
    one_row_pair(of(1, 2048), (of(576, 2048), of(3072, 2048)), (of(576), None))


def _gates() -> None:
    for gating in ("silu", "silu of scaled", "gelu", "gelu_pytorch_tanh", "limited", *BY_TURNS):
        gated(of(9, 28672), gating, 1.7, 7.0)
    gated(of(9, 4096, dtype=torch.float32), "silu", 1.0, 1.0)
    x = of(9, 8192)[:, :4000]
    gated_by(x, of(9, 4000))
    add_gated(x, x, of(9, 1))
    sigmoid_gated(of(9, 4096), of(9, 9216)[:, 5120:])
    sigmoid_gated(of(9, 32, 128), of(9, 32, 1))
    relu2(of(9, 21504))
    add(x, x)


def _rotations() -> None:
    positions, table = of(9, dtype=torch.int64), of(4096, 2, 64, dtype=torch.float32)
    for interleaved in (False, True):
        qk = of(9, 48 * 128).unflatten(1, (48, 128))
        rotate(qk[:, :40], table, positions, interleaved, False)
        norm = (of(128), of(128), 1e-6, 0.0)
        rotate_normed(qk[:, :40], qk[:, 40:], *norm, table, positions, interleaved)
        rotate(of(9, 16, 256), table[..., :32], positions, interleaved, True)
        q, k, weight = of(9, 16, 256), of(9, 2, 256), of(256)
        part = (table[..., :32], positions, interleaved)
        rotate_normed(q, k, weight, weight, 1e-6, 1.0, *part)
        rotate(of(9, 1, 80), table[..., :10], positions, interleaved, False)
        heads, kv = of(9, 16, 192)[..., 128:], of(9, 576)
        norm = (kv[:, :512], of(512), 1e-6, 0.0)
        where = (table[..., :32], positions, interleaved)
        rotate_and_norm(heads, kv[:, None, 512:], *norm, *where)


def _gated_norms() -> None:
    wide = of(9, 12_288)
    gated_rms_norm(wide[:, :8192], wide[:, 4096:], of(8192), 1e-5, 8, False, "silu")
    gated_rms_norm(wide[:, :8192], wide[:, 4096:], of(8192), 1e-5, 1, False, "silu")
    heads = wide[:, 4096:8192].unflatten(-1, (32, 128))
    gated_rms_norm(of(9, 32, 128), heads, of(128), 1e-5, 1, True, "sigmoid")


def _inputs() -> None:
    single, wide = torch.float32, of(9, 12_352)
    biases, rates = of(8192, dtype=single), of(8192, 16, dtype=single)
    scan_inputs(wide[:, -64:], biases[:64], biases[:64], (1e-3, 0.1))
    scan_inputs(wide[:, :8192], None, rates, (0.0, math.inf))
    gates = (wide[:, -64:-32], wide[:, -32:], biases[:32], biases[:32])
    delta_inputs(wide[:, :4096], *gates, 16, 1.0)
    for bound in (None, -5.0):
        parts = (wide[:, :4096], wide[:, 4096:8192], of(9, 4096), wide[:, -32:])
        kda_inputs(*parts, biases[:32], biases[:4096], bound)


def _sample() -> None:
    for vocab in (32_000, 262_144):
        numbers = torch.ones(3, 9, dtype=torch.float64)
        sample(of(9, vocab, dtype=torch.float32), *numbers)
        likeliest(of(9, vocab, dtype=torch.float32))


BY_TURNS: tuple[Gating, ...] = ("clamped", "clamped halves", "silu by turns", "bent by turns")
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
    "attention, 192 channels": lambda: _attention(192, BF16),
    "attention, 192 float32 channels": lambda: _attention(192, torch.float32),
    "attention, 80 channels": lambda: _attention(80, BF16),
    "latents": lambda: _mla(BF16),
    "latents, few heads": lambda: _mla(BF16, heads=16),
    "latents, expanded": lambda: _mla(BF16, queries=2000),
    "latents, expanded to 256 channels": lambda: _mla(BF16, queries=9000, dims=(192, 64, 256)),
    "latents, expanded to parts of 128": lambda: _mla(BF16, queries=9000, dims=(128, 128, 128)),
    "latents, expanded in float32": lambda: _mla(torch.float32, queries=2000),
    "latents, fp8": lambda: _mla(BF16, quantised=True),
    "latents, fp8, few heads": lambda: _mla(BF16, quantised=True, heads=16),
    "latents, float32": lambda: _mla(torch.float32),
    "latents, projections": _mla_projections,
    "convolution": _convolution,
    "scan": _scan,
    "ssd": lambda: _dual(128, BF16),
    "ssd, a head": lambda: _dual(128, BF16, heads=1),
    "ssd, many states": lambda: _dual(256, BF16),
    "ssd, float16": lambda: _dual(128, torch.float16),
    "ssd, float32": lambda: _dual(256, torch.float32),
    "delta rule": lambda: _delta(BF16, 128),
    "delta rule, a decay a channel": lambda: _delta(BF16, 128, 128),
    "delta rule, as a model has it": lambda: _delta(BF16, 128, keys=torch.float32),
    "delta rule, float16": lambda: _delta(torch.float16, 128),
    "delta rule, narrow float32": lambda: _delta(torch.float32, 128),
    "delta rule, float32": lambda: _delta(torch.float32, 256, 256),
    "experts, few": lambda: _experts(4),
    "experts, many": lambda: _experts(1000),
    "experts, clamped": lambda: _experts(4, *BIASES, "clamped", 1.7, 7.0),
    "experts, gelu": lambda: _experts(4, None, None, "gelu"),
    "experts, one token": lambda: _few_experts(1, 64, 6, 1408),
    "experts, one token, biased": lambda: _experts(1, *BIASES, "clamped", 1.7, 7.0),
    "experts, one token, relu2": lambda: _experts(1, None, None, "relu2"),
    "experts, one token, shared": lambda: _with_shared(64, 6, 1408, 2816, False),
    "experts, one token, shared and gated": lambda: _with_shared(512, 10, 512, 512, True),
    "experts, one token, shared and wide": lambda: _with_shared(60, 4, 1408, 5632, True),
    "experts, 512": lambda: _few_experts(64, 512, 10, 512),
    "experts, eight": lambda: _few_experts(64, 8, 2, 4096),
    "experts, crowded": lambda: _few_experts(64, 8, 4, 4096),
    "experts, float32": lambda: _few_experts(64, 8, 4, 4096, torch.float32),
    "experts, relu2": lambda: _experts(4, None, None, "relu2"),
    "experts, sorted": _sorted_experts,
    "experts, spread": _spread,
    "route": _route,
    "norms": _norms,
    "few rows": _few_rows,
    "one row": _one_row,
    "gates": _gates,
    "rotations": _rotations,
    "gated norms": _gated_norms,
    "inputs": _inputs,
    "sample": _sample,
}

if __name__ == "__main__":
    JITFunction.run = _compile
    launch._starts_early = lambda: True
    target_info.current_target = lambda: H100
    target_info.current_target.__triton_builtin__ = True
    # So that contexts are split, and matrices cut, as there.
    for module in (combine, few, few_rows, mla_project):
        module.num_processors = lambda _: 132
    for name in sys.argv[1:] or CASES:
        CASES[name]()

"""Each kernel for CUDA beside the one that others have for it, on the same tensors.

    python benchmarks/gpu_kernels.py [NAME ...] [--out FILE.json]

Ours are Triton's (`hybridrt/kernels/triton`). Beside them stand torch's FlashAttention, norm and
grouped product, causal-conv1d's and mamba-ssm's kernels where they are installed, and cuBLAS. A
time is the median of a CUDA graph's launches, so that no host is in it. With `--out`, a table
stands beside it as Markdown; what a file has of other kernels stays, with its commit.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gpu_tables
import torch
from about import machine
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.testing import do_bench_cudagraph

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels import gated as gates
from hybridrt.kernels.add import add
from hybridrt.kernels.linear import linear
from hybridrt.kernels.odd_linear import VECTOR, odd_linear
from hybridrt.kernels.reference import moe as grouped
from hybridrt.kernels.reference import route as torch_route
from hybridrt.kernels.reference.route import Routing
from hybridrt.kernels.shared_expert import SharedExpert, moe_with_shared
from hybridrt.kernels.triton.causal_conv1d import causal_conv1d
from hybridrt.kernels.triton.few_experts import few_experts
from hybridrt.kernels.triton.few_rows import few_rows_linear
from hybridrt.kernels.triton.gated_delta_rule import gated_delta_rule
from hybridrt.kernels.triton.grouped_moe import grouped_experts
from hybridrt.kernels.triton.mla_attention import mla_attention
from hybridrt.kernels.triton.moe import moe_experts as sorted_experts
from hybridrt.kernels.triton.one_row import one_row_linear
from hybridrt.kernels.triton.paged_attention import paged_attention
from hybridrt.kernels.triton.rms_norm import add_rms_norm
from hybridrt.kernels.triton.route import route
from hybridrt.kernels.triton.selective_scan import selective_scan
from hybridrt.kernels.triton.ssd import ssd

CUDA, BF16 = torch.device("cuda"), torch.bfloat16
TOKENS = 8192
Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A piece of work: its least bytes, its operations, and who does it, so often in a run."""

    name: str
    num_bytes: float
    operations: float
    sides: dict[str, Run]
    times: int = 1


def normal(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, device=CUDA).to(dtype)


def uniform(*shape: int) -> Tensor:
    return torch.rand(shape, device=CUDA)


def decodes(count: int, context: int) -> Rows:
    """Rows of one token each."""
    return _rows([1] * count, [context] * count, count)


def prefill(tokens: int) -> Rows:
    """A row of new tokens alone."""
    return _rows([tokens], [0], 0)


def _rows(lengths: list[int], contexts: list[int], num_decodes: int) -> Rows:
    lens, context = torch.tensor(lengths), torch.tensor(contexts)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), lens.cumsum(0)])
    on_device = ((lens + context).int(), ends.int(), context > 0)
    follows = torch.zeros(len(lens), dtype=torch.bool)
    seq_lens, cu_seqlens, has_state = (part.to(CUDA) for part in on_device)
    is_new = not any(contexts[num_decodes:])
    return Rows(seq_lens, cu_seqlens, has_state, lens, context, follows, num_decodes, is_new)


def pages_of(batch: Rows, size: int = 16) -> TokenPages:
    """A page table of blocks in any order."""
    longest = int((batch.query_lens + batch.context_lens).max())
    blocks = -(-longest // size)
    order = torch.randperm(batch.num_rows * blocks, device=CUDA).int()
    slots = torch.zeros(int(batch.query_lens.sum()), dtype=torch.int64, device=CUDA)
    return TokenPages(order.view(batch.num_rows, blocks), slots)


def attention(batch: Rows, heads: int = 32, kv_heads: int = 8, dim: int = 128) -> Case:
    """Of a prompt, or of decodes: keys and values in blocks of 16 tokens."""
    pages, rows = pages_of(batch), batch.num_rows
    tokens = int(batch.query_lens.sum())
    context = int(batch.context_lens[0])
    blocks = pages.page_table.numel()
    k, v = normal(blocks, kv_heads, 16, 2 * dim).split(dim, dim=-1)
    q = normal(tokens, heads, dim)
    total = context + tokens // rows
    q_flat = normal(rows, heads, tokens // rows, dim)
    keys, values = (normal(rows, kv_heads, total, dim) for _ in range(2))

    def flash() -> object:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            is_causal = context == 0
            return F.scaled_dot_product_attention(
                q_flat, keys, values, is_causal=is_causal, enable_gqa=True
            )

    pairs = total * total / 2 if context == 0 else total
    work = 4 * rows * heads * dim * pairs
    num_bytes = rows * total * kv_heads * dim * 4 + 2 * q.nbytes
    sides = {"ours": lambda: paged_attention(q, k, v, pages, batch, 0.1), "flash": flash}
    return Case(_kind(f"attention of {dim}", batch), num_bytes, work, sides)


def latents(rows: int, heads: int = 16, rank: int = 512, rope: int = 64) -> Case:
    """MLA of decodes behind 8,192 tokens."""
    batch = decodes(rows, TOKENS - 1)
    pages = pages_of(batch)
    blocks = pages.page_table.numel()
    c_kv, k_pe = normal(blocks, 16, rank + rope).split([rank, rope], dim=-1)
    q, q_pe = normal(rows, heads, 128), normal(rows, heads, rope)
    up, out = normal(heads, 128, rank), normal(heads, 128, rank)

    def ours() -> object:
        return mla_attention(q, q_pe, c_kv, k_pe, up, out, pages, batch, 0.1)

    num_bytes = rows * TOKENS * (rank + rope) * 2
    work = 2 * rows * TOKENS * heads * (2 * rank + rope)
    return Case(f"latents, {rows} decodes", num_bytes, work, {"ours": ours})


def convolution(batch: Rows, channels: int = 8192) -> Case:
    """Over 4 tokens, with a silu behind it."""
    tokens, rows = int(batch.query_lens.sum()), batch.num_rows
    x, weight, bias = normal(tokens, channels), normal(channels, 4), normal(channels)
    state, pages = normal(rows, 3, channels), torch.arange(rows, device=CUDA)
    sides: dict[str, Run] = {
        "ours": lambda: causal_conv1d(x, weight, bias, state, pages, pages, batch)
    }
    is_decode = batch.num_decodes > 0
    try:
        import causal_conv1d as package  # pyright: ignore[reportMissingImports]

        theirs, index = state.transpose(1, 2), pages.int()
        sides["causal-conv1d"] = (
            (
                lambda: package.causal_conv1d_update(
                    x, theirs, weight, bias, activation="silu", conv_state_indices=index
                )
            )
            if is_decode
            else (lambda: package.causal_conv1d_fn(x.t()[None], weight, bias, activation="silu"))
        )
    except ImportError:
        pass
    num_bytes = 2 * x.nbytes + (2 * state.nbytes if is_decode else 0)
    return Case(_kind("convolution", batch), num_bytes, 8 * x.numel(), sides)


def scan(batch: Rows, channels: int = 8192, size: int = 16) -> Case:
    """Mamba-1's."""
    tokens, rows = int(batch.query_lens.sum()), batch.num_rows
    x, dt, B, C = (normal(tokens, count) for count in (channels, channels, size, size))
    dt = (dt.float().sigmoid() / 10).to(BF16)
    A, D = -uniform(channels, size) - 0.5, uniform(channels)
    state, pages = torch.zeros(rows, channels, size, device=CUDA), torch.arange(rows, device=CUDA)
    sides: dict[str, Run] = {
        "ours": lambda: selective_scan(x, dt, A, B, C, D, state, pages, pages, batch)
    }
    try:
        from mamba_ssm.ops.selective_scan_interface import (  # pyright: ignore[reportMissingImports]
            selective_scan_fn,
        )
        from mamba_ssm.ops.triton.selective_state_update import (  # pyright: ignore[reportMissingImports]
            selective_state_update,
        )

        index, no_bias = pages.int(), torch.zeros(channels, device=CUDA)

        def turned() -> list[Tensor]:
            """As its kernel for prompts takes them: a channel's tokens one behind the other."""
            return [part.t().contiguous()[None] for part in (x, dt, B, C)]

        def scan_prompt(x: Tensor, dt: Tensor, B: Tensor, C: Tensor) -> object:
            return selective_scan_fn(x, dt, A, B, C, D, return_last_state=True)

        sides["mamba-ssm"] = (
            (
                lambda: selective_state_update(
                    state, x, dt, A, B, C, D, dt_bias=no_bias, state_batch_indices=index
                )
            )
            if batch.num_decodes
            else lambda: scan_prompt(*turned())
        )
        if not batch.num_decodes:
            already = turned()
            sides["mamba-ssm, turned before"] = lambda: scan_prompt(*already)
    except ImportError:
        pass
    states = 2 * state.nbytes if batch.num_decodes else 0
    work = 6 * tokens * channels * size
    return Case(_kind("selective scan", batch), 3 * x.nbytes + states, work, sides)


def dual(batch: Rows, heads: int = 128, dim: int = 64, size: int = 128, groups: int = 8) -> Case:
    """Mamba-2's."""
    tokens, rows = int(batch.query_lens.sum()), batch.num_rows
    x, B, C = normal(tokens, heads, dim), *(normal(tokens, groups, size) for _ in range(2))
    dt, A, D = uniform(tokens, heads) / 10, -uniform(heads) - 0.5, uniform(heads)
    state = torch.zeros(rows, heads, dim, size, device=CUDA)
    pages = torch.arange(rows, device=CUDA)
    sides: dict[str, Run] = {
        "ours": lambda: ssd(x, dt, A, B, C, D, state, pages, pages, batch, 256)
    }
    try:
        from mamba_ssm.ops.triton.selective_state_update import (  # pyright: ignore[reportMissingImports]
            selective_state_update,
        )
        from mamba_ssm.ops.triton.ssd_combined import (  # pyright: ignore[reportMissingImports]
            mamba_chunk_scan_combined,
        )

        index = pages.int()
        wide = (dt[:, :, None].expand(-1, -1, dim), A[:, None, None].expand(-1, dim, size))
        D_wide, no_bias = (part[:, None].expand(-1, dim) for part in (D, torch.zeros_like(D)))
        sides["mamba-ssm"] = (
            (
                lambda: selective_state_update(
                    *(state, x, *wide, B, C, D_wide),
                    dt_bias=no_bias,
                    state_batch_indices=index,
                )
            )
            if batch.num_decodes
            else (
                lambda: mamba_chunk_scan_combined(
                    x[None], dt[None], A, B[None], C[None], 256, D=D, return_final_states=True
                )
            )
        )
    except ImportError:
        pass
    states = 2 * state.nbytes if batch.num_decodes else 0
    work = 4 * tokens * heads * dim * size
    return Case(_kind("ssd", batch), 2 * x.nbytes + 2 * B.nbytes + states, work, sides)


def delta(batch: Rows, by_channel: bool, heads: int = 32, dim: int = 128) -> Case:
    """Gated delta net's, or Kimi's with a decay for each channel; as layers give it."""
    tokens, rows = int(batch.query_lens.sum()), batch.num_rows
    q, k = (F.normalize(normal(tokens, heads, dim).float(), dim=-1) for _ in range(2))
    v = normal(tokens, heads, dim)
    g = -uniform(tokens, heads, *((dim,) if by_channel else ())) / 10
    beta, state = uniform(tokens, heads), torch.zeros(rows, heads, dim, dim, device=CUDA)
    pages = torch.arange(rows, device=CUDA)

    def ours() -> object:
        return gated_delta_rule(q, k, v, g, beta, state, pages, pages, batch)

    states = 2 * state.nbytes if batch.num_decodes else 0
    work = 6 * tokens * heads * dim * dim
    name = "delta rule by channel" if by_channel else "delta rule"
    num_bytes = 2 * q.nbytes + 2 * v.nbytes + g.nbytes + states
    return Case(_kind(name, batch), num_bytes, work, {"ours": ours})


def experts(
    tokens: int, count: int = 64, top_k: int = 6, inner: int = 1408, hidden: int = 2048
) -> Case:
    """DeepSeek-V2-Lite's, or others."""
    x, gate_up = normal(tokens, hidden), normal(count, 2 * inner, hidden)
    down = normal(count, hidden, inner)
    ids = uniform(tokens, count).topk(top_k).indices
    args = (x, gate_up, down, ids, uniform(tokens, top_k))
    sides: dict[str, Run] = {
        "sorted": lambda: sorted_experts(*args),
        "grouped": lambda: grouped_experts(*args),
        "torch": lambda: grouped.moe_experts(*args),
    }
    if tokens <= 512:
        sides = {"few": lambda: few_experts(*args)} | sides
    used = len(ids.unique())
    return Case(
        f"{count} experts, {tokens} tokens",
        used * 3 * inner * hidden * 2,
        6 * tokens * top_k * inner * hidden,
        sides,
    )


def with_shared(
    count: int, top_k: int, inner: int, shared: int, gated: bool, hidden: int = 2048
) -> Case:
    """One token's experts and the one that sees every token, at once and one after the other."""
    shapes = ((1, hidden), (count, 2 * inner, hidden), (count, hidden, inner))
    x, gate_up, down = (normal(*shape) for shape in shapes)
    beside = SharedExpert(
        normal(2 * shared, hidden), normal(hidden, shared), normal(1, hidden) if gated else None
    )
    args = (x, gate_up, down, uniform(1, count).topk(top_k).indices, uniform(1, top_k))

    def apart() -> object:
        values = gates.gated(linear(x, beside.gate_up, None))
        out, routed = linear(values, beside.down, None), few_experts(*args)
        if beside.gate is None:
            return add(routed, out)
        return gates.add_gated(routed, out, linear(x, beside.gate, None))

    sides: dict[str, Run] = {"ours": lambda: moe_with_shared(*args, beside), "apart": apart}
    numbers = (top_k * inner + shared) * 3 * hidden
    return Case(f"{count} experts and a shared one", 2 * numbers, 2 * numbers, sides)


def router(tokens: int, count: int, top_k: int, hidden: int = 2048) -> Case:
    """Logits in float32, softmax and the best."""
    x, weight = normal(tokens, hidden), normal(count, hidden)
    routing = Routing(top_k, "softmax", True, 1e-20, 1.0)
    return Case(
        f"router of {count}, {tokens} tokens",
        weight.nbytes + x.nbytes,
        2 * tokens * count * hidden,
        {
            "ours": lambda: route(x, weight, None, routing),
            "torch": lambda: torch_route.route(x, weight, None, routing),
        },
    )


def norm(tokens: int, hidden: int = 4096) -> Case:
    """A residual sum and the norm behind it."""
    x, residual, weight = normal(tokens, hidden), normal(tokens, hidden), normal(hidden)

    def theirs() -> object:
        total = x + residual
        return total, F.rms_norm(total, (hidden,), weight, 1e-6)

    sides: dict[str, Run] = {
        "ours": lambda: add_rms_norm(x, residual, weight, 1e-6, 0.0),
        "torch": theirs,
    }
    return Case(f"sum and norm, {tokens} tokens", 4 * x.nbytes, 0, sides)


def product(tokens: int, inputs: int, outputs: int) -> Case:
    """A linear layer, with so many weights that they come from memory."""
    times = max(2, 5 * 10**8 // (2 * inputs * outputs))
    x, weights = normal(tokens, inputs), [normal(outputs, inputs) for _ in range(times)]
    work = 2 * tokens * inputs * outputs
    name = f"product, {tokens} x {inputs} x {outputs}"
    of_few = one_row_linear if tokens == 1 else few_rows_linear
    linear = odd_linear if outputs % VECTOR else of_few
    sides: dict[str, Run] = {
        "ours": lambda: [linear(x, weight, None) for weight in weights],
        "cuBLAS": lambda: [F.linear(x, weight) for weight in weights],
    }
    return Case(name, weights[0].nbytes, work, sides, times)


def _kind(name: str, batch: Rows) -> str:
    return f"{name}, {batch.num_decodes} decodes" if batch.num_decodes else f"{name}, prompt"


def cases() -> Iterator[Callable[[], Case]]:
    """All of them, made one after the other."""
    yield partial(attention, prefill(TOKENS))
    yield partial(attention, prefill(TOKENS), 16, 2, 256)
    for rows in (1, 64):
        yield partial(attention, decodes(rows, TOKENS - 1))
    for rows in (1, 64):
        yield partial(latents, rows)
    for batch in (prefill(TOKENS), decodes(1, 100), decodes(64, 100)):
        yield partial(convolution, batch)
        yield partial(scan, batch)
        yield partial(dual, batch)
    for tokens in (1, 8, 64, 128, 256, TOKENS):
        yield partial(experts, tokens)
        yield partial(experts, tokens, 512, 10, 512)
        yield partial(router, tokens, 64, 6)
        yield partial(router, tokens, 512, 10)
    yield partial(with_shared, 64, 6, 1408, 2816, False)
    yield partial(with_shared, 512, 10, 512, 512, True)
    yield partial(with_shared, 256, 8, 1024, 1024, False, 2304)
    for tokens in (1, 64, TOKENS):
        yield partial(norm, tokens)
    shapes = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (8192, 4096))
    for shape in (*shapes, (4096, 16384), (2048, 12288), (4096, 2048), (4096, 128256)):
        for tokens in (1, 16, 64):
            yield partial(product, tokens, *shape)
    for tokens in (8, 64, 256):
        yield partial(product, tokens, 3072, 130_049)
    for batch in (prefill(TOKENS), decodes(1, 100), decodes(64, 100)):
        yield partial(delta, batch, False)
        yield partial(delta, batch, True)


def measure(case: Case) -> dict[str, Any]:
    """Seconds of each side, or why it has none."""
    found: dict[str, Any] = {}
    for name, run in case.sides.items():
        try:
            with torch.inference_mode():
                milliseconds: Any = do_bench_cudagraph(run, rep=15, return_mode="median")
                found[name] = milliseconds / 1000 / case.times
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return found


def main(arguments: Sequence[str]) -> None:
    """Reads the command line, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    about, rows = machine(), gpu_tables.measured_before(options.out, "kernels")
    for make in cases():
        case = make()
        if options.names and not any(name in case.name for name in options.names):
            continue
        found = measure(case)
        known = {"name": case.name, "bytes": case.num_bytes, "operations": case.operations}
        rows[case.name] = known | found | {"commit": about["commit"]}
        cells = [_cell(case, name, took) for name, took in found.items()]
        print(f"{case.name}: {'; '.join(cells)}", flush=True)
        if options.out:
            kernels = [*rows.values()]
            text = json.dumps({"machine": about, "kernels": kernels}, indent=1)
            options.out.write_text(text + "\n", encoding="utf-8")
            command = shlex.join(["python", "benchmarks/gpu_kernels.py", *arguments])
            gpu_tables.write(options.out, command, about, gpu_tables.of_kernels(kernels))


def _cell(case: Case, name: str, took: Any) -> str:
    if isinstance(took, str):
        return f"{name} {took}"
    rate = f"{case.num_bytes / took / 1e12:.2f} TB/s, {case.operations / took / 1e12:.0f} TFLOP/s"
    return f"{name} {1e6 * took:.1f} us ({rate})"


if __name__ == "__main__":
    main(sys.argv[1:])

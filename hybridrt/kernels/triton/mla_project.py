"""MLA's queries taken to latents, and latents to values: a product of each head's own weight.

Those of few tokens are at work for less time than cuBLAS takes to start, and ask for their weights
while the kernel before them is at work.
"""

from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.triton.launch import (
    FLOAT32_DOT,
    block_of,
    cdiv,
    kernel,
    num_processors,
    wait_for_earlier,
)

_MOST_TOKENS = 128  # with more, the products are cuBLAS's
_MOST_ROWS = 32  # of a tile: all inputs of so many are in registers, asked for at once
_WEIGHTS = 8192  # of a tile, asked for before what they are multiplied with is there
_MOST_INPUTS, _MOST_OUTPUTS = 512, 64  # of a tile


def absorb(
    q_nope: Float[Tensor, "tokens heads nope_dim"], w_uk: Float[Tensor, "heads nope_dim rank"]
) -> Float[Tensor, "tokens heads rank"]:
    """The part of queries that can be compared with latents."""
    tokens, heads, _ = q_nope.shape
    # By heads, as cuBLAS writes what it is given to write.
    out = q_nope.new_empty(heads, tokens, w_uk.shape[2]).transpose(0, 1)
    project(q_nope, w_uk, out)
    return out


def expand_values(
    latent: Float[Tensor, "tokens heads rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    out: Float[Tensor, "tokens heads v_dim"],
) -> None:
    """Each head's value, of a latent that it attended to."""
    project(latent, w_uv.transpose(1, 2), out)


def project(
    x: Float[Tensor, "tokens heads inputs"],
    weight: Float[Tensor, "heads inputs outputs"],
    out: Float[Tensor, "tokens heads outputs"],
) -> None:
    """`out[:, h] = x[:, h] @ weight[h]`, summed in float32."""
    (tokens, heads, inputs), outputs = x.shape, weight.shape[2]
    if tokens > _MOST_TOKENS:
        torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))
        return
    if out.numel() == 0:
        return
    block_m, block_k, block_n = _tile(x, outputs)
    grid = (heads, cdiv(outputs, block_n), cdiv(tokens, block_m))
    _project[grid](
        x,
        weight,
        out,
        *x.stride(),
        *weight.stride(),
        *out.stride(),
        tokens,
        outputs,
        INPUTS=inputs,
        BLOCK_M=block_m,
        BLOCK_K=block_k,
        BLOCK_N=block_n,
    )


def _tile(x: Float[Tensor, "tokens heads inputs"], outputs: int) -> tuple[int, int, int]:
    """Rows, inputs and outputs of a tile; fewer outputs where there were idle processors else."""
    tokens, heads, inputs = x.shape
    is_single = x.itemsize > 2
    # In float32, tiles of more rows gave wrong numbers on an H200 (see `mla_attention`), and more
    # inputs, of which each is three numbers, don't fit into registers.
    rows = min(16 if is_single else _MOST_ROWS, block_of(tokens))
    k = min(128 if is_single else _MOST_INPUTS, block_of(inputs))
    n = min(_WEIGHTS // k, _MOST_OUTPUTS, block_of(outputs))
    others = heads * cdiv(tokens, rows)
    while n > 16 and others * cdiv(outputs, n) < num_processors(x.device):
        n //= 2
    return rows, k, n


@kernel(do_not_specialize=["tokens"])
@no_type_check
def _project(
    x,  # [tokens, heads, inputs]
    weight,  # [heads, inputs, outputs]
    out,  # [tokens, heads, outputs]
    x_token,
    x_head,
    x_input,
    weight_head,
    weight_input,
    weight_output,
    out_token,
    out_head,
    out_output,
    tokens,
    outputs,
    INPUTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    output = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    token = (tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    i = tl.arange(0, BLOCK_K).to(tl.int64)
    fits, live = output < outputs, token < tokens
    of_output = weight + head * weight_head + i[:, None] * weight_input
    of_output += output[None, :] * weight_output
    # No kernel before this one writes weights.
    part = tl.load(of_output, mask=(i < INPUTS)[:, None] & fits[None, :], other=0.0)
    wait_for_earlier()
    of_token = x + head * x_head + token[:, None] * x_token + i[None, :] * x_input
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in tl.static_range(0, INPUTS, BLOCK_K):
        there = live[:, None] & (first + i < INPUTS)[None, :]
        value = tl.load(of_token + first * x_input, mask=there, other=0.0)
        if first > 0:
            there = (first + i < INPUTS)[:, None] & fits[None, :]
            part = tl.load(of_output + first * weight_input, mask=there, other=0.0)
        total = tl.dot(value, part.to(value.dtype), total, input_precision=FLOAT32_DOT)
    at = out + head * out_head + token[:, None] * out_token + output[None, :] * out_output
    tl.store(at, total.to(out.dtype.element_ty), mask=live[:, None] & fits[None, :])

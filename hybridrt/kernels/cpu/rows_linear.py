"""A product with a weight that lies in rows, which are put into blocks first, in numba.

oneDNN's sums depend on how many tokens there are.
"""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import BFloat16
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import words
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.pack_tokens import Pages, pack_keys
from hybridrt.kernels.cpu.packed_dot import OUTPUTS
from hybridrt.kernels.cpu.packed_linear import packed_linear
from hybridrt.kernels.cpu.share import parallel_kernel, share_each
from hybridrt.kernels.cpu.vectors import HAS_VECTORS


def takes_rows(weight: BFloat16[Tensor, "outputs inputs"]) -> bool:
    """Whether `rows_linear` takes this weight."""
    return HAS_VECTORS and weight.stride(1) == 1 and weight.shape[1] % 2 == 0


def rows_linear(
    x: BFloat16[Tensor, "tokens inputs"], weight: BFloat16[Tensor, "outputs inputs"]
) -> BFloat16[Tensor, "tokens outputs"]:
    """`x W^T`, summed in float32: a token's bits don't depend on the others."""
    outputs, inputs = weight.shape
    blocks = torch.empty(-(-outputs // OUTPUTS), OUTPUTS * inputs // 2, dtype=torch.int32)
    places = weight.data_ptr(), weight.stride(0), outputs, inputs, blocks.data_ptr()
    _pack(numba.get_num_threads(), *places)
    return packed_linear(x, blocks.data_ptr(), OUTPUTS, 2 * OUTPUTS * inputs, None, outputs)


@inner
@no_type_check
def _pack_block(n, rows, page, outputs, inputs, blocks):  # pragma: no cover  (compiled)
    first = n * OUTPUTS
    block = words(blocks + 2 * first * inputs, OUTPUTS * inputs // 2)
    count = min(OUTPUTS, outputs - first)
    pack_keys(rows, 0, page, first, outputs, 0, count, block)


@parallel_kernel
@no_type_check
def _pack(threads, weight, stride, outputs, inputs, blocks):  # pragma: no cover
    """Rows are as keys of one head in a page that holds all of them."""
    rows, page = Pages(weight, 0, 0, stride, inputs), np.zeros(1, np.int32)
    share_each(
        _pack_block, threads, (outputs + OUTPUTS - 1) // OUTPUTS,
        (rows, page, outputs, inputs, blocks)
    )  # fmt: skip

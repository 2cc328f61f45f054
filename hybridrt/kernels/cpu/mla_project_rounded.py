"""What `mla_project` does, of weights in 8 or 4 bits, as `quantised_linear` multiplies them."""

from typing import no_type_check

from jaxtyping import BFloat16, Float
from torch import Tensor

from hybridrt.kernels.blocked_matrices import BLOCK
from hybridrt.kernels.cpu.bfloat16 import as_words, copy_bytes
from hybridrt.kernels.cpu.jit import calls, inner
from hybridrt.kernels.cpu.mla_project import SMALL
from hybridrt.kernels.cpu.packed_linear import write_results
from hybridrt.kernels.cpu.quantised_linear import FEW, TOKENS, WIDENED, add_quantised
from hybridrt.kernels.cpu.share import parallel_kernel, share, threads_for
from hybridrt.kernels.cpu.vectors import aligned, pointer
from hybridrt.kernels.cpu.whole_inputs import make_whole, row_bytes
from hybridrt.kernels.rounded_heads import RoundedHeads


def absorb(
    q_nope: BFloat16[Tensor, "rows heads nope_dim"],
    q_pe: BFloat16[Tensor, "rows heads rope_dim"],
    w_uk: RoundedHeads,
) -> BFloat16[Tensor, "rows heads latent_dim"]:
    """Queries that can be compared with latents. Those are outputs of `w_uk`."""
    q_nope, q_pe = (q if q.stride(2) == 1 else q.contiguous() for q in (q_nope, q_pe))
    out = q_nope.new_empty(*q_nope.shape[:2], w_uk.outputs + q_pe.shape[2])
    _multiply(q_nope, w_uk, out, q_pe)
    return out


def expand_values(
    latent: Float[Tensor, "rows heads rank"],
    w_uv: RoundedHeads,
    out: BFloat16[Tensor, "rows heads v_dim"],
) -> None:
    """Each head's value, of a latent that it attended to."""
    _multiply(latent.to(out.dtype), w_uv, out, out[..., :0])


def _multiply(
    x: BFloat16[Tensor, "rows heads inputs"],
    weight: RoundedHeads,
    out: BFloat16[Tensor, "rows heads width"],
    more: BFloat16[Tensor, "rows heads size"],
) -> None:
    """Each head's product, and behind it `more`."""
    (rows, heads, inputs), groups = x.shape, weight.scales.shape[2]
    threads = threads_for(rows * heads * inputs * weight.outputs, SMALL)
    _project(
        *(x.data_ptr(), x.stride(0), x.stride(1), inputs, groups, weight.bits),
        *(weight.values.data_ptr(), weight.scales.data_ptr()),
        *(out.data_ptr(), out.stride(0), out.stride(1), weight.outputs),
        *(more.data_ptr(), more.stride(0), more.stride(1), more.shape[2], rows, heads, threads),
    )


@inner
@no_type_check
def _project_heads(
    worker, workers, x, x_row, x_head, inputs, groups, bits, values, scales, out, out_row, out_head,
    outputs, more, more_row, more_head, size, rows, heads
):  # fmt: skip  # pragma: no cover  (compiled, as all below)
    """A worker's share of the heads, which are neighbours: so their weights are, too."""
    blocks, of_block = (outputs + BLOCK - 1) // BLOCK, inputs * BLOCK * bits // 8
    lots = (rows + TOKENS - 1) // TOKENS
    most = (rows + lots - 1) // lots
    step = row_bytes(inputs, groups)
    whole, sums = aligned(most * step // 4), aligned(most * BLOCK)
    room = as_words(aligned(WIDENED if most > FEW else 0))
    begin, end = heads * worker // workers, heads * (worker + 1) // workers
    for head in range(begin, end):
        for lot in range(lots):
            first, stop = rows * lot // lots, rows * (lot + 1) // lots
            for t in range(first, stop):
                given = x + 2 * (t * x_row + head * x_head)
                place = whole.ctypes.data + step * (t - first)
                make_whole(given, place, inputs, inputs // groups, bits, False)
            for n in range(head * blocks, (head + 1) * blocks):
                at = (n - head * blocks) * BLOCK
                own, of_scales = values + n * of_block, scales + n * (2 * BLOCK * groups)
                sums[:] = 0
                add_quantised(
                    0, bits, own, of_scales, room.ctypes.data, whole.ctypes.data, sums.ctypes.data,
                    stop - first, inputs, groups, own + of_block
                )  # fmt: skip
                to = out + 2 * (first * out_row + head * out_head + at)
                some = min(BLOCK, outputs - at)
                write_results(pointer(sums), stop - first, some, to, out_row, False)
        for t in range(rows):
            given = more + 2 * (t * more_row + head * more_head)
            copy_bytes(given, out + 2 * (t * out_row + head * out_head + outputs), 2 * size)


@parallel_kernel
@calls(add_quantised)
@no_type_check
def _project(
    x, x_row, x_head, inputs, groups, bits, values, scales, out, out_row, out_head, outputs, more,
    more_row, more_head, size, rows, heads, threads
):  # fmt: skip  # pragma: no cover
    given = (
        x, x_row, x_head, inputs, groups, bits, values, scales, out, out_row, out_head, outputs,
        more, more_row, more_head, size, rows, heads
    )  # fmt: skip
    share(_project_heads, threads, given)

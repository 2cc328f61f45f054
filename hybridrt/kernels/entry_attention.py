"""Attention to the last tokens, and to entries that stand for all tokens before."""

from jaxtyping import Float, Int32
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.op import like_first, torch_op
from hybridrt.kernels.reference import entry_attention as reference
from hybridrt.kernels.reference.entries import EntryGrid


@torch_op(like_first, reads=["kv", "entries"])
def entry_attention(
    q: Float[Tensor, "tokens heads dim"],
    kv: Float[Tensor, "blocks block_size dim"],
    pages: TokenPages,
    entries: Float[Tensor, "entry_blocks entries_per_block dim"],
    entry_pages: TokenPages,
    grid: EntryGrid,
    batch: Rows,
    scale: float,
    window: int,
    sinks: Float[Tensor, " heads"] | None = None,
    selected: Int32[Tensor, "tokens top_k"] | None = None,
) -> Float[Tensor, "tokens heads dim"]:
    """One softmax over the last `window` tokens, itself included, and the entries that have ended.

    What all heads share is key and value at once: `kv` of a token, or an entry (DeepSeek-V4).
    An entry is seen from its own last token on. With `selected` only those of the entries are
    seen, -1 being none; they are all where no more than `top_k` have ended.

    The score of a key is `scale * q . k`; `sinks` is a logit of each head that joins the
    denominator. New tokens and the entries that end with them have been written before. `pages`
    is of a window of that size, `entry_pages` of all tokens. Padding tokens get zeros.
    """
    return reference.entry_attention(
        q, kv, pages, entries, entry_pages, grid, batch, scale, window, sinks, selected
    )

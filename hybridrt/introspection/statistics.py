"""Statistics of a layer's state: how large it is, how full, and how much it still changes."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor, nn

STATE_STATISTICS = ("state_norm", "effective_rank", "saturation", "decay", "half_life")
ATTENTION_STATISTICS = (
    "kv_norm",
    "attention_entropy",
    "attention_first",
    "attention_last",
    "attention_own",
)
STATISTICS = (*STATE_STATISTICS, *ATTENTION_STATISTICS)
DEFAULT_STATISTICS = tuple(name for name in STATISTICS if name != "effective_rank")
"""All but what takes a decomposition of every head's matrix: that is a quarter of a prefill."""

MEMORIES = ("ssm_state", "kv_state", "memory", "lru_state", "numerator")
"""What layers call the state that is their memory, beside the last inputs of convolutions."""


def check_statistics(names: Sequence[str] | None) -> frozenset[str]:
    """The statistics of these names; "all", or None: the default ones.

    Raises:
        ValueError: there is none of a name.
    """
    if names is None:
        return frozenset(DEFAULT_STATISTICS)
    if names == "all":
        return frozenset(STATISTICS)
    wrong = names if isinstance(names, str) else [n for n in names if n not in STATISTICS]
    if wrong:
        raise ValueError(f"statistics={wrong!r}: should be 'all', or a list of {[*STATISTICS]}")
    return frozenset(names)


def memory_name(states: Sequence[str]) -> tuple[str, bool]:
    """Which of a layer's states statistics are of, and whether it is its memory."""
    name = next((name for name in MEMORIES if name in states), None)
    return (states[0], False) if name is None else (name, True)


def num_heads_of(layer: nn.Module) -> int:
    """Heads of a layer whose state is one row of numbers: 1 where nothing says more."""
    return int(getattr(getattr(layer, "config", None), "num_heads", 1))


def by_head(state: Float[Tensor, " *shape"], num_heads: int) -> Float[Tensor, " heads *rest"]:
    """A state with an axis of heads: Mamba-1's numbers of a state, equal runs of a row."""
    if state.dim() == 3:
        return state
    if state.dim() == 2:  # [channels, state_size]: number n of all channels is head n
        return state.T
    return state.unflatten(0, (num_heads, -1))


def norms(
    states: Float[Tensor, "positions heads *rest"],
) -> Float32[Tensor, "positions heads"]:
    """The Frobenius norm of each head, at some positions."""
    axes = tuple(range(2, states.dim()))
    return torch.linalg.vector_norm(states, dim=axes, dtype=torch.float32)


def saturation(
    change: Float32[Tensor, "positions heads"],
    before: Float32[Tensor, "positions heads"],
    after: Float32[Tensor, "positions heads"],
) -> Float32[Tensor, "positions heads"]:
    """`1 - |S - P| / (|S| + |P|)`, with P the state at the recorded position before S.

    From 0, if all of it is new, to 1, if the tokens between have not changed it: a head that
    remembers for long, or takes up little, goes to 1. The triangle inequality gives the bounds. A
    state that stays zero has 1. Given are the three norms.
    """
    total = before + after
    return 1 - torch.where(total > 0, change / total, 0).clamp(max=1)


def gram_matrices(states: Sequence[Float[Tensor, " *shape"]]) -> Float64[Tensor, "matrices n n"]:
    """`S S^T` or `S^T S` of every matrix of some states, whichever is smaller.

    Singular values are the roots of its eigenvalues: float32 would lose the smaller half of
    their digits.
    """
    matrices = torch.stack([*states]).flatten(0, -3).double()
    if matrices.shape[1] > matrices.shape[2]:
        matrices = matrices.mT
    return matrices @ matrices.mT


def effective_ranks(grams: Float64[Tensor, "matrices n n"]) -> Float32[Tensor, " matrices"]:
    """`exp` of the entropy of the normalised singular values (Roy & Vetterli, EUSIPCO 2007).

    From 1, if one direction holds all, to n. A matrix of zeros has 0.
    """
    values = torch.linalg.eigvalsh(grams).clamp(min=0).sqrt()
    total = values.sum(-1, keepdim=True)
    ranks = torch.special.entr(values / total.clamp(min=1e-300)).sum(-1).exp()
    return torch.where(total[:, 0] > 0, ranks, 0).float()

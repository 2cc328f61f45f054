"""Statistics of a layer's state: how large it is, how full, and how much it still changes."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
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

MEMORIES = ("ssm_state", "kv_state", "memory", "lru_state", "numerator")
"""What layers call the state that is their memory, beside the last inputs of convolutions."""

States = Float[Tensor, "positions *shape"]


def check_statistics(names: Sequence[str] | None) -> frozenset[str]:
    """The statistics of these names; None: all.

    Raises:
        ValueError: there is none of a name.
    """
    if names is None:
        return frozenset(STATISTICS)
    if isinstance(names, str) or (unknown := [n for n in names if n not in STATISTICS]):
        wrong = names if isinstance(names, str) else unknown
        raise ValueError(f"statistics={wrong!r}: should be a list of some of {[*STATISTICS]}")
    return frozenset(names)


def memory_name(states: Sequence[str]) -> tuple[str, bool]:
    """Which of a layer's states statistics are of, and whether it is its memory."""
    name = next((name for name in MEMORIES if name in states), None)
    return (states[0], False) if name is None else (name, True)


def num_heads_of(layer: nn.Module) -> int:
    """Heads of a layer whose state is one row of numbers: 1 where nothing says more."""
    return int(getattr(getattr(layer, "config", None), "num_heads", 1))


def by_head(states: States, num_heads: int) -> Float[Tensor, "positions heads *rest"]:
    """States with an axis of heads: Mamba-1's numbers of a state, equal runs of a row."""
    if states.dim() == 4:
        return states
    if states.dim() == 3:  # [channels, state_size]: number n of all channels is head n
        return states.transpose(1, 2)
    return states.unflatten(1, (num_heads, -1))


def norms(heads: Float[Tensor, "positions heads *rest"]) -> Float[Tensor, "positions heads"]:
    """The Frobenius norm of each head."""
    return torch.linalg.vector_norm(heads.flatten(2), dim=-1, dtype=torch.float32)


def saturation(
    heads: Float[Tensor, "positions heads *rest"], before: Float[Tensor, " heads *rest"]
) -> Float[Tensor, "positions heads"]:
    """`1 - |S - P| / (|S| + |P|)`, with P the state at the recorded position before.

    From 0, if all of it is new, to 1, if the tokens between have not changed it: a head that
    remembers for long or takes up little goes to 1. The triangle inequality gives the bounds.
    `before` is the P of the first. A state that stays zero has 1.
    """
    earlier = torch.cat([before[None].to(heads.dtype), heads[:-1]])
    change = norms(heads.float() - earlier.float())
    total = norms(heads) + norms(earlier)
    return 1 - torch.where(total > 0, change / total, 0)


def has_ranks(states: States) -> bool:
    """Whether the state is a matrix, or one for each head."""
    return states.dim() >= 3


def gram_matrices(states: States) -> Float[Tensor, "matrices n n"]:
    """`S S^T` or `S^T S` of every matrix, whichever is smaller, in float64.

    Singular values are the roots of its eigenvalues: float32 would lose the smaller half of
    their digits.
    """
    matrices = states.flatten(0, -3).double()
    if matrices.shape[1] > matrices.shape[2]:
        matrices = matrices.mT
    return matrices @ matrices.mT


def effective_ranks(grams: Float[Tensor, "matrices n n"]) -> Float[Tensor, " matrices"]:
    """`exp` of the entropy of the normalised singular values (Roy & Vetterli 2007).

    From 1, if one direction holds all, to n. A matrix of zeros has 0.
    """
    values = torch.linalg.eigvalsh(grams).clamp(min=0).sqrt()
    total = values.sum(-1, keepdim=True)
    ranks = torch.special.entr(values / total.clamp(min=1e-300)).sum(-1).exp()
    return torch.where(total[:, 0] > 0, ranks, 0).float()

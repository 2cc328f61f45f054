"""A residual stream in blocks, out of which every layer picks its input (Inkling 2)."""

import torch
from jaxtyping import Float, Float32
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

_EPS = 1e-6


class BlockResidual(nn.Module):
    """The queries by which the inputs of all layers are picked, as checkpoints have them.

    `attn_queries` has those of attention, from the second layer on: one, or three where queries,
    keys and values are made of an input each. `mlp_queries` has one a layer, and `output_query`
    is of the last norm. All in float32, whatever the model is in.
    """

    def __init__(self, hidden_size: PositiveInt, inputs: list[int]) -> None:
        super().__init__()
        shapes = [(n, hidden_size) if n > 1 else (hidden_size,) for n in inputs]
        self.attn_queries = nn.ParameterList([_float32(*shape) for shape in shapes[1:]])
        self.mlp_queries = nn.ParameterList([_float32(hidden_size) for _ in inputs])
        self.output_query = _float32(hidden_size)


def pick(
    query: Float32[Tensor, "*queries hidden"],
    blocks: list[Float[Tensor, "tokens hidden"]],
    partial: Float[Tensor, "tokens hidden"],
) -> list[Float32[Tensor, "tokens hidden"]]:
    """Attention of each query to the blocks and the one that isn't finished, token by token.

    They are divided by their root mean square first: the results are means of what is left.
    """
    stacked = torch.stack([*(block.float() for block in blocks), partial.float()], dim=1)
    normed = F.rms_norm(stacked, stacked.shape[-1:], eps=_EPS)
    queries = query.reshape(-1, query.shape[-1]) * query.shape[-1] ** -0.5
    weights = torch.einsum("qd,tbd->tqb", queries, normed).softmax(-1)
    return [*torch.einsum("tqb,tbd->qtd", weights, normed)]


def _float32(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.float32), requires_grad=False)

"""What every layer gets of a token beside the stream: an embedding for each (Gemma 3n, Gemma 4)."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.layers.linear import Linear
from hybridrt.layers.norm import RMSNorm


class PerLayerInputs(nn.Module):
    """`(norm(projection of the stream's start) + embedding of the token) / sqrt(2)`, by layer.

    The embeddings of all layers stand side by side, and are scaled by `sqrt(size)` as the
    model's dtype has it.
    """

    def __init__(
        self, vocab_size: int, num_layers: int, size: int, hidden_size: int, norm_eps: float
    ) -> None:
        super().__init__()
        self.shape = (num_layers, size)
        embeddings = torch.empty(vocab_size, num_layers * size)
        self.embed_tokens_per_layer = nn.Parameter(embeddings, requires_grad=False)
        self.per_layer_model_projection = Linear(hidden_size, num_layers * size)
        self.per_layer_projection_norm = RMSNorm(size, norm_eps)
        scale = torch.tensor(size**0.5, dtype=torch.get_default_dtype(), device="cpu")
        self.embed_scale = scale.item()

    def forward(
        self, x: Float[Tensor, "tokens hidden"], input_ids: Int64[Tensor, " tokens"]
    ) -> Float[Tensor, "tokens layers size"]:
        """For every token and layer, of its id and of `x`, what goes into the first layer."""
        own = F.embedding(input_ids, self.embed_tokens_per_layer) * self.embed_scale
        projected = self.per_layer_model_projection(x) * x.shape[-1] ** -0.5
        normed = self.per_layer_projection_norm(projected.unflatten(-1, self.shape))
        return (normed + own.unflatten(-1, self.shape)) * 2**-0.5

"""The layer of Llama-like models."""

from torch import nn

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.add import add
from hybridrt.layers.norm import RMSNorm, add_and_norm
from hybridrt.models.stream import Hidden, StreamLayer

MLP_RENAMES = (
    (r"\.w1\.", ".gate_proj."),
    (r"\.w2\.", ".down_proj."),
    (r"\.w3\.", ".up_proj."),
)
"""Of checkpoints that number the projections of an MLP, as the first Llama's did."""


class DecoderLayer(StreamLayer):
    """Attention, then a feed-forward layer, each behind a norm and added to the stream."""

    def __init__(
        self,
        hidden_size: int,
        norm_eps: float,
        self_attn: nn.Module,
        mlp: nn.Module,
        norm_class: type[nn.Module] = RMSNorm,
    ) -> None:
        super().__init__()
        self.input_layernorm = norm_class(hidden_size, norm_eps)
        self.self_attn = self_attn
        self.post_attention_layernorm = norm_class(hidden_size, norm_eps)
        self.mlp = mlp

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        attended = self.self_attn(normed, batch)
        x, normed = add_and_norm(x, attended, self.post_attention_layernorm)
        return x, self.mlp(normed)


class ParallelLayer(StreamLayer):
    """Attention and a feed-forward layer side by side, on one norm."""

    def __init__(
        self,
        hidden_size: int,
        norm_eps: float,
        self_attn: nn.Module,
        mlp: nn.Module,
        norm_class: type[nn.Module] = RMSNorm,
    ) -> None:
        super().__init__()
        self.input_layernorm = norm_class(hidden_size, norm_eps)
        self.self_attn = self_attn
        self.mlp = mlp

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        return add(x, self.self_attn(normed, batch)), self.mlp(normed)

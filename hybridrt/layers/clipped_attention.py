"""Attention to keys of bounded length, with a gate and a sink of each token's (Inkling 2)."""

import torch
from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.dynamic_conv import DynamicConv
from hybridrt.layers.linear import FusedLinear, Linear
from hybridrt.layers.relative_attention import RelativeAttention, RelativeConfig
from hybridrt.layers.residual_conv import ResidualConv
from hybridrt.values import Value


class ClipConfig(Value):
    """How long queries and keys, and mixtures of profiles, may be; and the values' norm.

    With `dynamic_conv` queries, keys and values are made of an input each, and each of the two
    latter says how it is convolved.
    """

    qk_threshold: PositiveFloat
    relative_threshold: PositiveFloat
    value_norm_eps: float
    conv_kernel: PositiveInt
    dynamic_conv: bool


class ScaledClip(nn.Module):
    """`clip(scale * x, threshold)`, with `scale: [heads, dim]`."""

    def __init__(self, num_heads: int, dim: int, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold
        self.scale = nn.Parameter(torch.empty(num_heads, dim), requires_grad=False)

    def forward(self, x: Float[Tensor, "tokens heads dim"]) -> Float[Tensor, "tokens heads dim"]:
        return clip(x.float() * self.scale.float(), self.threshold).to(x.dtype)


def clip(x: Float[Tensor, "*batch dim"], threshold: float) -> Float[Tensor, "*batch dim"]:
    """The vector, made shorter where it is longer than that. Computed in float32."""
    length = torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True)
    return (x.float() * (threshold / (length + 1e-6)).clamp(max=1)).to(x.dtype)


class ClippedAttention(RelativeAttention):
    """`RelativeAttention` whose queries, keys and mixtures of profiles are clipped.

    Values are divided by their root mean square, by head; what attention gives is multiplied by
    the sigmoid of a gate; and each token has a score of nothing, for each head. What is cached is
    what `Attention` caches.
    """

    def __init__(
        self, config: AttentionConfig, relative: RelativeConfig, clips: ClipConfig
    ) -> None:
        super().__init__(config, relative)
        self.clips = clips
        hidden, heads, dim = config.hidden_size, config.num_attention_heads, config.head_dim
        key_heads, width = config.num_key_value_heads, clips.conv_kernel
        parts = {
            "q_proj": heads * dim,
            "r_proj": heads * relative.d_rel,
            "gate_proj": heads * dim,
            "sink_proj": heads,
        }
        del self.qkv_proj
        self.q_proj = FusedLinear(hidden, parts)
        self.k_proj, self.v_proj = (Linear(hidden, key_heads * dim) for _ in range(2))
        if clips.dynamic_conv:
            self.k_sconv, self.v_sconv = (
                DynamicConv(hidden, key_heads, dim, width) for _ in range(2)
            )
        else:
            self.k_sconv, self.v_sconv = (
                ResidualConv(key_heads * dim, width, scaled=True) for _ in range(2)
            )
        self.q_l2_clip = ScaledClip(heads, dim, clips.qk_threshold)
        self.rel_l2_clip = ScaledClip(heads, relative.d_rel, clips.relative_threshold)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        return self.attend_to(x, x, x, batch)

    def attend_to(
        self,
        x: Float[Tensor, "tokens hidden"],
        of_keys: Float[Tensor, "tokens hidden"],
        of_values: Float[Tensor, "tokens hidden"],
        batch: ForwardBatch,
    ) -> Float[Tensor, "tokens hidden"]:
        """What `forward` does, with inputs of their own for keys and values."""
        q, relative, gate, sinks = self.q_proj(x).split(list(self.q_proj.parts.values()), dim=-1)
        heads = self.config.num_attention_heads
        q = self.q_l2_clip(q.unflatten(-1, (heads, -1)))
        relative = self.rel_l2_clip(relative.unflatten(-1, (heads, -1)))
        if self.growth is not None:
            factors = self.growth.factors(batch.positions)[:, None, None]
            q, relative = ((part * factors).to(part.dtype) for part in (q, relative))
        kv = self._keys_and_values(of_keys, of_values, batch)
        out = self.update_and_attend((q, relative, sinks), kv, batch).flatten(1)
        return self.o_proj((out.float() * torch.sigmoid(gate.float())).to(out.dtype))

    def _keys_and_values(
        self, of_keys: Tensor, of_values: Tensor, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        k = _convolve(self.k_sconv, self.k_proj(of_keys), of_keys, batch)
        v = _convolve(self.v_sconv, self.v_proj(of_values), of_values, batch)
        k, v = (part.unflatten(-1, (self.config.num_key_value_heads, -1)) for part in (k, v))
        v = F.rms_norm(v.float(), v.shape[-1:], eps=self.clips.value_norm_eps).to(v.dtype)
        return clip(k, self.clips.qk_threshold), v


def _convolve(conv: nn.Module | None, x: Tensor, source: Tensor, batch: ForwardBatch) -> Tensor:
    assert conv is not None
    return conv(x, source, batch) if isinstance(conv, DynamicConv) else conv(x, batch)

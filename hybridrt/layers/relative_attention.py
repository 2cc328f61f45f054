"""Attention that knows distances by learned profiles, behind short convolutions (Inkling)."""

import torch
from jaxtyping import Float, Float32, Int64
from pydantic import PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.relative_attention import relative_attention
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.linear import FusedLinear
from hybridrt.layers.residual_conv import ResidualConv
from hybridrt.values import Value


class LogGrowth(Value):
    """Scores at position p are multiplied by `1 + alpha * log((p + 1) / floor)`, from there on."""

    alpha: float
    floor: PositiveInt

    def factors(self, positions: Int64[Tensor, " tokens"]) -> Float32[Tensor, " tokens"]:
        """What the scores of queries at these positions are multiplied by."""
        length = (positions + 1).float() / self.floor
        return 1 + self.alpha * torch.log(length.clamp(min=1))


class RelativeConfig(Value):
    """Sizes beyond an attention's: `d_rel` profiles of the `extent` nearest distances.

    Without `conv_kernel` keys and values are not convolved.
    """

    d_rel: PositiveInt
    extent: PositiveInt
    conv_kernel: PositiveInt | None = None
    growth: LogGrowth | None = None


class Profiles(nn.Module):
    """Holds `proj: [d_rel, extent]`."""

    def __init__(self, d_rel: int, extent: int) -> None:
        super().__init__()
        self.proj = nn.Parameter(torch.empty(d_rel, extent), requires_grad=False)


class RelativeAttention(Attention):
    """Attention whose scores have a bias that each token mixes out of profiles of distances.

    Keys and values go through a convolution each, which caches for itself. What is cached here
    is what `Attention` caches, without positions. See `hybridrt.kernels.relative_attention`.
    """

    mixer = "relative_attention"

    def __init__(self, config: AttentionConfig, relative: RelativeConfig) -> None:
        super().__init__(config, None)
        self.growth = relative.growth
        queries, keys = config.num_attention_heads, config.num_key_value_heads
        parts = {
            "q_proj": queries * config.head_dim,
            "k_proj": keys * config.head_dim,
            "v_proj": keys * config.value_dim,
            "r_proj": queries * relative.d_rel,
        }
        self.qkv_proj = FusedLinear(config.hidden_size, parts, config.attention_bias)
        width = relative.conv_kernel
        self.k_sconv, self.v_sconv = (
            None if width is None else ResidualConv(parts[part], width)
            for part in ("k_proj", "v_proj")
        )
        self.rel_logits_proj = Profiles(relative.d_rel, relative.extent)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        q, k, v, relative = self.qkv_proj(x).split(list(self.qkv_proj.parts.values()), dim=-1)
        if self.k_sconv is not None and self.v_sconv is not None:
            k, v = self.k_sconv(k, batch), self.v_sconv(v, batch)
        q, k, v = self._heads(torch.cat([q, k, v], dim=-1), batch)
        relative = relative.unflatten(-1, (self.config.num_attention_heads, -1))
        if self.growth is not None:
            factors = self.growth.factors(batch.positions)[:, None, None]
            q, relative = ((part * factors).to(part.dtype) for part in (q, relative))
        return self.o_proj(self.update_and_attend((q, relative, None), (k, v), batch).flatten(1))

    def attend(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        q: Float[Tensor, "tokens heads head_dim_k"],
        relative: Float[Tensor, "tokens heads d_rel"],
        sinks: Float[Tensor, "tokens heads"] | None,
        batch: ForwardBatch,
        unwritten: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "tokens heads head_dim_v"]:
        """Attends to what each token sees of the cache, itself included."""
        assert unwritten is None, "this layer doesn't fuse the update of its cache"
        window, cached = self.config.window, self.cached
        return relative_attention(
            q,
            relative,
            self.rel_logits_proj.proj,
            cached.k,
            cached.v,
            batch.token_pages(self.cache_group),
            batch,
            self.scale,
            None if window is None else window.size,
            cached.k_scale,
            cached.v_scale,
            sinks,
        )

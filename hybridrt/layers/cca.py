"""Compressed convolutional attention (arXiv 2510.04476), as ZAYA1 has it."""

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import INPUTS, CacheSpec, State
from hybridrt.kernels.recent_inputs import recent_inputs
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.conv import CausalConv1d
from hybridrt.layers.linear import FusedLinear
from hybridrt.layers.rope import Rope


class GroupedConv1d(nn.Module):
    """Holds the weights of a convolution within groups: `[channels, channels of one, width]`."""

    def __init__(self, channels: int, group: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, group, width), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(channels), requires_grad=False)


class ConvolvedProjection(CachedLayer):
    """Queries, keys and values, of which each sees some tokens before its own.

    Queries and keys go through a convolution over each channel and one over each head; half of
    the values' channels are those of the token before. A page holds the convolutions' last
    inputs, `conv_state: [history, query and key channels]`, oldest first, and what the next
    token's values need, `v_state: [1, half the value channels]`.
    """

    mixer = "cca"

    def __init__(self, config: AttentionConfig, widths: tuple[PositiveInt, PositiveInt]) -> None:
        super().__init__()
        self.config = config
        self.widths = widths
        self.q_size = config.num_attention_heads * config.head_dim
        self.k_size = config.num_key_value_heads * config.head_dim
        if self.k_size % 2:
            raise ValueError(f"{self.k_size} channels of keys can't be halved")
        parts = {"q_proj": self.q_size, "k_proj": self.k_size}
        parts |= dict.fromkeys(("v_proj_current", "v_proj_delayed"), self.k_size // 2)
        self.in_proj = FusedLinear(config.hidden_size, parts, config.attention_bias)
        self.channels = self.q_size + self.k_size
        self.conv_qk_depthwise = CausalConv1d(self.channels, widths[0], bias=True)
        self.conv_qk_grouped = GroupedConv1d(self.channels, config.head_dim, widths[1])

    @property
    def cache_spec(self) -> CacheSpec:
        conv_state = State(
            "conv_state", (sum(self.widths) - 2, self.channels), self.dtype, axes=INPUTS
        )
        v_state = State("v_state", (1, self.k_size // 2), self.dtype, axes=INPUTS)
        return CacheSpec("state", (conv_state, v_state))

    def _bind(self, *views: Tensor) -> None:
        self.conv_state, self.v_state = views

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> tuple[
        Float[Tensor, "tokens heads head_dim"],
        Float[Tensor, "tokens kv_heads head_dim"],
        Float[Tensor, "tokens kv_heads head_dim"],
    ]:
        """Queries, keys and values, before any norm."""
        pages = batch.state_pages(self.cache_group, self.cache_part)
        initial_pages = batch.initial_state_pages(self.cache_group, self.cache_part)
        half = self.k_size // 2
        qk, v, delayed = self.in_proj(x).split([self.channels, half, half], dim=-1)
        recent = recent_inputs(qk, self.conv_state, pages, initial_pages, batch.for_states)
        before = recent_inputs(delayed, self.v_state, pages, initial_pages, batch.for_states)[:, 0]
        if self.in_proj.bias is not None:
            # Before a sequence stands an input of zeros, which the projection makes its bias.
            first = (batch.positions == 0)[:, None]
            before = torch.where(first, self.in_proj.bias[-half:], before)
        q, k = self._by_head(self._convolved(recent))
        q_mean, k_mean = self._means(qk)
        return q + q_mean, k + k_mean, self._split(torch.cat([v, before], dim=-1))

    def _convolved(
        self, recent: Float[Tensor, "tokens width channels"]
    ) -> Float[Tensor, "tokens channels"]:
        by_channel, within = self.conv_qk_depthwise, self.conv_qk_grouped
        assert by_channel.bias is not None
        windows = recent.unfold(1, self.widths[0], 1).float()
        once = (windows * by_channel.taps).sum(-1) + by_channel.bias
        heads = self._split(once.to(recent.dtype).flatten(0, 1)).unflatten(0, (len(recent), -1))
        weight = within.weight.unflatten(0, (-1, self.config.head_dim))
        return torch.einsum("twhi,hoiw->tho", heads, weight).flatten(1) + within.bias

    def _means(self, qk: Float[Tensor, "tokens channels"]) -> tuple[Tensor, Tensor]:
        """Of each query and its key; and of those over the queries that share a key."""
        q, k = self._by_head(qk)
        shared = q.unflatten(1, (k.shape[1], -1))
        means = (shared + k[:, :, None]) * 0.5
        return means.flatten(1, 2), means.mean(2)

    def _by_head(self, qk: Float[Tensor, "tokens channels"]) -> tuple[Tensor, Tensor]:
        q, k = qk.split([self.q_size, self.k_size], dim=-1)
        return self._split(q), self._split(k)

    def _split(self, x: Float[Tensor, "tokens size"]) -> Float[Tensor, "tokens heads head_dim"]:
        return x.unflatten(-1, (-1, self.config.head_dim))


class KeyScale(nn.Module):
    """Holds `temp`, what each key head is multiplied by behind its norm."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.temp = nn.Parameter(torch.empty(num_heads), requires_grad=False)


class ConvolvedAttention(Attention):
    """Attention with the queries, keys and values of a `ConvolvedProjection`.

    Queries and keys are brought to length `head_dim ** 0.5`, and keys scaled per head. Cached
    are keys and values, as in `Attention`; the projection caches for itself.
    """

    def __init__(
        self,
        config: AttentionConfig,
        rope: Rope | None,
        widths: tuple[PositiveInt, PositiveInt] = (2, 2),
    ) -> None:
        super().__init__(config, rope)
        del self.qkv_proj
        self.cca = ConvolvedProjection(config, widths)
        self.qk_norm = KeyScale(config.num_key_value_heads)

    def _project(self, x: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.cca(x, batch)
        q, k = _normed(q), _normed(k) * self.qk_norm.temp[:, None]
        if self.rope is not None:
            heads = self.rope.apply(torch.cat([q, k], dim=1), batch.rope_positions)
            q, k = heads.split([q.shape[1], k.shape[1]], dim=1)
        return q, k, v


def _normed(x: Float[Tensor, "tokens heads head_dim"]) -> Float[Tensor, "tokens heads head_dim"]:
    """At length `head_dim ** 0.5`; zeros stay zeros."""
    length = torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True)
    return (x * (x.shape[-1] ** 0.5 / length.clamp_min(torch.finfo(x.dtype).eps))).to(x.dtype)

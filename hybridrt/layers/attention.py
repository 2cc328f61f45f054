"""Grouped-query attention."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Float32, Shaped
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheSpec, State, Window
from hybridrt.kernels.paged_attention import paged_attention
from hybridrt.kernels.quantise import quantise_e4m3, quantise_int8
from hybridrt.kernels.write_pages import write_each
from hybridrt.layers.linear import FusedLinear, Linear
from hybridrt.layers.norm import OffsetRMSNorm, RMSNorm, plain_offset
from hybridrt.layers.rope import Rope
from hybridrt.layers.token_cached import TokenCached
from hybridrt.values import Value, check_divides


class AttentionConfig(Value):
    """Sizes, under their Hugging Face names.

    Values have `head_dim_v` dimensions, if not `head_dim`. `attention_bias` is that of the
    queries', keys' and values' projection, and of the output's where `output_bias` is None.
    `qk_norm_eps` norms queries and keys, per head or, with `qk_norm_over="heads"`, all heads
    of a token as one vector; before the rotary embedding, or with `qk_norm_after_rope` behind
    it; with weights that count from 1 if `qk_norm_offset`. `window`, `sinks` (a learned logit a
    head), `softcap` and `scale` (`head_dim ** -0.5` if None) are as in
    `hybridrt.kernels.paged_attention`.
    """

    hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    head_dim_v: PositiveInt | None = None
    attention_bias: bool = False
    output_bias: bool | None = None
    qk_norm_eps: float | None = None
    qk_norm_over: Literal["head", "heads"] = "head"
    qk_norm_after_rope: bool = False
    qk_norm_offset: bool = False
    window: Window | None = None
    sinks: bool = False
    softcap: PositiveFloat | None = None
    scale: PositiveFloat | None = None

    @model_validator(mode="after")
    def _heads_share_keys(self) -> "AttentionConfig":
        check_divides(self, "num_key_value_heads", "num_attention_heads")
        return self

    @property
    def value_dim(self) -> int:
        """Dimensions of a head's values."""
        return self.head_dim_v or self.head_dim

    @property
    def has_output_bias(self) -> bool:
        """Whether the output's projection has a bias."""
        return self.attention_bias if self.output_bias is None else self.output_bias


class CachedKV(NamedTuple):
    """Views of a layer's pages, `[blocks, kv_heads, block_size, ...]`, and scales of either."""

    k: Shaped[Tensor, "blocks kv_heads block_size head_dim_k"]
    v: Shaped[Tensor, "blocks kv_heads block_size head_dim_v"]
    k_scale: Float32[Tensor, "..."] | None
    v_scale: Float32[Tensor, "..."] | None


class Attention(TokenCached):
    """Attention with fewer key heads than query heads (arXiv 2305.13245).

    Keys are cached behind the rotary embedding, next to their values, so that one read
    brings both: `kv: [blocks, kv_heads, block_size, head_dim + head_dim_v]`. With
    `rope=None` there are no positions.

    With the `kv_cache_dtype` `fp8_e4m3` they lie so too, in a byte each, divided by a scale
    of each key head, `k_scale` and `v_scale`, which are 1 if the checkpoint has none. With `int8`
    there are `k`, `v`, and a scale of each token and head, `k_scale` and `v_scale` in the
    page. New tokens are quantised once, when they are written, and always read back.

    With `shares_cache_of` a layer has queries only and reads the keys and values that
    another has written, earlier in the same step (Gemma 3n; YOCO, arXiv 2405.05254). It is
    neither planned nor bound.
    """

    mixer = "attention"
    optional_tensors = ("k_scale", "v_scale")
    k_scale: Float32[Tensor, " kv_heads"]
    v_scale: Float32[Tensor, " kv_heads"]

    def __init__(
        self, config: AttentionConfig, rope: Rope | None, shares_cache_of: "Attention | None" = None
    ) -> None:
        super().__init__()
        self.config = config
        self.rope = rope
        self.scale = config.scale or config.head_dim**-0.5
        self._source = (shares_cache_of,)  # in a tuple, so as not to be a submodule
        query_size = config.num_attention_heads * config.head_dim
        parts = {"q_proj": query_size}
        if shares_cache_of is None:
            parts["k_proj"] = config.num_key_value_heads * config.head_dim
            parts["v_proj"] = config.num_key_value_heads * config.value_dim
            self._make_scales()
        else:
            _check_alike(config, shares_cache_of.config)
        fused = "qkv_proj" if shares_cache_of is None else None
        self.qkv_proj = FusedLinear(config.hidden_size, parts, config.attention_bias, fused=fused)
        output_size = config.num_attention_heads * config.value_dim
        self.o_proj = Linear(output_size, config.hidden_size, config.has_output_bias)
        if config.qk_norm_eps is not None:
            self.q_norm = self._qk_norm(config.num_attention_heads, config.qk_norm_eps)
            if shares_cache_of is None:
                self.k_norm = self._qk_norm(config.num_key_value_heads, config.qk_norm_eps)
        sinks = torch.empty(config.num_attention_heads) if config.sinks else None
        self.sinks = None if sinks is None else nn.Parameter(sinks, requires_grad=False)

    def _qk_norm(self, num_heads: int, eps: float) -> RMSNorm:
        joint = num_heads if self.config.qk_norm_over == "heads" else 1
        norm = OffsetRMSNorm if self.config.qk_norm_offset else RMSNorm
        return norm(joint * self.config.head_dim, eps)

    def _make_scales(self) -> None:
        """Checkpoints needn't have them, so they are filled here, even if all else is meta."""
        for name in ("k_scale", "v_scale"):
            ones = torch.ones(self.config.num_key_value_heads, dtype=torch.float32, device="cpu")
            self.register_buffer(name, ones, persistent=False)

    @property
    def shares_cache_of(self) -> "Attention | None":
        """The layer whose keys and values this one reads; None: its own."""
        return self._source[0]

    @property
    def cache_spec(self) -> CacheSpec:
        if self.shares_cache_of is not None:
            return self.shares_cache_of.cache_spec
        cfg, tokens = self.config, self.cache_format.kernel_block_size
        heads = cfg.num_key_value_heads
        axes = (heads, tokens) if self.cache_format.kv_layout == "HND" else (tokens, heads)
        content = cfg.head_dim + cfg.value_dim
        if self.cache_format.kv_cache_dtype == "int8":
            states = (
                State("k", (*axes, cfg.head_dim), torch.int8),
                State("v", (*axes, cfg.value_dim), torch.int8),
                State("k_scale", axes, torch.float32),
                State("v_scale", axes, torch.float32),
            )
        elif self.cache_format.kv_cache_dtype == "fp8_e4m3":
            states = (State("kv", (*axes, content), torch.float8_e4m3fn),)
        else:
            states = (State("kv", (*axes, content), self.dtype),)
        return CacheSpec("window" if cfg.window else "full", states, tokens, cfg.window)

    def _bind(self, *views: Tensor) -> None:
        if self.shares_cache_of is not None:
            raise RuntimeError(f"{self.name} shares the cache of {self.shares_cache_of.name}")
        if self.cache_format.kv_layout == "NHD":
            views = tuple(view.transpose(1, 2) for view in views)
        if len(views) == 1:
            (self.kv,) = views
            views = self._k_and_v = self.kv.tensor_split([self.config.head_dim], dim=-1)
        else:
            self.quantised_kv = CachedKV(*views)
        self._by_token = tuple(view.transpose(1, 2) for view in views)

    @property
    def cached(self) -> CachedKV:
        """The keys and values this layer attends to."""
        if self.shares_cache_of is not None:
            return self.shares_cache_of.cached
        if self.cache_format.kv_cache_dtype == "int8":
            return self.quantised_kv
        k, v = self._k_and_v
        if self.cache_format.kv_cache_dtype == "fp8_e4m3":
            return CachedKV(k, v, self.k_scale, self.v_scale)
        return CachedKV(k, v, None, None)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        if self.shares_cache_of is None:
            q, k, v = self._project(x, batch)
            out = self.update_and_attend((q,), (k, v), batch)
        else:
            out = self.update_and_attend((self._queries(x, batch),), None, batch)
        return self.o_proj(out.flatten(1))

    def _project(self, x: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, `[tokens, heads, head_dim]` each."""
        return self._heads(self.qkv_proj(x), batch)

    def _heads(self, qkv: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor, Tensor]:
        """What `_project` returns, of what the projections give side by side."""
        cfg = self.config
        heads = [cfg.num_attention_heads, cfg.num_key_value_heads]
        sizes = [sum(heads) * cfg.head_dim, heads[1] * cfg.value_dim]
        qk, v = qkv.split_with_sizes(sizes, dim=-1)
        qk, v = qk.view(len(qkv), -1, cfg.head_dim), v.view(len(qkv), -1, cfg.value_dim)
        parts = [qk]
        if cfg.qk_norm_eps is not None and not cfg.qk_norm_after_rope:
            q, k = qk.split(heads, dim=1)
            if (turned := self._normed_and_turned(q, k, batch)) is not None:
                return *turned, v
            parts = [self._norm(q, self.q_norm), self._norm(k, self.k_norm)]
        if self.rope is not None:
            parts = [self.rope.apply(part, batch.rope_positions) for part in parts]
        q, k = parts if len(parts) == 2 else parts[0].split_with_sizes(heads, dim=1)
        if cfg.qk_norm_eps is not None and cfg.qk_norm_after_rope:
            q, k = self._norm(q, self.q_norm), self._norm(k, self.k_norm)
        return q, k, v

    def _normed_and_turned(
        self, q: Tensor, k: Tensor, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor] | None:
        """Queries and keys behind norm and rotation at once; None: both are to be called."""
        if self.rope is None or self.config.qk_norm_over != "head":
            return None
        offset, eps = plain_offset(self.q_norm), self.q_norm.eps
        if offset is None or (plain_offset(self.k_norm), self.k_norm.eps) != (offset, eps):
            return None
        weights = self.q_norm.weight, self.k_norm.weight
        return self.rope.apply_normed(q, k, weights, eps, offset, batch.rope_positions)

    def _norm(
        self, x: Float[Tensor, "tokens heads head_dim_k"], norm: RMSNorm
    ) -> Float[Tensor, "tokens heads head_dim_k"]:
        if self.config.qk_norm_over == "head":
            return norm(x)
        return norm(x.flatten(1)).unflatten(1, x.shape[1:])

    def _queries(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens heads head_dim_k"]:
        cfg = self.config
        q = self.qkv_proj(x).unflatten(-1, (-1, cfg.head_dim))
        if cfg.qk_norm_eps is not None and not cfg.qk_norm_after_rope:
            q = self._norm(q, self.q_norm)
        if self.rope is not None:
            q = self.rope.apply(q, batch.rope_positions)
        if cfg.qk_norm_eps is not None and cfg.qk_norm_after_rope:
            q = self._norm(q, self.q_norm)
        return q

    def update_kv_cache(
        self,
        k: Float[Tensor, "tokens kv_heads head_dim_k"],
        v: Float[Tensor, "tokens kv_heads head_dim_v"],
        batch: ForwardBatch,
    ) -> None:
        """Writes the new tokens' keys and values into their slots."""
        slots = batch.token_pages(self.cache_group).slots
        parts = (k, v)
        if self.cache_format.kv_cache_dtype == "int8":
            (k, k_scale), (v, v_scale) = quantise_int8(k), quantise_int8(v)
            parts = (k, v, k_scale, v_scale)
        elif self.cache_format.kv_cache_dtype == "fp8_e4m3":
            parts = quantise_e4m3(k, self.k_scale), quantise_e4m3(v, self.v_scale)
        write_each(parts, self._by_token, slots)

    def attend(
        self,
        q: Float[Tensor, "tokens heads head_dim_k"],
        batch: ForwardBatch,
        unwritten: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "tokens heads head_dim_v"]:
        """Attends to what each token sees of the cache, itself included."""
        assert unwritten is None, "this layer doesn't fuse the update of its cache"
        window, cached = self.config.window, self.cached
        pages = batch.token_pages((self.shares_cache_of or self).cache_group)
        return paged_attention(
            q,
            cached.k,
            cached.v,
            pages,
            batch,
            self.scale,
            window=None if window is None else window.size,
            chunked=window is not None and window.chunked,
            sinks=self.sinks,
            softcap=self.config.softcap,
            k_scale=cached.k_scale,
            v_scale=cached.v_scale,
            backend=self.attention_backend,
        )


def _check_alike(config: AttentionConfig, source: AttentionConfig) -> None:
    """Refuses to read a cache that holds something else."""
    for name in ("num_key_value_heads", "head_dim", "value_dim", "window"):
        ours, theirs = getattr(config, name), getattr(source, name)
        if ours != theirs:
            raise ValueError(f"{name}={ours} should be {theirs}, as in the layer that is shared")


def shares_cache(layer: nn.Module) -> bool:
    """Whether the layer reads a cache that another has, and needs none of its own."""
    return isinstance(layer, Attention) and layer.shares_cache_of is not None

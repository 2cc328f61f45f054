"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

import torch
from jaxtyping import Float, Float32, Int64
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheSpec, State, Window
from hybridrt.kernels.mla_attention import mla_attention
from hybridrt.kernels.quantise import GROUP, quantise_e4m3_groups
from hybridrt.kernels.write_pages import write_each
from hybridrt.layers.latent_expansion import LatentExpansion
from hybridrt.layers.linear import Linear, project_each
from hybridrt.layers.norm import RMSNorm, plain_offset
from hybridrt.layers.rope import Rope, yarn_mscale
from hybridrt.layers.token_cached import TokenCached
from hybridrt.values import Value


class QueryGrowth(Value):
    """Queries at position p are multiplied by `1 + beta * log(1 + p // length)` (Llama 4)."""

    beta: float
    length: PositiveInt

    def factors(self, positions: Int64[Tensor, " tokens"]) -> Float32[Tensor, " tokens"]:
        """What the queries at these positions are multiplied by."""
        return 1 + self.beta * torch.log1p((positions // self.length).float())


class MLAConfig(Value):
    """Sizes, under their Hugging Face names. Without `q_lora_rank` queries aren't compressed.

    `latent_norm_eps` is of q_a_layernorm and kv_a_layernorm; DeepSeek's models have 1e-6
    there, whatever their rms_norm_eps. `query_scale` and `latent_scale` multiply all queries,
    and the normed latents as they are cached (LongCat-Flash, arXiv 2509.01322, section 2.2).
    With a `qk_rope_head_dim` of 0 there is no rotated part. `window` is as in
    `hybridrt.kernels.mla_attention`.
    """

    hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    q_lora_rank: PositiveInt | None = None
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: NonNegativeInt
    v_head_dim: PositiveInt
    attention_bias: bool = False
    latent_norm_eps: float = 1e-6
    query_scale: PositiveFloat = 1.0
    latent_scale: PositiveFloat = 1.0
    query_growth: QueryGrowth | None = None
    window: Window | None = None


class MLA(TokenCached):
    """Attention that caches one latent a token, from which every head's key and value follow.

    Cached are the normed latent `c_kv: [blocks, block_size, kv_lora_rank]` and the one
    rotated key part `k_pe: [blocks, block_size, qk_rope_head_dim]` that all heads share. With
    `rope=None` nothing is rotated.

    With the `kv_cache_dtype` `fp8_e4m3` the latent takes a byte a channel, and
    `c_kv_scale: [blocks, block_size, groups]` is a scale of each token and 128 channels; the
    rotated part is in bfloat16. New tokens are quantised once, when they are written, and
    always read back.
    """

    mixer = "mla"

    def __init__(self, config: MLAConfig, rope: Rope | None) -> None:
        super().__init__()
        self.config = config
        self.rope = rope
        self.scale = _softmax_scale(config, rope)
        hidden, heads, bias = config.hidden_size, config.num_attention_heads, config.attention_bias
        query_size = heads * (config.qk_nope_head_dim + config.qk_rope_head_dim)
        if config.q_lora_rank is None:
            self.q_proj = Linear(hidden, query_size)
        else:
            self.q_a_proj = Linear(hidden, config.q_lora_rank, bias)
            self.q_a_layernorm = RMSNorm(config.q_lora_rank, config.latent_norm_eps)
            self.q_b_proj = Linear(config.q_lora_rank, query_size)
        rank = config.kv_lora_rank
        self.kv_a_proj_with_mqa = Linear(hidden, rank + config.qk_rope_head_dim, bias)
        self.kv_a_layernorm = RMSNorm(rank, config.latent_norm_eps)
        self.kv_b_proj = LatentExpansion(heads, config.qk_nope_head_dim, config.v_head_dim, rank)
        self.o_proj = Linear(heads * config.v_head_dim, hidden, bias)

    @property
    def cache_spec(self) -> CacheSpec:
        tokens, cfg = self.cache_format.kernel_block_size, self.config
        if self.cache_format.kv_cache_dtype == "int8":
            raise ValueError(
                f"{self.name}: kv_cache_dtype='int8' is not for latents; should be 'fp8_e4m3', "
                f"with a scale for every {GROUP} channels, or 'auto'"
            )
        latent, rotated = (tokens, cfg.kv_lora_rank), (tokens, cfg.qk_rope_head_dim)
        fp8 = self._quantises
        states = [State("c_kv", latent, torch.float8_e4m3fn if fp8 else self.dtype)]
        if cfg.qk_rope_head_dim:
            states.append(State("k_pe", rotated, torch.bfloat16 if fp8 else self.dtype))
        if fp8:
            groups = -(-cfg.kv_lora_rank // GROUP)
            states.append(State("c_kv_scale", (tokens, groups), torch.float32))
        return CacheSpec("window" if cfg.window else "full", tuple(states), tokens, cfg.window)

    def _bind(self, *views: Tensor) -> None:
        self.c_kv, *rest = views
        self.k_pe = rest.pop(0) if self.config.qk_rope_head_dim else self.c_kv[..., :0]
        self.c_kv_scale = rest[0] if rest else None

    @property
    def _quantises(self) -> bool:
        return self.cache_format.kv_cache_dtype == "fp8_e4m3"

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        queries, new_tokens = self._project(x, self._query_input(x), batch)
        return self.o_proj(self.update_and_attend(queries, new_tokens, batch).flatten(1))

    def _project(
        self,
        x: Float[Tensor, "tokens hidden"],
        query_input: Float[Tensor, "tokens query_input"],
        batch: ForwardBatch,
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """`q_nope` and `q_pe` of every head, and `c_kv` and `k_pe` as they are cached."""
        cfg = self.config
        both, queries = self._products(x, query_input)
        c_kv, k_pe = both.split([cfg.kv_lora_rank, cfg.qk_rope_head_dim], dim=-1)
        q_nope, q_pe = self._split_queries(queries, batch)
        q_pe, k_pe, c_kv = self._rotate_and_norm(q_pe, self._shared_key(k_pe), c_kv, batch)
        if cfg.latent_scale != 1:
            c_kv = c_kv * cfg.latent_scale
        return (q_nope, q_pe), (c_kv, k_pe)

    def _query_input(
        self, x: Float[Tensor, "tokens hidden"]
    ) -> Float[Tensor, "tokens query_input"]:
        """What queries are projected from: their latent, if they have one."""
        if self.config.q_lora_rank is None:
            return x
        return self.q_a_layernorm(self.q_a_proj(x))

    def _products(
        self,
        x: Float[Tensor, "tokens hidden"],
        query_input: Float[Tensor, "tokens query_input"],
    ) -> tuple[Float[Tensor, "tokens latent_dim"], Float[Tensor, "tokens heads qk_dim"]]:
        """Latents and the keys' shared part side by side, and the queries."""
        if self.config.q_lora_rank is not None:
            return self.kv_a_proj_with_mqa(x), self._project_queries(query_input)
        both, queries = project_each(x, self.kv_a_proj_with_mqa, self.q_proj)
        return both, self._in_heads(queries)

    def _project_queries(
        self, query_input: Float[Tensor, "tokens query_input"]
    ) -> Float[Tensor, "tokens heads qk_dim"]:
        project = self.q_proj if self.config.q_lora_rank is None else self.q_b_proj
        return self._in_heads(project(query_input))

    def _in_heads(
        self, queries: Float[Tensor, "tokens qk_dims"]
    ) -> Float[Tensor, "tokens heads qk_dim"]:
        return queries.unflatten(-1, (self.config.num_attention_heads, -1))

    def _split_queries(
        self, queries: Float[Tensor, "tokens heads qk_dim"], batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        """`q_nope` and `q_pe`, which is not rotated yet."""
        cfg, queries = self.config, self._scaled(queries, batch)
        q_nope, q_pe = queries.split([cfg.qk_nope_head_dim, cfg.qk_rope_head_dim], dim=-1)
        return q_nope, q_pe

    def _scaled(
        self, queries: Float[Tensor, "tokens heads qk_dim"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens heads qk_dim"]:
        """Queries that grow with their position, if they do."""
        if self.config.query_growth is None:
            return queries
        factors = self.config.query_growth.factors(batch.positions)
        return queries * factors[:, None, None].to(queries.dtype)

    def _shared_key(self, k_pe: Float[Tensor, "tokens rope_dim"]) -> Tensor:
        """The part of a key that all heads share, before it is rotated."""
        return k_pe

    def _rotate_and_norm(
        self,
        q_pe: Float[Tensor, "tokens heads rope_dim"],
        k_pe: Float[Tensor, "tokens rope_dim"],
        c_kv: Float[Tensor, "tokens rank"],
        batch: ForwardBatch,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries' and keys' rotated part, and the normed latents; at once where nobody looks."""
        norm, keys = self.kv_a_layernorm, k_pe[:, None]
        offset = plain_offset(norm)
        if offset is None or self.rope is None or not self.config.qk_rope_head_dim:
            c_kv = norm(c_kv)
            q_pe, keys = self._rotate(torch.cat([q_pe, keys], dim=1), batch).tensor_split([-1], 1)
        else:
            normed = (c_kv, norm.weight, norm.eps, offset)
            q_pe, keys, c_kv = self.rope.apply_beside_norm(
                q_pe, keys, *normed, batch.rope_positions
            )
        return q_pe, keys[:, 0], c_kv

    def _rotate(
        self, heads: Float[Tensor, "tokens heads rope_dim"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens heads rope_dim"]:
        if self.rope is None or not self.config.qk_rope_head_dim:
            return heads
        return self.rope.apply(heads, batch.rope_positions)

    def update_kv_cache(
        self,
        c_kv: Float[Tensor, "tokens rank"],
        k_pe: Float[Tensor, "tokens rope_dim"],
        batch: ForwardBatch,
    ) -> None:
        """Writes the new tokens' latents into their slots."""
        parts, caches = [c_kv], [self.c_kv]
        if self.config.qk_rope_head_dim:
            parts.append(k_pe)
            caches.append(self.k_pe)
        if self.c_kv_scale is not None:
            parts[0], c_kv_scale = quantise_e4m3_groups(c_kv)
            parts.append(c_kv_scale)
            caches.append(self.c_kv_scale)
        write_each(parts, caches, batch.token_pages(self.cache_group).slots)

    def attend(
        self,
        q_nope: Float[Tensor, "tokens heads nope_dim"],
        q_pe: Float[Tensor, "tokens heads rope_dim"],
        batch: ForwardBatch,
        unwritten: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "tokens heads v_dim"]:
        """Attends to every latent in the cache up to each token, its own included."""
        assert unwritten is None, "this layer doesn't fuse the update of its cache"
        expand = self.kv_b_proj
        pages, window = batch.token_pages(self.cache_group), self.config.window
        return mla_attention(
            q_nope,
            q_pe,
            self.c_kv,
            self.k_pe,
            expand.w_uk,
            expand.w_uv,
            pages,
            batch,
            self.scale,
            c_kv_scale=self.c_kv_scale,
            window=None if window is None else window.size,
            chunked=window is not None and window.chunked,
            rounded_uk=expand.rounded_uk,
            rounded_uv=expand.rounded_uv,
            backend=self.attention_backend,
        )


def _softmax_scale(config: MLAConfig, rope: Rope | None) -> float:
    """`query_scale * qk_head_dim ** -0.5`, corrected for stretched positions if asked for."""
    scale = config.query_scale * (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    if rope is not None and rope.config.rope_type != "default" and rope.config.mscale_all_dim:
        scale *= yarn_mscale(rope.config.scale, rope.config.mscale_all_dim) ** 2
    return scale

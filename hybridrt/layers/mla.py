"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheSpec, State
from hybridrt.kernels.mla_attention import mla_attention
from hybridrt.kernels.quantise import GROUP, quantise_e4m3_groups
from hybridrt.kernels.write_pages import write_pages
from hybridrt.layers.linear import Linear
from hybridrt.layers.norm import RMSNorm
from hybridrt.layers.rope import Rope, yarn_mscale
from hybridrt.layers.token_cached import TokenCached
from hybridrt.values import Value


class MLAConfig(Value):
    """Sizes, under their Hugging Face names. Without `q_lora_rank` queries aren't compressed.

    `latent_norm_eps` is of q_a_layernorm and kv_a_layernorm; DeepSeek's models have 1e-6
    there, whatever their rms_norm_eps.
    """

    hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    q_lora_rank: PositiveInt | None = None
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt
    attention_bias: bool = False
    latent_norm_eps: float = 1e-6


class MLA(TokenCached):
    """Attention that caches one latent a token, from which every head's key and value follow.

    Cached are the normed latent `c_kv: [blocks, block_size, kv_lora_rank]` and the one
    rotated key part `k_pe: [blocks, block_size, qk_rope_head_dim]` that all heads share.

    With the `kv_cache_dtype` `fp8_e4m3` the latent takes a byte a channel, and
    `c_kv_scale: [blocks, block_size, groups]` is a scale of each token and 128 channels; the
    rotated part is in bfloat16. New tokens are quantised once, when they are written, and
    always read back.
    """

    mixer = "mla"

    def __init__(self, config: MLAConfig, rope: Rope) -> None:
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
        # Read in two parts, as w_uk and w_uv, and never run as a whole.
        kv_size = heads * (config.qk_nope_head_dim + config.v_head_dim)
        self.kv_b_proj = Linear(rank, kv_size, packs=False)
        self.o_proj = Linear(heads * config.v_head_dim, hidden, bias)

    @property
    def cache_spec(self) -> CacheSpec:
        tokens, cfg = self.cache_format.kernel_block_size, self.config
        if self.cache_format.kv_cache_dtype == "int8":
            raise ValueError(
                f"{self.name}: kv_cache_dtype='int8' is not for latents; should be 'fp8_e4m3', "
                f"with a scale for every {GROUP} channels, or 'auto'"
            )
        if self._quantises:
            groups = -(-cfg.kv_lora_rank // GROUP)
            states = (
                State("c_kv", (tokens, cfg.kv_lora_rank), torch.float8_e4m3fn),
                State("k_pe", (tokens, cfg.qk_rope_head_dim), torch.bfloat16),
                State("c_kv_scale", (tokens, groups), torch.float32),
            )
            return CacheSpec("full", states, tokens)
        c_kv = State("c_kv", (tokens, cfg.kv_lora_rank), self.dtype)
        k_pe = State("k_pe", (tokens, cfg.qk_rope_head_dim), self.dtype)
        return CacheSpec("full", (c_kv, k_pe), tokens)

    def _bind(self, *views: Tensor) -> None:
        self.c_kv, self.k_pe, *scales = views
        self.c_kv_scale = scales[0] if scales else None

    @property
    def _quantises(self) -> bool:
        return self.cache_format.kv_cache_dtype == "fp8_e4m3"

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        cfg = self.config
        q_nope, q_pe = self._queries(x).split([cfg.qk_nope_head_dim, cfg.qk_rope_head_dim], dim=-1)
        c_kv, k_pe = self.kv_a_proj_with_mqa(x).split(
            [cfg.kv_lora_rank, cfg.qk_rope_head_dim], dim=-1
        )
        heads = torch.cat([q_pe, k_pe[:, None]], dim=1)
        q_pe, k_pe = self.rope.apply(heads, batch.rope_positions).tensor_split([-1], dim=1)
        new_tokens = (self.kv_a_layernorm(c_kv), k_pe[:, 0])
        return self.o_proj(self.update_and_attend((q_nope, q_pe), new_tokens, batch).flatten(1))

    def _queries(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens heads qk_dim"]:
        if self.config.q_lora_rank is None:
            q = self.q_proj(x)
        else:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        return q.unflatten(-1, (self.config.num_attention_heads, -1))

    def update_kv_cache(
        self,
        c_kv: Float[Tensor, "tokens rank"],
        k_pe: Float[Tensor, "tokens rope_dim"],
        batch: ForwardBatch,
    ) -> None:
        """Writes the new tokens' latents into their slots."""
        slots = batch.token_pages(self.cache_group).slots
        if self.c_kv_scale is not None:
            c_kv, c_kv_scale = quantise_e4m3_groups(c_kv)
            write_pages(c_kv_scale, self.c_kv_scale, slots)
        write_pages(c_kv, self.c_kv, slots)
        write_pages(k_pe, self.k_pe, slots)

    def attend(
        self,
        q_nope: Float[Tensor, "tokens heads nope_dim"],
        q_pe: Float[Tensor, "tokens heads rope_dim"],
        batch: ForwardBatch,
        unwritten: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "tokens heads v_dim"]:
        """Attends to every latent in the cache up to each token, its own included."""
        assert unwritten is None, "this layer doesn't fuse the update of its cache"
        cfg = self.config
        weight = self.kv_b_proj.weight.unflatten(0, (cfg.num_attention_heads, -1))
        w_uk, w_uv = weight.split([cfg.qk_nope_head_dim, cfg.v_head_dim], dim=1)
        pages = batch.token_pages(self.cache_group)
        return mla_attention(
            q_nope,
            q_pe,
            self.c_kv,
            self.k_pe,
            w_uk,
            w_uv,
            pages,
            batch,
            self.scale,
            c_kv_scale=self.c_kv_scale,
        )


def _softmax_scale(config: MLAConfig, rope: Rope) -> float:
    """`qk_head_dim ** -0.5`, corrected for stretched positions where the config asks for it."""
    scale = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    if rope.config.rope_type != "default" and rope.config.mscale_all_dim:
        scale *= yarn_mscale(rope.config.scale, rope.config.mscale_all_dim) ** 2
    return scale

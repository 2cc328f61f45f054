"""Attention to a window and to compressed tokens (DeepSeek-V4, section 2.3)."""

import torch
from jaxtyping import Float, Int32
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheSpec, State, Window
from hybridrt.kernels.entry_attention import entry_attention
from hybridrt.kernels.paged_attention import paged_attention
from hybridrt.kernels.write_pages import write_pages
from hybridrt.layers.compressor import Compressor, EntryIndexer, refuse_quantised
from hybridrt.layers.linear import FusedLinear, Linear
from hybridrt.layers.norm import Float32RMSNorm
from hybridrt.layers.rope import Rope
from hybridrt.layers.token_cached import TokenCached
from hybridrt.values import Value, check_divides


class CompressedAttentionConfig(Value):
    """Sizes, under their Hugging Face names; `o_groups` divides the heads."""

    hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    head_dim: PositiveInt
    q_lora_rank: PositiveInt
    o_groups: PositiveInt
    o_lora_rank: PositiveInt
    sliding_window: PositiveInt
    rms_norm_eps: PositiveFloat

    @model_validator(mode="after")
    def _equal_groups(self) -> "CompressedAttentionConfig":
        check_divides(self, "o_groups", "num_attention_heads")
        return self


class CompressedAttention(TokenCached):
    """Attends to the last tokens, and with a compressor to the entries of all that have ended.

    All heads share what is key and value at once, of which the last values are rotated:
    `kv: [blocks, block_size, head_dim]`. Outputs are rotated back, so that only distances count.
    With an `indexer` each token attends to the entries that it selects. Each head has a sink.

    The output's projection goes through `o_lora_rank` numbers for each of `o_groups` groups of
    heads, then from all groups at once.
    """

    mixer = "compressed_attention"

    def __init__(
        self,
        config: CompressedAttentionConfig,
        rope: Rope,
        compressor: Compressor | None = None,
        indexer: EntryIndexer | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.rope = rope
        self.scale = config.head_dim**-0.5
        heads, groups = config.num_attention_heads, config.o_groups
        parts = {"q_a_proj": config.q_lora_rank, "kv_proj": config.head_dim}
        self.in_proj = FusedLinear(config.hidden_size, parts)
        self.q_a_norm = Float32RMSNorm(config.q_lora_rank, config.rms_norm_eps)
        self.q_b_proj = Linear(config.q_lora_rank, heads * config.head_dim)
        self.kv_norm = Float32RMSNorm(config.head_dim, config.rms_norm_eps)
        per_group = heads // groups * config.head_dim
        self.o_a_proj = Linear(per_group, groups * config.o_lora_rank, packs=False)
        self.o_b_proj = Linear(groups * config.o_lora_rank, config.hidden_size)
        sinks = torch.empty(heads, dtype=torch.float32)
        self.sinks = nn.Parameter(sinks, requires_grad=False)
        self.compressor = compressor
        self.indexer = indexer

    @property
    def cache_spec(self) -> CacheSpec:
        refuse_quantised(self)
        tokens = self.cache_format.kernel_block_size
        kv = State("kv", (tokens, self.config.head_dim), self.dtype)
        return CacheSpec("window", (kv,), tokens, Window(self.config.sliding_window))

    def _bind(self, *views: Tensor) -> None:
        (self.kv,) = views
        self._as_one_head = self.kv[:, None]

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        cfg, positions = self.config, batch.rope_positions
        query_input, kv = self.in_proj(x).split([cfg.q_lora_rank, cfg.head_dim], dim=-1)
        query_input = self.q_a_norm(query_input)
        q = self.q_b_proj(query_input).unflatten(-1, (-1, cfg.head_dim))
        q = F.rms_norm(q.float(), (cfg.head_dim,), eps=cfg.rms_norm_eps).to(x.dtype)
        q = self.rope.apply_to_last(q, positions)
        kv = self.rope.apply_to_last(self.kv_norm(kv)[:, None], positions)[:, 0]
        if self.compressor is not None:
            self.compressor.compress(x, batch)
        selected = None if self.indexer is None else self.indexer.select(x, query_input, batch)
        out = self.update_and_attend((q, selected), (kv,), batch)
        return self._project(self.rope.apply_to_last(out, positions, back=True))

    def _project(
        self, out: Float[Tensor, "tokens heads head_dim"]
    ) -> Float[Tensor, "tokens hidden"]:
        groups = self.config.o_groups
        weight = self.o_a_proj.weight.unflatten(0, (groups, -1))
        grouped = out.unflatten(1, (groups, -1)).flatten(2).transpose(0, 1)
        return self.o_b_proj(torch.matmul(grouped, weight.mT).transpose(0, 1).flatten(1))

    def update_kv_cache(self, kv: Float[Tensor, "tokens head_dim"], batch: ForwardBatch) -> None:
        """Writes what the new tokens are to later ones into their slots."""
        write_pages(kv, self.kv, batch.token_pages(self.cache_group).slots)

    def attend(
        self,
        q: Float[Tensor, "tokens heads head_dim"],
        selected: Int32[Tensor, "tokens top_k"] | None,
        batch: ForwardBatch,
    ) -> Float[Tensor, "tokens heads head_dim"]:
        """Attends to the window, and to all entries or those selected."""
        pages, window = batch.token_pages(self.cache_group), self.config.sliding_window
        if self.compressor is None:
            kv, backend = self._as_one_head, self.attention_backend
            return paged_attention(
                q, kv, kv, pages, batch, self.scale, window, sinks=self.sinks, backend=backend
            )
        return entry_attention(
            q,
            self.kv,
            pages,
            self.compressor.entries,
            batch.token_pages(self.compressor.cache_group),
            self.compressor.grid,
            batch,
            self.scale,
            window,
            self.sinks,
            selected,
        )

"""MLA over a few tokens of many, which an indexer selects (DeepSeek-V3.2, arXiv 2512.02556)."""

from jaxtyping import Float, Int32
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheSpec, State
from hybridrt.kernels.select_tokens import select_tokens
from hybridrt.kernels.sparse_mla_attention import sparse_mla_attention
from hybridrt.kernels.write_pages import write_pages
from hybridrt.layers.indexer import Indexer, IndexHeads
from hybridrt.layers.mla import MLA, MLAConfig
from hybridrt.layers.rope import Rope


class SparseMLA(MLA):
    """MLA that attends to the tokens its indexer selects, or those of the layer before it.

    Beside the latents the indexer's keys are cached, `k_index: [blocks, block_size,
    index_head_dim]`, in the model's dtype whatever that of the latents; unless the indexer caches
    for itself.

    With `shares_latents_of` a layer has no latents of its own and reads those that another has
    written, earlier in the same step. Without an indexer it caches nothing then: it is neither
    planned nor bound.
    """

    mixer = "sparse_mla"

    def __init__(
        self,
        config: MLAConfig,
        rope: Rope | None,
        indexer: Indexer | None,
        shares_latents_of: "SparseMLA | None" = None,
    ) -> None:
        super().__init__(config, rope)
        if config.window is not None:
            raise ValueError(f"window={config.window} should be None: tokens are selected")
        self.kv_b_proj.rounds = False  # what attends to selected tokens reads it as it is
        self.indexer = indexer
        self.sinks: nn.Parameter | None = None  # a logit a head that joins the softmax
        self._source = (shares_latents_of,)  # in a tuple, so as not to be a submodule
        if shares_latents_of is not None:
            _check_alike(config, shares_latents_of.config)
            del self.kv_a_proj_with_mqa, self.kv_a_layernorm

    @property
    def shares_latents_of(self) -> "SparseMLA | None":
        """The layer whose latents this one reads; None: its own."""
        return self._source[0]

    @property
    def caches_nothing(self) -> bool:
        """Whether this layer reads only what others cache."""
        return self.shares_latents_of is not None and self.indexer is None

    @property
    def caches_keys(self) -> bool:
        """Whether the indexer's keys stand beside the latents."""
        return self.indexer is not None and not self.indexer.caches_its_keys

    @property
    def cache_spec(self) -> CacheSpec:
        states = () if self.shares_latents_of is not None else super().cache_spec.states
        tokens = self.cache_format.kernel_block_size
        if self.indexer is not None and self.caches_keys:
            shape = (tokens, self.indexer.config.index_head_dim)
            states = (*states, State("k_index", shape, self.dtype))
        return CacheSpec("full", states, tokens)

    def _bind(self, *views: Tensor) -> None:
        latents = len(views)
        if self.caches_keys:
            latents, self.k_index = latents - 1, views[-1]
        if self.shares_latents_of is None:
            super()._bind(*views[:latents])

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        return self.select_and_attend(x, batch, None)[0]

    def select_and_attend(
        self,
        x: Float[Tensor, "tokens hidden"],
        batch: ForwardBatch,
        selected: Int32[Tensor, "tokens top_k"] | None,
    ) -> tuple[Float[Tensor, "tokens hidden"], Int32[Tensor, "tokens top_k"]]:
        """The output, and the positions attended to: `selected`, unless there is an indexer."""
        query_input = self._query_input(x)
        if self.shares_latents_of is None:
            (q_nope, q_pe), new_tokens = self._project(x, query_input, batch)
            self.update_kv_cache(*new_tokens, batch)
        else:
            queries = self._project_queries(query_input)
            q_nope, q_pe = self._split_queries(queries, batch)
            q_pe = self._rotate(q_pe, batch)
        if self.indexer is not None:
            heads: IndexHeads = self.indexer(x, query_input, batch)
            selected = self._select(heads, batch)
        assert selected is not None, f"{self.name} has no indexer, and no layer before it has"
        attended = self.attend(q_nope, q_pe, selected, batch)
        return self._output(attended, x, query_input), selected

    def _output(
        self,
        attended: Float[Tensor, "tokens heads v_dim"],
        x: Float[Tensor, "tokens hidden"],
        query_input: Float[Tensor, "tokens query_input"],
    ) -> Float[Tensor, "tokens hidden"]:
        return self.o_proj(attended.flatten(1))

    def _select(self, heads: IndexHeads, batch: ForwardBatch) -> Int32[Tensor, "tokens top_k"]:
        """Caches the new tokens' keys, and finds what each of them attends to."""
        assert self.indexer is not None
        pages = batch.token_pages(self.cache_group)
        write_pages(heads.keys, self.k_index, pages.slots)
        top_k = self.indexer.config.index_topk
        return select_tokens(heads.queries, heads.weights, self.k_index, pages, batch, top_k)

    def attend(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        q_nope: Float[Tensor, "tokens heads nope_dim"],
        q_pe: Float[Tensor, "tokens heads rope_dim"],
        selected: Int32[Tensor, "tokens top_k"],
        batch: ForwardBatch,
    ) -> Float[Tensor, "tokens heads v_dim"]:
        """Attends to the latents at the selected positions."""
        source = self.shares_latents_of or self
        return sparse_mla_attention(
            q_nope,
            q_pe,
            source.c_kv,
            source.k_pe,
            self.kv_b_proj.w_uk,
            self.kv_b_proj.w_uv,
            selected,
            batch.token_pages(source.cache_group),
            batch,
            self.scale,
            c_kv_scale=source.c_kv_scale,
            sinks=self.sinks,
        )


def _check_alike(config: MLAConfig, source: MLAConfig) -> None:
    """Refuses to read latents that are something else."""
    for name in ("kv_lora_rank", "qk_rope_head_dim", "latent_scale"):
        ours, theirs = getattr(config, name), getattr(source, name)
        if ours != theirs:
            raise ValueError(f"{name}={ours} should be {theirs}, as in the layer that is shared")

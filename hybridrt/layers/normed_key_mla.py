"""MLA that norms the part of a key that all heads share, with a gate on each head (Dots 3 Note)."""

from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.gated import sigmoid_gated
from hybridrt.layers.gated_attention import GatedMLA
from hybridrt.layers.indexer import Indexer
from hybridrt.layers.linear import Linear
from hybridrt.layers.mla import MLAConfig
from hybridrt.layers.norm import RMSNorm
from hybridrt.layers.rope import Rope
from hybridrt.layers.sparse_mla import SparseMLA


class NormedKeyMLA(GatedMLA):
    """`GatedMLA` with that norm. Scores are not corrected for stretched positions."""

    def __init__(self, config: MLAConfig, rope: Rope) -> None:
        super().__init__(config, rope)
        self.scale = _plain_scale(config)
        self.k_rope_only_layernorm = RMSNorm(config.qk_rope_head_dim, config.latent_norm_eps)

    def _shared_key(self, k_pe: Float[Tensor, "tokens rope_dim"]) -> Tensor:
        return self.k_rope_only_layernorm(k_pe)


class NormedKeySparseMLA(SparseMLA):
    """`SparseMLA` with that norm, and the gates of `GatedMLA`."""

    def __init__(self, config: MLAConfig, rope: Rope, indexer: Indexer) -> None:
        super().__init__(config, rope, indexer)
        self.scale = _plain_scale(config)
        self.g_proj = Linear(config.hidden_size, config.num_attention_heads)
        self.k_rope_only_layernorm = RMSNorm(config.qk_rope_head_dim, config.latent_norm_eps)

    def _shared_key(self, k_pe: Float[Tensor, "tokens rope_dim"]) -> Tensor:
        return self.k_rope_only_layernorm(k_pe)

    def _output(
        self,
        attended: Float[Tensor, "tokens heads v_dim"],
        x: Float[Tensor, "tokens hidden"],
        query_input: Float[Tensor, "tokens query_input"],
    ) -> Float[Tensor, "tokens hidden"]:
        return self.o_proj(sigmoid_gated(attended, self.g_proj(x)[..., None]).flatten(1))


def _plain_scale(config: MLAConfig) -> float:
    return config.query_scale * (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5

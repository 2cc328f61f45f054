"""MiniMax-01 (arXiv 2501.08313): lightning attention, softmax attention among it, experts."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import Attention
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.lightning_attention import LightningAttention, LightningAttentionConfig
from hybridrt.layers.norm import RMSNorm
from hybridrt.layers.rope import Rope
from hybridrt.models import mixtral
from hybridrt.models.causal_lm import CausalLM


class Config(mixtral.Config):
    """Keys of a MiniMax `config.json`. The `_factor`s weigh each sum with what goes in."""

    sliding_window: None = None
    layer_types: list[Literal["linear_attention", "full_attention"]] | None = None
    attn_type_list: list[Literal[0, 1]] | None = None
    postnorm: Literal[True] = True
    shared_intermediate_size: Literal[0] = 0
    full_attn_alpha_factor: float | int = 1
    full_attn_beta_factor: float | int = 1
    linear_attn_alpha_factor: float | int = 1
    linear_attn_beta_factor: float | int = 1
    mlp_alpha_factor: float | int = 1
    mlp_beta_factor: float | int = 1

    # How many tokens transformers' lightning attention takes at once; and what would say how
    # an expert is added that all tokens share, of which there is none.
    without_effect = ("block_size", "shared_moe_mode")

    def is_attention(self, index: int) -> bool:
        """Whether the layer is softmax attention; else it is lightning attention."""
        if self.layer_types is not None:
            return self.layer_types[index] == "full_attention"
        if self.attn_type_list is not None:
            return self.attn_type_list[index] == 1
        return index % 2 == 0

    def mixer(self, index: int, rope: Rope) -> CachedLayer:
        """Softmax or lightning attention. The later a layer, the longer it remembers."""
        attention = self.attention(index)
        if self.is_attention(index):
            return Attention(attention, rope)
        sizes = LightningAttentionConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=attention.num_attention_heads,
            head_dim=attention.head_dim,
            decay_scale=1 - index / (self.num_hidden_layers - 1 + 1e-5) + 1e-5,
        )
        return LightningAttention(sizes)

    def factors(self, index: int) -> tuple[float, float]:
        """What a mixer's input and its output are multiplied by."""
        if self.is_attention(index):
            return self.full_attn_alpha_factor, self.full_attn_beta_factor
        return self.linear_attn_alpha_factor, self.linear_attn_beta_factor


class Layer(nn.Module):
    """A mixer, then experts. What is added to is the normed input of each."""

    def __init__(self, config: Config, index: int, rope: Rope) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.alpha, self.beta = config.factors(index)
        self.mlp_alpha, self.mlp_beta = config.mlp_alpha_factor, config.mlp_beta_factor
        self.input_layernorm = RMSNorm(size, eps)
        self.self_attn = config.mixer(index, rope)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = config.feed_forward(index)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        x = self.input_layernorm(x)
        x = self.post_attention_layernorm(self.alpha * x + self.beta * self.self_attn(x, batch))
        return self.mlp_alpha * x + self.mlp_beta * self.mlp(x)


class Model(CausalLM):
    """Lightning and softmax attention, each followed by experts."""

    Config = Config
    checkpoint_renames = mixtral.Model.checkpoint_renames
    # Computed from the sizes; transformers saves them.
    ignored_tensors = (r".*\.self_attn\.(slope_rate|(query|key|diagonal)_decay)",)

    def __init__(self, config: Config) -> None:
        rope = config.rope()
        layers = [Layer(config, i, rope) for i in range(config.num_hidden_layers)]
        super().__init__(config, layers, config.rms_norm_eps, [rope])

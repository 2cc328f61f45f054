"""RWKV-4 (arXiv 2305.13048): a recurrence and a feed-forward layer, each with a token's memory."""

from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.norm import LayerNorm
from hybridrt.layers.rwkv import ChannelMix, TimeMix
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig

_LAST_NORM_EPS = 1e-5  # whatever the config says of the others


class Config(ModelConfig):
    """Keys of an RWKV-4 `config.json`."""

    attention_hidden_size: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    layer_norm_epsilon: float = 1e-5
    rescale_every: int = 6

    has_rope = False
    # Of training: a recurrence has no longest sequence.
    without_effect = ("context_length",)


class Layer(nn.Module):
    """The recurrence, then the feed-forward layer; before each a norm.

    Every `rescale_every` layers the stream is halved, and what is added to it from there on: so
    it stays small in float16. It is the same but for the `eps` of norms.
    """

    def __init__(self, config: Config, index: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.layer_norm_epsilon
        every = config.rescale_every
        self.scale = 0.5 ** (index // every) if every > 0 else 1.0
        self.halves = every > 0 and (index + 1) % every == 0
        self.pre_ln = LayerNorm(hidden, eps) if index == 0 else None
        self.ln1, self.ln2 = LayerNorm(hidden, eps), LayerNorm(hidden, eps)
        self.attention = TimeMix(hidden, config.attention_hidden_size or hidden)
        self.feed_forward = ChannelMix(hidden, config.intermediate_size or 4 * hidden)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        if self.pre_ln is not None:
            x = self.pre_ln(x)
        x = x + self.scale * self.attention(self.ln1(x), batch)
        x = x + self.scale * self.feed_forward(self.ln2(x), batch)
        return x / 2 if self.halves else x


class Model(CausalLM):
    """The same in every layer."""

    Config = Config
    norm_class = LayerNorm
    checkpoint_renames = (
        (r"^rwkv\.embeddings\.", "model.embed_tokens."),
        (r"^rwkv\.blocks\.", "model.layers."),
        (r"^rwkv\.ln_out\.", "model.norm."),
        (r"^head\.", "lm_head."),
    )

    def __init__(self, config: Config) -> None:
        layers = [Layer(config, i) for i in range(config.num_hidden_layers)]
        super().__init__(config, layers, _LAST_NORM_EPS)

"""GLM-5.3-Flash (zai-org): KDA and sparse MLA without positions, between several streams.

Layers are joined by hyper-connections (arXiv 2512.24880). KDA is Kimi Linear's (arXiv 2510.26692)
with bounded decays; MLA attends to pools of tokens that an indexer selects. The text model of a
multimodal checkpoint.
"""

from jaxtyping import Float, Int32
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.hyper_connections import HyperConnection, open_streams
from hybridrt.layers.pooled_sparse_mla import PooledSparseMLA
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.decoder import DecoderLayer
from hybridrt.models.glm5_next_config import Config


class Layer(DecoderLayer):
    """A decoder layer on several streams."""

    def __init__(self, config: Config, mixer: nn.Module, mlp: nn.Module) -> None:
        super().__init__(config.hidden_size, config.rms_norm_eps, mixer, mlp)
        self.attn_hc = HyperConnection(config.streams)
        self.ffn_hc = HyperConnection(config.streams)

    def forward_selecting(
        self,
        streams: Float[Tensor, "tokens streams hidden"],
        batch: ForwardBatch,
        selected: Int32[Tensor, "tokens most"] | None,
    ) -> tuple[Float[Tensor, "tokens streams hidden"], Int32[Tensor, "tokens most"] | None]:
        """The streams behind the layer, and the tokens selected last."""
        x, gates = self.attn_hc(streams)
        x = self.input_layernorm(x)
        if isinstance(self.self_attn, PooledSparseMLA):
            x, selected = self.self_attn.select_and_attend(x, batch, selected)
        else:
            x = self.self_attn(x, batch)
        streams = gates.add(streams, x)
        x, gates = self.ffn_hc(streams)
        return gates.add(streams, self.mlp(self.post_attention_layernorm(x))), selected


class Model(CausalLM):
    """Layers between streams, whose mean is normed at the end."""

    Config = Config
    checkpoint_renames = (
        (r"\.self_attn\.forget_gate\.", ".self_attn."),
        (r"\.hc_(attn|ffn)_(fn|base|scale)$", r".\1_hc.\2"),
    )

    def __init__(self, config: Config) -> None:
        layers = [
            Layer(config, config.mixer(i), config.feed_forward(i))
            for i in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, config.rms_norm_eps)
        self.num_streams = config.hc_mult
        # The layers behind the last predict further tokens, for drafts.
        self.ignored_tensors = tuple(
            rf"model\.layers\.{config.num_hidden_layers + i}\..*" for i in range(8)
        )

    def forward(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        """The last hidden state of every token in the batch."""
        streams, selected = open_streams(self.embed(batch), self.num_streams), None
        for layer in self.model.layers:
            assert isinstance(layer, Layer)
            streams, selected = layer.forward_selecting(streams, batch, selected)
        return self.model.norm(streams.mean(1))

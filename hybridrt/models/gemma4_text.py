"""Gemma 4: heads of two sizes, caches shared by the last layers, an embedding for each layer."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.reference.gates import ACTIVATIONS
from hybridrt.layers.linear import Linear
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe_beside_mlp import ExpertsBesideMLP
from hybridrt.layers.norm import RMSNorm, add_and_norm
from hybridrt.layers.normed_values import NormedValueAttention
from hybridrt.layers.per_layer_inputs import PerLayerInputs
from hybridrt.layers.rope import Rope
from hybridrt.models.gemma2 import GemmaModel, LayerType
from hybridrt.models.gemma4_config import Config


class Layer(nn.Module):
    """Attention, an MLP with experts beside it, and what the token's own embedding adds."""

    def __init__(self, config: Config, self_attn: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        size, eps, inputs = config.hidden_size, config.rms_norm_eps, config.per_layer_size
        self.input_layernorm = RMSNorm(size, eps)
        self.self_attn = self_attn
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.pre_feedforward_layernorm = RMSNorm(size, eps)
        self.mlp = mlp
        self.moe = None
        if config.enable_moe_block:
            self.moe = ExpertsBesideMLP(config.moe, eps, config.hidden_activation)
        self.post_feedforward_layernorm = RMSNorm(size, eps)
        if inputs:
            self.per_layer_input_gate = Linear(size, inputs)
            self.per_layer_projection = Linear(inputs, size)
            self.post_per_layer_input_norm = RMSNorm(size, eps)
        self.act = ACTIVATIONS[config.hidden_activation]
        self.layer_scalar = nn.Parameter(torch.empty(1), requires_grad=False)

    def forward(
        self,
        x: Float[Tensor, "tokens hidden"],
        batch: ForwardBatch,
        own: Float[Tensor, "tokens per_layer"] | None,
    ) -> Float[Tensor, "tokens hidden"]:
        """`own` is what this layer knows of each token beside the stream."""
        attended = self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), batch))
        x, normed = add_and_norm(x, attended, self.pre_feedforward_layernorm)
        fed = self.mlp(normed)
        if self.moe is not None:
            fed = self.moe(x, fed)
        x = x + self.post_feedforward_layernorm(fed)
        if own is not None:
            gated = self.act(self.per_layer_input_gate(x)) * own
            x = x + self.post_per_layer_input_norm(self.per_layer_projection(gated))
        return x * self.layer_scalar


class Model(GemmaModel):
    """Layers of two types, and embeddings that each of them has for itself."""

    Config = Config
    norm_class = RMSNorm
    checkpoint_renames = (
        (
            r"\.(router|experts|pre_feedforward_layernorm_2|post_feedforward_layernorm_[12])\.",
            r".moe.\1.",
        ),
        (r"^model\.embed_tokens_per_layer\.weight$", "per_layer_inputs.embed_tokens_per_layer"),
        (r"^model\.(per_layer_(model_projection|projection_norm)\.)", r"per_layer_inputs.\1"),
    )

    def __init__(self, config: Config) -> None:
        layers, ropes = _layers(config)
        super().__init__(config, layers, ropes)
        reading = [str(i) for i in range(len(layers)) if config.shared_by(i) is not None]
        numbers = "|".join(reading) or "none"
        self.ignored_tensors = (rf"model\.layers\.({numbers})\.self_attn\.[kv]_(proj|norm)\..*",)
        size = config.per_layer_size
        self.per_layer_inputs = (
            PerLayerInputs(
                config.vocab_size_per_layer_input,
                len(layers),
                size,
                config.hidden_size,
                config.rms_norm_eps,
            )
            if size
            else None
        )

    def forward(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        x = self.embed(batch)
        own = None if self.per_layer_inputs is None else self.per_layer_inputs(x, batch.input_ids)
        for i, layer in enumerate(self.model.layers):
            x = layer(x, batch, None if own is None else own[:, i])
        return self.model.norm(x)


def _layers(config: Config) -> tuple[list[Layer], list[Rope]]:
    """All layers, and the rotary tables in them."""
    ropes: dict[LayerType, Rope] = {}
    attentions: list[NormedValueAttention] = []
    layers: list[Layer] = []
    for i, layer_type in enumerate(config.layer_list):
        sizes, source = config.attention_of(i), config.shared_by(i)
        rope = ropes.setdefault(
            layer_type, Rope(config.rope_parameters[layer_type], sizes.head_dim)
        )
        attention = NormedValueAttention(
            sizes,
            rope,
            None if source is None else attentions[source],
            values_from_keys=config.attention_k_eq_v and layer_type == "full_attention",
        )
        attentions.append(attention)
        wide = 2 if config.use_double_wide_mlp and source is not None else 1
        inner = wide * config.intermediate_size
        mlp = MLP(config.hidden_size, inner, activation=config.hidden_activation)
        layers.append(Layer(config, attention, mlp))
    return layers, [*ropes.values()]

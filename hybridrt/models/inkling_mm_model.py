"""Inkling (Thinking Machines Lab, 2026): attention that learns distances, short convolutions.

Windows and full attention by turns, and experts of which some see every token; see
`hybridrt.layers.relative_attention` and `hybridrt.layers.sink_moe`. The text model of a
multimodal checkpoint.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.layers.norm import RMSNorm, add_and_norm
from hybridrt.layers.residual_conv import ResidualConv
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.inkling_config import Config
from hybridrt.models.stream import Hidden, StreamLayer


class Layer(StreamLayer):
    """Attention, then a feed-forward layer; behind each a convolution, before each a norm."""

    def __init__(self, config: Config, index: int) -> None:
        super().__init__()
        hidden, eps, width = config.hidden_size, config.rms_norm_eps, config.conv_kernel_size
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = config.attention(index)
        self.attn_sconv = ResidualConv(hidden, width)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = config.feed_forward(index)
        self.mlp_sconv = ResidualConv(hidden, width)

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        attended = self.attn_sconv(self.self_attn(normed, batch), batch)
        x, normed = add_and_norm(x, attended, self.post_attention_layernorm)
        return x, self.mlp_sconv(self.mlp(normed), batch)


class Model(CausalLM):
    """Attention, then an MLP or experts, as the two lists of the config say."""

    Config = Config
    text_config_of = ("inkling_text",)
    ignored_tensors = (r"model\.(mtp|audio)\..*",)
    checkpoint_renames = (
        (r"^model\.llm\.embed\.", "model.embed_tokens."),
        (r"^model\.llm\.unembed\.", "lm_head."),
        (r"^model\.llm\.", "model."),
        (r"^model\.embed_tokens\.embed_norm\.", "model.embed_norm."),
        (r"\.attn\.", ".self_attn."),
        (r"\.attn_norm\.", ".input_layernorm."),
        (r"\.mlp_norm\.", ".post_attention_layernorm."),
        (r"\.w(q|k|v|r)_d(u|v)\.", r".\1_proj."),
        (r"\.wo_ud\.", ".o_proj."),
        (r"\.gate\.bias$", ".gate.e_score_correction_bias"),
        (r"\.(shared_)?w13_weight$", ".gate_up_proj"),
        (r"\.(shared_)?w2_weight$", ".down_proj"),
        (r"\.w13_dn\.", ".gate_up_proj."),
        (r"\.w2_md\.", ".down_proj."),
    )

    def __init__(self, config: Config) -> None:
        layers = [Layer(config, i) for i in range(config.num_hidden_layers)]
        super().__init__(config, layers, config.rms_norm_eps)
        self.model.embed_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.width_multiplier = config.logits_mup_width_multiplier
        self.num_tokens = config.unpadded_vocab_size

    def embed(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        """What goes into the first layer."""
        norm = self.model.embed_norm
        assert isinstance(norm, RMSNorm)
        return norm(super().embed(batch))

    def logits(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        """The logits behind these hidden states, in float32; -inf for what is no token."""
        logits = super().logits(hidden) / self.width_multiplier
        if self.num_tokens is not None:
            logits[:, self.num_tokens :] = -torch.inf
        return logits

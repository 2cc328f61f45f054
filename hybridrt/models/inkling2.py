"""Inkling 2 (Thinking Machines Lab, 2026): layers that pick their input out of blocks.

Inkling's attention and convolutions, with bounds on lengths, gates and sinks; see
`hybridrt.layers.clipped_attention`. A residual stream ends every few layers and another begins;
inputs are mixtures of all of them; see `hybridrt.layers.block_residual`. The text model of a
multimodal checkpoint.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.block_residual import BlockResidual, pick
from hybridrt.layers.norm import RMSNorm
from hybridrt.layers.residual_conv import ResidualConv
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.inkling2_config import Config


class Layer(nn.Module):
    """Attention, then experts; behind each a convolution, before each a norm of what is picked."""

    def __init__(self, config: Config, index: int) -> None:
        super().__init__()
        hidden, eps, width = config.hidden_size, config.rms_norm_eps, config.conv_kernel_size
        self.begins_block = index % config.n_layers_per_attn_res_block == 0
        names = ("attn",) if config.slides(index) else ("q_input", "k_input", "v_input")
        for name in names:
            self.add_module(f"{name}_norm", RMSNorm(hidden, eps))
        self.input_norms = [self.get_submodule(f"{name}_norm") for name in names]
        self.self_attn = config.attention(index)
        self.attn_sconv = ResidualConv(hidden, width, scaled=True)
        self.mlp_norm = RMSNorm(hidden, eps)
        self.mlp = config.experts()
        self.mlp_sconv = ResidualConv(hidden, width, scaled=True)

    def forward(
        self,
        blocks: list[Float[Tensor, "tokens hidden"]],
        x: Float[Tensor, "tokens hidden"],
        queries: tuple[Tensor | None, Tensor],
        batch: ForwardBatch,
    ) -> Float[Tensor, "tokens hidden"]:
        """What goes on in the block that `x` is of, or of the one that begins; `blocks` grows."""
        of_attention, of_mlp = queries
        if of_attention is None:
            picked = [x] * len(self.input_norms)
        else:
            picked = pick(of_attention, blocks, x)
        inputs = [norm(part) for norm, part in zip(self.input_norms, picked, strict=True)]
        of_q, of_k, of_v = inputs * 3 if len(inputs) == 1 else inputs
        out = self.attn_sconv(self.self_attn.attend_to(of_q, of_k, of_v, batch), batch).float()
        if self.begins_block:
            blocks.append(x)
        else:
            out = x.float() + out
        picked = pick(of_mlp, blocks, out)
        return (out + self.mlp_sconv(self.mlp(self.mlp_norm(picked[0])), batch)).to(x.dtype)


class Model(CausalLM):
    """Attention with windows or without, as the config lists it; experts in every layer."""

    Config = Config
    text_config_of = ("inkling2",)
    # MXFP8: of the experts, and the config has no word of it.
    released_quantisation: ClassVar[Mapping[str, Any]] = {
        "quant_method": "fp8",
        "weight_block_size": [1, 32],
    }
    checkpoint_renames = (
        (r"^model\.llm\.embed\.", "model.embed_tokens."),
        (r"^model\.llm\.unembed\.", "lm_head."),
        (r"^model\.llm\.", "model."),
        (r"\.attn\.", ".self_attn."),
        (r"\.w(q|k|v|r)_d(u|v)\.", r".\1_proj."),
        (r"\.wo_ud\.", ".o_proj."),
        (r"\.gate_attn\.", ".gate_proj."),
        (r"\.attn_sink_proj\.", ".sink_proj."),
        (r"(_sconv\.weight_proj)$", r"\1.weight"),
        (r"\.gate\.bias$", ".gate.e_score_correction_bias"),
    )

    def __init__(self, config: Config) -> None:
        layers = [Layer(config, i) for i in range(config.num_hidden_layers)]
        cap = config.final_logit_softcapping
        super().__init__(config, layers, config.rms_norm_eps, logit_softcap=cap)
        self.model.embed_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        inputs = [len(layer.input_norms) for layer in layers]
        self.model.attn_res = BlockResidual(config.hidden_size, inputs)
        self.num_tokens = config.unpadded_vocab_size

    def embed(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        """What goes into the first layer."""
        norm = self.model.embed_norm
        assert isinstance(norm, RMSNorm)
        return norm(super().embed(batch))

    def forward(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        """The last hidden state of every token in the batch."""
        residual = self.model.attn_res
        assert isinstance(residual, BlockResidual)
        x, blocks = self.embed(batch), []
        queries = zip([None, *residual.attn_queries], residual.mlp_queries, strict=True)
        for layer, of_layer in zip(self.model.layers, queries, strict=True):
            x = layer(blocks, x, of_layer, batch)
        return self.model.norm(pick(residual.output_query, blocks, x)[0])

    def logits(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        """The logits behind these hidden states, in float32; -inf for what is no token."""
        logits = super().logits(hidden)
        logits[:, self.num_tokens :] = -torch.inf
        return logits

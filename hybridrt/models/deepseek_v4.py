"""DeepSeek-V4 (deepseek-ai/DeepSeek-V4-Flash): attention to a window and to compressed tokens.

Layers compress in one of two ways, or not at all. Several residual streams are mixed by
hyper-connections (arXiv 2512.24880), and the first layers look their experts up in a table.
"""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.layers.compressed_attention import CompressedAttention
from hybridrt.layers.compressor import Compressor, EntryIndexer
from hybridrt.layers.hash_moe import BestRouter, HashRouter, RoutedByToken
from hybridrt.layers.hyper_connections import HyperConnection, HyperHead, open_streams
from hybridrt.layers.norm import Float32RMSNorm
from hybridrt.layers.rope import Rope
from hybridrt.models import deepseek_v4_config
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.decoder import DecoderLayer

Config = deepseek_v4_config.Config


def attention(config: Config, index: int, ropes: Mapping[str, Rope]) -> CompressedAttention:
    """The attention of a layer. Where it compresses, everything is rotated as entries are."""
    layer_type, sizes = config.layer_types[index], config.attention
    if layer_type == "sliding_attention":
        return CompressedAttention(sizes, ropes["main"])
    rope = ropes["compress"]
    compressor = Compressor(config.compressor(layer_type, config.head_dim), rope)
    if layer_type == "heavily_compressed_attention":
        return CompressedAttention(sizes, rope, compressor)
    indexer = EntryIndexer(
        config.compressor(layer_type, config.index_head_dim),
        rope,
        config.q_lora_rank,
        config.index_n_heads,
        config.index_topk,
    )
    return CompressedAttention(sizes, rope, compressor, indexer)


def experts(config: Config, index: int) -> RoutedByToken:
    """The experts of a layer, picked by the token's id or by what is seen of it."""
    hashes = config.mlp_layer_types[index] == "hash_moe"
    gate = HashRouter(config.moe, config.vocab_size) if hashes else BestRouter(config.moe)
    return RoutedByToken(config.moe, config.swiglu_limit, gate)


class Layer(DecoderLayer):
    """A decoder layer on several streams."""

    def __init__(self, config: Config, index: int, ropes: Mapping[str, Rope]) -> None:
        super().__init__(
            config.hidden_size,
            config.rms_norm_eps,
            attention(config, index, ropes),
            experts(config, index),
            Float32RMSNorm,
        )
        self.attn_hc = HyperConnection(config.streams)
        self.ffn_hc = HyperConnection(config.streams)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, streams: Float[Tensor, "tokens streams hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens streams hidden"]:
        x, gates = self.attn_hc(streams)
        streams = gates.add(streams, self.self_attn(self.input_layernorm(x), batch))
        x, gates = self.ffn_hc(streams)
        out = self.mlp(self.post_attention_layernorm(x), batch.input_ids)
        return gates.add(streams, out)


class Model(CausalLM):
    """Attention of `layer_types`, and experts of `mlp_layer_types`."""

    Config = Config
    norm_class = Float32RMSNorm
    ignored_tensors = (r"mtp\..*",)
    checkpoint_renames = (
        (r"^embed\.", "model.embed_tokens."),
        (r"^head\.", "lm_head."),
        (r"^(layers|norm)\.", r"model.\1."),
        (r"^hc_head_", "model.hc_head.hc_"),
        (r"\.attn\.", ".self_attn."),
        (r"\.ffn\.", ".mlp."),
        (r"\.compressor\.indexer\.(scorer\.)?", ".indexer."),
        (r"\.indexer\.compressor\.", ".indexer."),
        (r"\.hc_(attn|ffn)_(fn|base|scale)$", r".\1_hc.\2"),
        (r"\.attn_norm\.", ".input_layernorm."),
        (r"\.ffn_norm\.", ".post_attention_layernorm."),
        (r"\.attn_sink$", ".sinks"),
        (r"\.ape$", ".position_bias"),
        (r"\.q_norm\.", ".q_a_norm."),
        (r"\.(self_attn|compressor|indexer)\.norm\.", r".\1.kv_norm."),
        (r"\.(self_attn|indexer)\.wq_(a|b)\.", r".\1.q_\2_proj."),
        (r"\.wkv\.", ".kv_proj."),
        (r"\.wgate\.", ".gate_proj."),
        (r"\.wo_(a|b)\.", r".o_\1_proj."),
        (r"\.gate\.bias$", ".gate.e_score_correction_bias"),
        (r"\.w1\.", ".gate_proj."),
        (r"\.w2\.", ".down_proj."),
        (r"\.w3\.", ".up_proj."),
    )

    def __init__(self, config: Config) -> None:
        ropes = {
            label: Rope(settings, config.rotated(label), interleaved=True)
            for label, settings in config.rope_parameters.items()
        }
        layers = [Layer(config, i, ropes) for i in range(config.num_hidden_layers)]
        super().__init__(config, layers, config.rms_norm_eps, ropes.values())
        self.model.hc_head = HyperHead(config.streams)
        self.num_streams = config.hc_mult

    def forward(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        """The last hidden state of every token in the batch."""
        streams = open_streams(self.embed(batch), self.num_streams)
        for layer in self.model.layers:
            streams = layer(streams, batch)
        head = self.model.hc_head
        assert isinstance(head, HyperHead)
        return self.model.norm(head(streams))

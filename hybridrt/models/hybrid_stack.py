"""hybrid_stack: any stack of mixers, listed layer by layer in its `config.json`.

Every layer is `x + mixer(norm(x))`, or with several mixers side by side `x` and the sum of
them. An entry of `layers` has a `type` and the sizes of that mixer; docs/adding-a-model.md has
an example.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field
from torch import nn

from hybridrt.layers.attention import Attention, shares_cache
from hybridrt.layers.mla import MLA
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.mixer_layer import MixerLayer, Parallel
from hybridrt.models.stack_attention import AttentionLayer, MLALayer
from hybridrt.models.stack_feed_forward import MLPLayer, MoELayer
from hybridrt.models.stack_layer import LayerConfig, StackConfig
from hybridrt.models.stack_recurrent import (
    GatedDeltaNetLayer,
    KimiDeltaAttentionLayer,
    LightningAttentionLayer,
    Mamba1Layer,
    Mamba2Layer,
    ShortConvLayer,
)


class ParallelLayer(LayerConfig):
    """Several mixers on the same input, whose outputs add up (Falcon-H1, arXiv 2507.22448)."""

    mixers: Annotated[list[LayerConfig], Field(min_length=1)]


LAYER_TYPES: Mapping[str, Callable[..., LayerConfig]] = {
    "attention": AttentionLayer,
    "mla": MLALayer,
    "mamba1": Mamba1Layer,
    "mamba2": Mamba2Layer,
    "short_conv": ShortConvLayer,
    "gated_delta_net": GatedDeltaNetLayer,
    "kda": KimiDeltaAttentionLayer,
    "lightning": LightningAttentionLayer,
    "mlp": MLPLayer,
    "moe": MoELayer,
    "parallel": ParallelLayer,
}


class Config(StackConfig):
    """Keys of a hybrid_stack `config.json`. `layers` gives `num_hidden_layers`."""

    layers: list[LayerConfig]

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> "ModelConfig":
        """See `ModelConfig.from_json`; each entry of `layers` is checked by its type."""
        entries = config.get("layers")
        if not isinstance(entries, list) or not entries:
            raise ValueError(f"config.json: layers={entries!r} should be a list of mixers")
        layers = [_layer(f"layers[{index}]", entry) for index, entry in enumerate(entries)]
        count = config.get("num_hidden_layers", len(layers))
        if count != len(layers):
            raise ValueError(
                f"config.json: num_hidden_layers={count}, but layers has {len(layers)} entries"
            )
        return super().from_json({**config, "layers": layers, "num_hidden_layers": count}, ignore)


def _layer(where: str, entry: Any) -> LayerConfig:
    kind = entry.get("type") if isinstance(entry, dict) else None
    if not isinstance(kind, str) or kind not in LAYER_TYPES:
        raise ValueError(
            f"config.json: {where} has type={kind!r}; known are {', '.join(LAYER_TYPES)}"
        )
    fields = dict(entry)
    if kind == "parallel" and isinstance(fields.get("mixers"), list):
        fields["mixers"] = [
            _layer(f"{where}.mixers[{index}]", mixer)
            for index, mixer in enumerate(fields["mixers"])
        ]
    try:
        return LAYER_TYPES[kind](**fields)
    except ValueError as error:
        raise ValueError(f"config.json: {where}: {error}") from None


def _mixers(config: Config) -> list[nn.Module]:
    mixers: list[nn.Module] = []
    for index, entry in enumerate(config.layers):
        try:
            mixers.append(_mixer(entry, config, mixers))
        except ValueError as error:
            raise ValueError(f"config.json: layers[{index}]: {error}") from None
    return mixers


def _mixer(entry: LayerConfig, config: Config, earlier: Sequence[nn.Module]) -> nn.Module:
    if isinstance(entry, ParallelLayer):
        return Parallel([_mixer(mixer, config, earlier) for mixer in entry.mixers])
    if isinstance(entry, AttentionLayer) and entry.share_cache_of is not None:
        return entry.make(config, _source(entry.share_cache_of, earlier))
    return entry.make(config)


def _source(index: int, earlier: Sequence[nn.Module]) -> Attention:
    source = earlier[index] if index < len(earlier) else None
    if not isinstance(source, Attention) or shares_cache(source):
        raise ValueError(
            f"share_cache_of={index} should be the index of an earlier layer of type "
            "'attention' that has a cache of its own"
        )
    return source


class Model(CausalLM):
    """The stack that `layers` lists."""

    Config = Config

    def __init__(self, config: Config) -> None:
        mixers = _mixers(config)
        modules = (module for mixer in mixers for module in mixer.modules())
        ropes = [m.rope for m in modules if isinstance(m, Attention | MLA) and m.rope is not None]
        layers = [MixerLayer(config.hidden_size, config.rms_norm_eps, mixer) for mixer in mixers]
        super().__init__(config, layers, config.rms_norm_eps, ropes)

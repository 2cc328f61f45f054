"""Models of released geometries with random weights, made where they run: no file has them.

What doesn't fit one GPU has fewer layers, the same otherwise; `CUTS` says which.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from hybridrt import LLM
from hybridrt.engine import loading, weights

HERE = Path(__file__).parent
LONGEST = 2**15
VOCABULARIES = {"bamba": 128_256, "jamba": 65_536, "kimi_linear": 163_840, "qwen3_next": 151_936}
CUTS: dict[str, dict[str, Any]] = {
    # Of one expert a layer: 8 of 9 parts of its weights are experts.
    "jamba": {"num_experts": 1, "num_experts_per_tok": 1},
    # 12 of 27 layers of 48 B parameters, 16 of 48 of 80 B.
    "kimi_linear": {"num_hidden_layers": 12},
    "qwen3_next": {"num_hidden_layers": 16},
}
MODELS = (
    *("llama", "deepseek_v2", "nemotron_h", "falcon_h1"),
    *("bamba", "jamba", "qwen3_next", "kimi_linear"),
)


def transformers_config(model_type: str, **changes: Any) -> Any:
    """The geometry as transformers has it."""
    from transformers import AutoConfig

    _, released = json.loads((HERE / "well_known.json").read_text())[model_type]
    known = {"max_position_embeddings": LONGEST, **released}
    if model_type in VOCABULARIES:
        known["vocab_size"] = VOCABULARIES[model_type]
    known |= CUTS.get(model_type, {}) | changes
    if known["max_position_embeddings"] < LONGEST:
        known["max_position_embeddings"] = LONGEST
    count = known.get("num_hidden_layers")
    if count is not None and "layer_types" in known:
        known["layer_types"] = known["layer_types"][:count]
    config = AutoConfig.for_model(model_type, **known)
    config.pad_token_id = None
    config.dtype = "bfloat16"
    config.architectures = [_architecture(config)]
    return config


def random_llm(model_type: str, changes: dict[str, Any] | None = None, **options: Any) -> LLM:
    """hybridrt's side."""
    config = transformers_config(model_type, **(changes or {}))
    with tempfile.TemporaryDirectory() as directory, _drawn_weights():
        config.save_pretrained(directory)
        return LLM(directory, dtype="bfloat16", **options)


def random_transformers(model_type: str) -> Any:
    """The side of transformers, on the GPU."""
    from transformers import AutoModelForCausalLM

    config = transformers_config(model_type)
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


@contextmanager
def _drawn_weights() -> Iterator[None]:
    """In place of a checkpoint's. Norms are of ones, as in a model before training.

    Routers' biases are zeros, as training makes them so that no expert is busier than others;
    random ones would send all tokens to the same few.
    """

    def draw(model: nn.Module, *_: Any, device: torch.device, **__: Any) -> None:
        weights._materialise(model, device)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.02)
                elif "norm" in name:
                    parameter.fill_(1)
                elif name.endswith("e_score_correction_bias"):
                    parameter.zero_()
                else:
                    parameter.uniform_(0, 1)
        model.requires_grad_(False)

    with patch.object(loading, "load_weights", draw):
        yield


def _architecture(config: Any) -> str:
    from transformers import AutoModelForCausalLM

    found: Any = AutoModelForCausalLM._model_mapping[type(config)]
    return found.__name__

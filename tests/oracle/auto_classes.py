"""Text models that `transformers` has, and that its `AutoModelForCausalLM` does not know."""

from collections.abc import Mapping
from typing import Any

from transformers import (
    AutoModelForCausalLM,
    Glm5NextConfig,
    Glm5NextForConditionalGeneration,
    Inkling2Config,
    Inkling2ForConditionalGeneration,
    InklingConfig,
    InklingForConditionalGeneration,
    Lfm2VlConfig,
    Lfm2VlForConditionalGeneration,
    Lfm3VlConfig,
    Lfm3VlForConditionalGeneration,
    MiniMaxM3SparseForConditionalGeneration,
    MiniMaxM3VLConfig,
    Mistral4Config,
    Mistral4ForCausalLM,
    MistralLarge4Config,
    MistralLarge4ForConditionalGeneration,
)

for config, model in (
    (Mistral4Config, Mistral4ForCausalLM),
    (InklingConfig, InklingForConditionalGeneration),
    (Inkling2Config, Inkling2ForConditionalGeneration),
    (MiniMaxM3VLConfig, MiniMaxM3SparseForConditionalGeneration),
    (Glm5NextConfig, Glm5NextForConditionalGeneration),
    (MistralLarge4Config, MistralLarge4ForConditionalGeneration),
    (Lfm2VlConfig, Lfm2VlForConditionalGeneration),
    (Lfm3VlConfig, Lfm3VlForConditionalGeneration),
):
    AutoModelForCausalLM.register(config, model, exist_ok=True)

_ENCODER = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 2,
}
OTHER_PARTS: Mapping[str, Mapping[str, Any]] = {
    "mistral_large4": {
        "vision_config": {"model_type": "pixtral", **_ENCODER, "head_dim": 8, "image_size": 8}
    },
    "lfm2_vl": {
        "vision_config": {"model_type": "siglip2_vision_model", **_ENCODER, "num_patches": 4},
        "projector_hidden_size": 8,
    },
    "lfm3_vl": {
        "vision_config": {"model_type": "lfm3_vl_vision", **_ENCODER, "num_key_value_heads": 1},
        "projector_hidden_size": 8,
    },
    "minimax_m3_vl": {
        "vision_config": {"model_type": "minimax_m3_vl_vision", **_ENCODER, "image_size": 8},
        "projector_hidden_size": 8,
    },
    "inkling_mm_model": {
        "vision_config": {"hidden_size": 16, "num_hidden_layers": 4, "patch_size": 2},
        "audio_config": {"n_mel_bins": 2, "mel_vocab_size": 4},
    },
    "inkling2": {
        "vision_config": {
            **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
            **{"patch_size": 2, "posemb_grid_size": 2, "projection_hidden_dim": 8},
            "text_hidden_size": None,
        }
    },
    "glm5_next": {
        "vision_config": {
            "model_type": "glm5_next_vision",
            **{"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2},
            **{"patch_size": 2, "image_size": 8, "out_hidden_size": 8},
            "projection_intermediate_size": 8,
        }
    },
    "gemma4_unified": {
        "vision_config": {"patch_size": 2, "mm_embed_dim": 8, "mm_posemb_size": 4},
        "audio_config": {"audio_embed_dim": 8},
    },
}
"""Of models that `transformers` has as a whole, what is not the text model, and not used."""

"""Text models that `transformers` has, and that its `AutoModelForCausalLM` does not know."""

from transformers import (
    AutoModelForCausalLM,
    Mistral4Config,
    Mistral4ForCausalLM,
    MistralLarge4Config,
    MistralLarge4ForConditionalGeneration,
)

for config, model in (
    (Mistral4Config, Mistral4ForCausalLM),
    (MistralLarge4Config, MistralLarge4ForConditionalGeneration),
):
    AutoModelForCausalLM.register(config, model, exist_ok=True)

TINY_VISION = {
    "mistral_large4": {
        "model_type": "pixtral",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 8,
        "patch_size": 2,
        "image_size": 8,
    }
}
"""Of models that `transformers` has as a whole only, the part that is not used."""

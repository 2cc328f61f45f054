"""The text model of a checkpoint that has more: its part of the config, its tensors' names."""

from collections.abc import Mapping
from typing import Any

TEXT_PREFIXES = (
    (r"^model\.language_model\.(model\.)?", "model."),
    (r"^language_model\.model\.", "model."),
    (r"^language_model\.lm_head\.", "lm_head."),
)
"""Renames that take the tensors of a text model out of the whole; done before a model's own."""

OTHER_MODALITIES = (
    r"(model\.)?(vision_(tower|model|encoder|embed_tokens|embedder)|visual|embed_vision"
    r"|audio_(tower|model|encoder)|embed_audio|image_newline|patch_merger|pre_mm_projector_norm"
    r"|(multi_?modal|mm|vision|audio)_(projector|adapter|connector))(\..*)?",
)
"""Tensors that no text model has, and that may be there unused."""

_OF_THE_WHOLE = ("tie_word_embeddings", "tie_embedding", "quantization_config")
_OF_EITHER = ("dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id")


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the text model: `text_config`, or all of it where there is none.

    What transformers reads from the whole counts there, as in `tie_word_embeddings`; what the
    text's part leaves out of `dtype` and the special tokens is taken from the whole.

    Raises:
        ValueError: `text_config` is not an object.
    """
    if "text_config" not in config:
        return dict(config)
    part = config["text_config"]
    if not isinstance(part, Mapping):
        raise ValueError(f"config.json: text_config={part!r} should be an object")
    whole = {key: value for key, value in config.items() if value is not None}
    merged = {"model_type": config.get("model_type"), **part}
    merged |= {key: whole[key] for key in _OF_THE_WHOLE if key in whole}
    if not {"dtype", "torch_dtype"}.isdisjoint(key for key in part if part[key] is not None):
        whole = {key: whole[key] for key in whole if key not in ("dtype", "torch_dtype")}
    for key in _OF_EITHER:
        if merged.get(key) is None and key in whole:
            merged[key] = whole[key]
    return merged

"""Random weights under which every part of a tiny model shows in its logits."""

import math
import zlib
from typing import Any

import torch
from torch import Tensor, nn

# Buffers that are not drawn at random, as their values follow from the config.
_COMPUTED = (
    *("inv_freq", "embed_scale", "normalizer"),
    *("slope_rate", "query_decay", "key_decay", "diagonal_decay"),
    *("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"),
)


@torch.no_grad()
def randomise(model: nn.Module, name: str) -> None:
    """Draws all weights, the same for the same name."""
    draw = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    for tensor_name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor_name.endswith("tid2eid"):  # the experts of each token, all of them unlike
            config: Any = model.config
            merit = torch.rand(len(tensor), config.n_routed_experts, generator=draw)
            tensor.copy_(merit.argsort()[:, : tensor.shape[1]])
        elif not tensor_name.endswith(_COMPUTED):
            tensor.copy_(_weights(tensor_name, tensor, draw))


def _weights(name: str, like: Tensor, draw: torch.Generator) -> Tensor:
    """Random weights of a size at which every part of the model shows in the logits.

    Norms, biases and the constants of state-space layers are away from their
    usual start, where many mistakes cancel; time constants run from one token to
    hundreds; logits spread over several nats.
    """
    parent, _, leaf = name.rpartition(".")
    uniform = torch.rand(like.shape, generator=draw)
    normal = torch.randn(like.shape, generator=draw)
    if leaf == "A_log":
        return math.log(0.02) + math.log(100) * uniform
    if leaf in ("dt_bias", "dt_proj_bias") or name.endswith("dt_proj.bias"):
        return -4 + 4 * uniform
    if leaf in ("e_score_correction_bias", "expert_bias"):
        # Mostly negative: a masked group must lose against a negative score too.
        # Shares of a softmax among many are small, and so is what may be added to them.
        return (uniform - 0.5) / 4 if parent.endswith("router") else -1 + 1.4 * uniform
    if leaf == "recurrent_param":  # memories from two tokens to hundreds
        return -7 + 5 * uniform
    if leaf in ("layer_scalar", "scale", "per_expert_scale", "global_scale"):
        return 0.5 + uniform
    if leaf in ("beta", "eps"):  # xIELU: how much of the input is added, and a threshold
        return 0.3 + 0.4 * uniform if leaf == "beta" else -0.1 - 0.5 * uniform
    if leaf == "balancing_biases":
        # transformers writes -1 over the last one, of no expert, when it loads a checkpoint.
        return torch.cat([-1.6 + 1.2 * uniform[:-1], torch.tensor([-1.0])])
    if leaf.endswith(("states_scale", "residual_scale")):
        return 0.5 + uniform
    if leaf == "query":  # of blocks, which are divided by the root of their size
        return 1.5 * normal
    if leaf == "static_weight":  # taps of a convolution
        return normal * 1.5 / math.sqrt(len(like))
    if leaf in ("D", "time_first"):
        return normal
    if leaf == "time_decay":  # memories from a token to hundreds
        return -6.5 + 6 * uniform
    if leaf.startswith("time_mix_"):
        return uniform
    if name.endswith("softmax_scaling.scale"):
        return 0.1 + 0.4 * uniform  # of the logarithm of positions
    if name.endswith(("indexer.k_norm.bias", "indexer.q_input_norm.bias")):
        return 0.3 * normal  # keys alike would be passed over by all heads alike
    last = parent.rpartition(".")[2]
    if "norm" in last or last in ("ln1", "ln2", "ln_out", "pre_ln"):
        # Weights that start from 0 are added to 1.
        return (0.5 if like.any() or leaf != "weight" else -0.5) + uniform
    if name.endswith("fgate_preact.bias"):  # memories from a token to hundreds
        return -1 + 6 * uniform
    if leaf == "bias":
        return 0.5 * normal
    if "embed" in parent or "lm_head" in parent:
        return normal * 3 / math.sqrt(like.shape[-1])
    gain = 3.0 if parent.endswith(("gate", "router", "classifier", ".attention.key")) else 1.5
    if parent.endswith("router.proj"):
        gain = 3 * math.sqrt(like.shape[-1])  # its input is divided by the root of its size
    if "shared_transf" in parent:
        gain = 0.8  # its adapters add up, and no residual damps what it does to rounding
    return normal * gain / math.sqrt(like.shape[-1])

"""`hybrid_stack` written plainly: dense, differentiable, with no cache.

It is what the demo checkpoint is trained with, and it is the oracle of the
tests: it shares no code with the runtime, its `state_dict` is the checkpoint,
and every mixer reads as its paper. Input is `[batch, tokens]` without padding.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.attention import MLA, Attention, RMSNorm
from training.mamba import Mamba1, Mamba2
from training.recurrent import GatedDeltaNet, KimiDeltaAttention, LightningAttention, ShortConv

Config = dict[str, Any]


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, eps: float, layer: Config) -> None:
        super().__init__()
        inner = layer["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., hidden]` to the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MoE(nn.Module):
    """Softmax over all experts, then the best k; every expert computes every token."""

    def __init__(self, hidden: int, eps: float, layer: Config) -> None:
        super().__init__()
        experts = layer["num_experts"]
        self.top_k = layer["num_experts_per_tok"]
        self.normalise = layer.get("norm_topk_prob", True)
        self.gate = nn.Linear(hidden, experts, bias=False)
        inner = {"intermediate_size": layer["moe_intermediate_size"]}
        self.experts = nn.ModuleList(MLP(hidden, eps, inner) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, tokens, hidden]` to the same."""
        weights, chosen = self.gate(x).softmax(-1).topk(self.top_k, dim=-1)
        if self.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        share = x.new_zeros(*x.shape[:-1], len(self.experts)).scatter(-1, chosen, weights)
        outs = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (outs * share[..., None, :]).sum(-1)


class Parallel(nn.Module):
    """Several mixers on the same input, added up."""

    def __init__(self, hidden: int, eps: float, layer: Config) -> None:
        super().__init__()
        mixers = [MIXERS[entry["type"]](hidden, eps, entry) for entry in layer["mixers"]]
        self.mixers = nn.ModuleList(mixers)

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, tokens, hidden]` to the same."""
        return torch.stack([mixer(x) for mixer in self.mixers]).sum(0)


MIXERS: dict[str, type[nn.Module]] = {
    "attention": Attention,
    "mla": MLA,
    "mamba1": Mamba1,
    "mamba2": Mamba2,
    "short_conv": ShortConv,
    "gated_delta_net": GatedDeltaNet,
    "kda": KimiDeltaAttention,
    "lightning": LightningAttention,
    "mlp": MLP,
    "moe": MoE,
    "parallel": Parallel,
}


class Layer(nn.Module):
    """`x + mixer(norm(x))`."""

    def __init__(self, hidden: int, eps: float, layer: Config) -> None:
        super().__init__()
        self.norm = RMSNorm(hidden, eps)
        self.mixer = MIXERS[layer["type"]](hidden, eps, layer)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """`[batch, tokens, hidden]` to the same; see `DenseStack.forward` for `memory`."""
        if memory is None or isinstance(self.mixer, (MLP, MoE)):
            return x + self.mixer(self.norm(x))
        if isinstance(self.mixer, (Mamba1, Mamba2)):
            return x + self.mixer(self.norm(x), memory)
        return x + self.mixer(self.norm(x)) * memory[:, None, None]


class Trunk(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config.get("rms_norm_eps", 1e-5)
        self.embed_tokens = nn.Embedding(config["vocab_size"], hidden)
        self.layers = nn.ModuleList(Layer(hidden, eps, layer) for layer in config["layers"])
        self.norm = RMSNorm(hidden, eps)
        self._share_keys_and_values()

    def _share_keys_and_values(self) -> None:
        for module in self.layers.modules():
            index = module.layer.get("share_cache_of") if isinstance(module, Attention) else None
            if index is not None:
                source = self.layers[index].mixer
                assert isinstance(module, Attention) and isinstance(source, Attention)
                module.read_from(source)

    def forward(self, token_ids: Tensor, memory: Tensor | None = None) -> Tensor:
        """`[batch, tokens]` to `[batch, tokens, hidden]`."""
        x = self.embed_tokens(token_ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, None if memory is None else memory[i])
        return self.norm(x)


class DenseStack(nn.Module):
    """The whole model: token ids `[batch, tokens]` to logits `[batch, tokens, vocab]`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = Trunk(config)
        self.tied = config.get("tie_word_embeddings", True)
        if not self.tied:
            self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, token_ids: Tensor, memory: Tensor | None = None) -> Tensor:
        """Logits of the next token, at every position.

        `memory[layer, row]`, for training and ablation, is 1 as a rule. Where it
        is 0, an attention or MLA layer adds nothing, and a Mamba layer sees its
        convolution's window only: its state is emptied at every token.
        """
        hidden = self.model(token_ids, memory)
        head = self.model.embed_tokens.weight if self.tied else self.lm_head.weight
        return hidden @ head.T


def randomise(model: DenseStack, seed: int, spread: float = 1.0) -> None:
    """Fills every parameter with random values under which a wrong cache shows in the logits.

    Matrices are scaled by their fan-in, so that every mixer's output is as large
    as its input; norms, biases and decays differ from channel to channel; decays
    reach from a few tokens to hundreds.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if name.endswith("A_log"):
            value = noise - 1.0
        elif name.endswith(("norm.weight", "layernorm.weight")):
            value = 1.0 + 0.2 * noise
        elif name.endswith(("dt_bias", "dt_proj.bias")):
            value = noise - 2.0
        elif p.ndim == 1:
            value = 0.3 * noise
        else:
            value = noise * spread * p[0].numel() ** -0.5
        p.data.copy_(value)

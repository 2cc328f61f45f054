"""CausalLM: embedding, layers, norm and logits: what all decoder-only models share."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.quantised_linear import BITS, Quantization
from hybridrt.kernels.room import Room
from hybridrt.layers.attention import shares_cache
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.linear import FusedLinear, Linear
from hybridrt.layers.moe import Experts
from hybridrt.layers.norm import RMSNorm
from hybridrt.layers.rope import Rope
from hybridrt.models.config import ModelConfig
from hybridrt.models.stream import run_layers


class Embedding(nn.Module):
    """`weight[token]`."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)

    def forward(self, input_ids: Tensor) -> Float[Tensor, "tokens hidden"]:
        return F.embedding(input_ids, self.weight)


class Backbone(nn.Module):
    """Everything but the logits."""

    def __init__(self, config: ModelConfig, layers: Iterable[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = norm


class CausalLM(nn.Module):
    """A model file subclasses this as `Model`, names its `Config` and makes the layers.

    Attributes:
        checkpoint_renames: pairs of a regular expression and its replacement, which take
            a checkpoint's tensor names to those of the parameters here.
        ignored_tensors: regular expressions of tensors that may be there unused.
        text_config_of: further `model_type`s, of multimodal checkpoints whose `text_config`
            is of this model.
        norm_class: of the norm behind the last layer.
        float32_residual: layers add up in float32 whatever the model's dtype.
        released_quantisation: the `quantization_config` that a `config.json` lacks, where
            the release is encoded so; one that transformers has saved is taken as it is.
        logit_softcap: logits are bent so that they stay below it; None: they are not.
    """

    Config: ClassVar[type[ModelConfig]]
    checkpoint_renames: ClassVar[tuple[tuple[str, str], ...]] = ()
    ignored_tensors: tuple[str, ...] = ()
    text_config_of: ClassVar[tuple[str, ...]] = ()
    released_quantisation: ClassVar[Mapping[str, Any] | None] = None
    norm_class: ClassVar[type[nn.Module]] = RMSNorm

    def __init__(
        self,
        config: Any,
        layers: Iterable[nn.Module],
        norm_eps: float,
        ropes: Iterable[Rope] = (),
        float32_residual: bool = False,
        logit_softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.config: ModelConfig = config
        norm = self.norm_class(config.hidden_size, norm_eps)
        self.model = Backbone(config, layers, norm)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.ropes = tuple(ropes)
        self.float32_residual = float32_residual
        self.logit_softcap = logit_softcap
        for name, layer in self.cached_layers().items():
            layer.name = name

    def forward(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        """The last hidden state of every token in the batch."""
        x = self.embed(batch)
        if self.float32_residual:
            x = x.float()
        return run_layers(self.model.layers, self.model.norm, x, batch)

    def embed(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        """What goes into the first layer."""
        return self.model.embed_tokens(batch.input_ids)

    def logits(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        """The logits behind these hidden states, in float32."""
        logits, cap = self.lm_head(hidden).float(), self.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def cached_layers(self) -> dict[str, CachedLayer]:
        """The layers with a cache of their own, by name, in the order they run."""
        layers = ((n, m) for n, m in self.named_modules() if isinstance(m, CachedLayer))
        return {n: m for n, m in layers if not (shares_cache(m) or m.caches_nothing)}

    def prepare(
        self,
        max_model_len: int,
        device: torch.device,
        quantization: Quantization | None = None,
        *,
        packs: bool = True,
    ) -> None:
        """Makes what is computed rather than loaded, once the weights are there.

        With `packs` weights are brought into the device's own layout. What gives the logits has
        8 bits at least: an error there is one of them all.
        """
        for rope in self.ropes:
            rope.prepare(max_model_len, device)
        for module in self.modules():
            if isinstance(module, FusedLinear):
                module.sort()
        if not packs:
            return
        bits, room = None if quantization is None else BITS[quantization], Room()
        for module in [*self.modules()]:
            if isinstance(module, Linear | Experts):
                module.pack(8 if bits and module is self.lm_head else bits, room)

    @property
    def longest_exact(self) -> int | None:
        """The longest sequence that a cache can serve exactly; None: any."""
        limits = [rope.longest_exact for rope in self.ropes if rope.longest_exact is not None]
        return min(limits, default=None)

    @property
    def rope_switch_length(self) -> int | None:
        """See `Rope.switch_length`; it must be the same in all layers."""
        lengths = {rope.switch_length for rope in self.ropes} - {None}
        if len(lengths) > 1:
            raise ValueError(f"layers switch their rotary tables at unlike lengths: {lengths}")
        return lengths.pop() if lengths else None


def check_class(model: Any, what: str) -> type[CausalLM]:
    """`model` itself, if it is a class of models.

    Raises:
        ValueError: it isn't, or it has no `Config`; `what` says where it comes from.
    """
    if not (isinstance(model, type) and issubclass(model, CausalLM)):
        raise ValueError(f"{what}: should be a subclass of {CausalLM.__module__}.CausalLM")
    config = getattr(model, "Config", None)
    if not (isinstance(config, type) and issubclass(config, ModelConfig)):
        raise ValueError(
            f"{what}: its Config is {config!r}; should be a subclass of "
            f"{ModelConfig.__module__}.ModelConfig"
        )
    return model

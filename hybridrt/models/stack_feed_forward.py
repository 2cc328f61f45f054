"""The layers of a hybrid_stack that cache nothing."""

from pydantic import PositiveInt
from torch import nn

from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.models.stack_layer import LayerConfig, StackConfig


class MLPLayer(LayerConfig):
    """A SwiGLU MLP."""

    intermediate_size: PositiveInt

    def make(self, model: StackConfig) -> nn.Module:
        return MLP(model.hidden_size, self.intermediate_size)


class MoELayer(LayerConfig):
    """Experts chosen by softmax."""

    num_experts: PositiveInt
    num_experts_per_tok: PositiveInt
    moe_intermediate_size: PositiveInt
    norm_topk_prob: bool = True

    def make(self, model: StackConfig) -> nn.Module:
        sizes = self.model_dump(exclude={"type"})
        return MoE(MoEConfig(hidden_size=model.hidden_size, **sizes))

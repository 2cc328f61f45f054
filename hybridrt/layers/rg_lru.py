"""The recurrent block of Griffin and Hawk (arXiv 2402.19427), as RecurrentGemma has it."""

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import INPUTS, CacheSpec, State
from hybridrt.kernels.causal_conv1d import causal_conv1d
from hybridrt.kernels.linear_recurrence import linear_recurrence
from hybridrt.kernels.reference.gates import ACTIVATIONS, Activation
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.conv import CausalConv1d
from hybridrt.layers.linear import FusedLinear, Linear
from hybridrt.values import Value, check_divides

_SHARPNESS = 8.0  # the paper's c


class RecurrentBlockConfig(Value):
    """Sizes. `num_heads` is the number of blocks in the gates' block diagonal matrices."""

    hidden_size: PositiveInt
    lru_width: PositiveInt
    num_heads: PositiveInt
    conv_kernel: int = Field(4, ge=2)
    activation: Activation = "gelu_pytorch_tanh"

    @model_validator(mode="after")
    def _whole_blocks(self) -> "RecurrentBlockConfig":
        check_divides(self, "num_heads", "lru_width")
        return self


class RGLRU(nn.Module):
    """The gates of the real-gated linear recurrent unit: what is kept, and what is added.

    `r = sigmoid(W_a x)`, `i = sigmoid(W_x x)`, `a = exp(-8 r softplus(L))` and
    `h = a h + sqrt(1 - a^2) i x` (equations 1 to 4). A sequence begins with `h = i x`.
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        block = (num_heads, width // num_heads)
        for gate in ("input", "recurrent"):
            weight, bias = torch.empty(*block, block[1]), torch.empty(block)
            self.register_parameter(f"{gate}_gate_weight", nn.Parameter(weight, False))
            self.register_parameter(f"{gate}_gate_bias", nn.Parameter(bias, False))
        # Decays close to 1 are told apart by their last digits.
        self.recurrent_param = nn.Parameter(torch.empty(width, dtype=torch.float32), False)

    def forward(
        self, x: Float[Tensor, "tokens width"], batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        """Each token's update and decay, `[tokens, width]` in float32."""
        i, r = (self._gate(x, name) for name in ("input", "recurrent"))
        log_decay = -_SHARPNESS * r * F.softplus(self.recurrent_param)
        begins = (batch.positions == 0)[:, None]
        # Not `expm1`: models have been trained with the digits that are lost here.
        scale = torch.sqrt(1 - torch.exp(2 * log_decay)).masked_fill(begins, 1.0)
        return scale * i * x.float(), torch.exp(log_decay).masked_fill(begins, 0.0)

    def _gate(self, x: Float[Tensor, "tokens width"], name: str) -> Float[Tensor, "tokens width"]:
        weight = self.get_parameter(f"{name}_gate_weight")
        product = torch.einsum("thi,hij->thj", x.unflatten(-1, weight.shape[:2]), weight)
        return torch.sigmoid((product + self.get_parameter(f"{name}_gate_bias")).float().flatten(1))


class RecurrentBlock(CachedLayer):
    """`out(rg_lru(conv(linear_x(x))) * gelu(linear_y(x)))`.

    A page holds the convolution's last inputs, `conv_state: [conv_kernel - 1, lru_width]`,
    oldest first, and `lru_state: [lru_width]`.
    """

    mixer = "rg_lru"

    def __init__(self, config: RecurrentBlockConfig) -> None:
        super().__init__()
        self.config = config
        hidden, width = config.hidden_size, config.lru_width
        self.linear_xy = FusedLinear(hidden, {"linear_x": width, "linear_y": width}, bias=True)
        self.conv_1d = CausalConv1d(width, config.conv_kernel, bias=True)
        self.rg_lru = RGLRU(width, config.num_heads)
        self.act = ACTIVATIONS[config.activation]
        self.linear_out = Linear(width, hidden, bias=True)

    @property
    def cache_spec(self) -> CacheSpec:
        cfg = self.config
        inputs, dtype = (cfg.conv_kernel - 1, cfg.lru_width), self.cache_format.state_dtype
        conv_state = State("conv_state", inputs, self.dtype, axes=INPUTS)
        lru_state = State("lru_state", (cfg.lru_width,), dtype, axes=("channels",))
        return CacheSpec("state", (conv_state, lru_state))

    def _bind(self, *views: Tensor) -> None:
        self.conv_state, self.lru_state = views

    def forward(
        self, hidden: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        pages = batch.state_pages(self.cache_group, self.cache_part)
        initial_pages = batch.initial_state_pages(self.cache_group, self.cache_part)
        rows = batch.for_states
        x, y = self.linear_xy(hidden).chunk(2, dim=-1)
        x = causal_conv1d(
            x,
            self.conv_1d.taps,
            self.conv_1d.bias,
            self.conv_state,
            pages,
            initial_pages,
            rows,
            self.state_backend,
            activation=None,
        )
        update, decay = self.rg_lru(x, batch)
        h = linear_recurrence(
            update, decay, self.lru_state, pages, initial_pages, rows, self.state_backend
        )
        return self.linear_out(h.to(y.dtype) * self.act(y))

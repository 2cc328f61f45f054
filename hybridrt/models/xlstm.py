"""xLSTM 7B (NX-AI, arXiv 2503.13427): mLSTM and a feed-forward layer by turns."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.mlp import MLP
from hybridrt.layers.mlstm import MLSTM, MLSTMConfig
from hybridrt.layers.norm import BiasedRMSNorm, RMSNorm, add_and_norm
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig


class Config(ModelConfig):
    """Keys of an xLSTM `config.json`, as published or as transformers'."""

    embedding_dim: PositiveInt | None = None
    num_blocks: PositiveInt | None = None
    num_heads: PositiveInt = 8
    head_dim: PositiveInt | None = None
    qk_dim_factor: PositiveFloat = 0.5
    v_dim_factor: PositiveFloat = 1.0
    mlstm_round_up_to_multiple_of: PositiveInt = 1
    ffn_proj_factor: PositiveFloat = 2.667
    ffn_round_up_to_multiple_of: PositiveInt = 64
    use_bias: bool = False
    eps: float = 1e-6
    norm_eps: float = 1e-6
    cell_norm_eps: float | None = None
    gate_soft_cap: PositiveFloat = 15.0
    output_logit_soft_cap: PositiveFloat = 30.0
    inference_state_dtype: Literal["float32"] = "float32"
    norm_reduction_force_float32: Literal[True] = True
    tie_word_embeddings: Literal[False] = False
    # Parts that every published model has, or none.
    add_out_norm: Literal[True] = True
    add_post_blocks_norm: Literal[True] = True
    add_embedding_dropout: Literal[False] = False
    add_post_norm: Literal[False] = False
    add_qk_norm: Literal[False] = False

    has_rope = False
    # Of kernels and of training. Names of tensors say whether weights are fused.
    without_effect = (
        *("add_forward_backend_padding", "autocast_kernel_dtype", "chunk_size"),
        *("chunkwise_kernel", "force_bos_token_insert", "forward_backend_name"),
        *("igate_bias_init_range", "max_inference_chunksize", "mode", "return_last_states"),
        *("sequence_kernel", "step_backend_name", "step_kernel", "weight_mode"),
    )

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As `ModelConfig.from_json`; two sizes have an older name too."""
        values = dict(config)
        for name, older in (("hidden_size", "embedding_dim"), ("num_hidden_layers", "num_blocks")):
            if values.get(name) is None:
                values[name] = values.get(older)
        return super().from_json(values, ignore)

    @model_validator(mode="after")
    def _agree(self) -> "Config":
        """What two keys say is the same, and nothing is left to be rounded."""
        wanted = (
            ("embedding_dim", self.hidden_size),
            ("num_blocks", self.num_hidden_layers),
            ("head_dim", self.v_dim // self.num_heads),
            ("cell_norm_eps", self.norm_eps),
        )
        for name, right in wanted:
            if getattr(self, name) not in (None, right):
                raise ValueError(f"{name}={getattr(self, name)} should be {right}")
        multiple = self.mlstm_round_up_to_multiple_of
        if self.qk_dim % multiple or self.v_dim % multiple:
            raise ValueError(
                f"mlstm_round_up_to_multiple_of={multiple} should divide the keys' and the "
                f"values' {self.qk_dim} and {self.v_dim} channels"
            )
        return self

    @property
    def qk_dim(self) -> int:
        """Channels of all keys."""
        return int(self.hidden_size * self.qk_dim_factor)

    @property
    def v_dim(self) -> int:
        """Channels of all values."""
        return int(self.hidden_size * self.v_dim_factor)

    @property
    def ffn_dim(self) -> int:
        """Inner channels of the feed-forward layers: what is beyond a multiple by < 1 is cut."""
        multiple = self.ffn_round_up_to_multiple_of
        return int((self.hidden_size * self.ffn_proj_factor + multiple - 1) // multiple) * multiple


class Layer(nn.Module):
    """mLSTM, then the feed-forward layer; before each a norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, eps, bias = config.hidden_size, config.norm_eps, config.use_bias
        norm = BiasedRMSNorm if bias else RMSNorm
        self.norm_mlstm, self.norm_ffn = norm(hidden, eps), norm(hidden, eps)
        sizes = MLSTMConfig(
            hidden_size=hidden,
            num_heads=config.num_heads,
            qk_dim=config.qk_dim,
            v_dim=config.v_dim,
            gate_soft_cap=config.gate_soft_cap,
            eps=config.eps,
            norm_eps=eps,
            use_bias=bias,
        )
        self.mlstm_layer = MLSTM(sizes)
        self.ffn = MLP(hidden, config.ffn_dim, bias)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        x, normed = add_and_norm(x, self.mlstm_layer(self.norm_mlstm(x), batch), self.norm_ffn)
        return x + self.ffn(normed)


class Model(CausalLM):
    """The same in every layer."""

    Config = Config
    checkpoint_renames = (
        (r"^backbone\.embeddings\.", "model.embed_tokens."),
        (r"^backbone\.blocks\.", "model.layers."),
        (r"^backbone\.out_norm\.", "model.norm."),
        (r"\.ffn\.proj_up_gate_z\.", ".ffn.gate_up_proj."),
        (r"\.ffn\.proj_up_gate\.", ".ffn.gate_proj."),
        (r"\.ffn\.proj_(up|down)\.", r".ffn.\1_proj."),
    )

    def __init__(self, config: Config) -> None:
        layers = [Layer(config) for _ in range(config.num_hidden_layers)]
        cap = config.output_logit_soft_cap
        super().__init__(config, layers, config.norm_eps, logit_softcap=cap)

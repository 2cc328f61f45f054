"""Falcon Mamba (arXiv 2410.05355): Mamba whose dt, B and C are normed, without weights."""

from pydantic import model_validator

from hybridrt.layers.mamba1 import Mamba1Config
from hybridrt.models import mamba


class Config(mamba.Config):
    """Keys of a Falcon Mamba `config.json`. `intermediate_size` comes before `expand`.

    (The published model has 8192 channels, and an `expand` that would make it 65536.)
    """

    mixer_rms_eps: float = 1e-6

    without_effect = ("use_falcon_mambapy",)

    @model_validator(mode="after")
    def _agree(self) -> "Config":
        """`expand` needn't say the same as `intermediate_size`."""
        return self

    @property
    def inner(self) -> int:
        """Channels of the recurrence."""
        return self.intermediate_size or super().inner

    @property
    def mixer(self) -> Mamba1Config:
        """The sizes of every layer's mixer."""
        normed = {"inner_norm_eps": self.mixer_rms_eps, "inner_norm_weights": False}
        return super().mixer.model_copy(update=normed)


class Model(mamba.Model):
    """Mamba-1 in every layer."""

    Config = Config

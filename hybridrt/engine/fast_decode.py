"""Which way decode steps are run: compiled, from CUDA graphs, both, from tapes, or as any step."""

import logging
from collections.abc import Sequence

import torch

from hybridrt.cache.plan import GroupPlan
from hybridrt.config import EngineConfig
from hybridrt.engine.compiled_decode import check_can_compile, compiled
from hybridrt.engine.cuda_graphs import NotCapturableError, capture
from hybridrt.engine.static_decode import (
    StaticBatches,
    StaticDecode,
    batch_sizes,
    decode_step,
)
from hybridrt.engine.taped_decode import TapedDecode
from hybridrt.models.causal_lm import CausalLM

logger = logging.getLogger(__name__)


def check_fast_decode(config: EngineConfig, device: torch.device) -> None:
    """Refuses options of decode steps that can't be had on this device.

    Raises:
        ValueError: the option, and what is missing.
    """
    if config.cuda_graphs and device.type != "cuda":
        raise ValueError(
            f"cuda_graphs=True can't run on device {str(device)!r}; leave it out, or use 'cuda'"
        )
    if config.compile:
        check_can_compile(device, config.quantization)


@torch.inference_mode()
def fast_decode(
    config: EngineConfig,
    model: CausalLM,
    groups: Sequence[GroupPlan],
    device: torch.device,
    *,
    progress: bool,
) -> StaticDecode | None:
    """What runs batches of decodes as the config asks for, before anything is in the cache.

    None: the model's own forward does.

    Raises:
        ValueError: CUDA graphs were asked for, and a step of this model can't be recorded.
    """
    wants_graphs = device.type == "cuda" and config.cuda_graphs is not False
    if device.type == "cpu" and config.record_decode and not config.compile:
        assert config.max_model_len is not None
        return TapedDecode(model, groups, config.max_num_seqs, config.max_model_len)
    if not (wants_graphs or config.compile):
        return None
    assert config.max_model_len is not None
    sizes = batch_sizes(config.max_num_seqs)
    switches = model.rope_switch_length is not None
    batches = StaticBatches(groups, sizes, config.max_model_len, device, switches_rope=switches)
    plain = decode_step(model)
    step = compiled(plain, sizes) if config.compile else plain
    if wants_graphs:
        try:
            return StaticDecode(batches, capture(plain, step, batches, progress=progress))
        except NotCapturableError as error:
            if config.cuda_graphs:
                raise ValueError(f"cuda_graphs=True: {error}") from error
            logger.info("no CUDA graphs: %s", error)
    return StaticDecode(batches, step) if config.compile else None

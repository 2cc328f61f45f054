"""From a checkpoint to a model that is bound to a pool of pages."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hybridrt.cache.plan import CachePlan
from hybridrt.cache.planner import choose_kernel_block_sizes, plan
from hybridrt.cache.pool import Pool
from hybridrt.cache.spec import CacheFormat
from hybridrt.config import EngineConfig
from hybridrt.engine.checkpoint import locate
from hybridrt.engine.fast_decode import check_fast_decode
from hybridrt.engine.formats import checkpoint_config
from hybridrt.engine.memory import default_cache_memory, total_memory
from hybridrt.engine.quantised import Quantisation, read_quantisation
from hybridrt.engine.weights import checkpoint_dtype, load_weights
from hybridrt.kernels.backend import choose_attention_backend, choose_state_backend
from hybridrt.layers.cached import CachedLayer
from hybridrt.models import model_class
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.multimodal import text_config

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
UNLIMITED_MODEL_LEN = 2**20
"""The longest sequence of a model whose config sets no limit (Mamba)."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A checkpoint's model, on the meta device, and the plan of its cache.

    `config.max_model_len` is the one that holds. `checkpoint` is what the weights are read
    from, `directory` or a file in it, and `quantisation` how.
    """

    config: EngineConfig
    directory: Path
    device: torch.device
    model: CausalLM
    plan: CachePlan
    checkpoint: Path
    quantisation: Quantisation | None


def draw_up(config: EngineConfig, *, config_only: bool = False) -> Blueprint:
    """Reads `config.json` alone: no weight is touched, nor, with `config_only`, downloaded.

    Raises:
        ValueError: the checkpoint can't be served, or not in this way; the message says why.
    """
    checkpoint = locate(config.model, config_only=config_only)
    directory = checkpoint if checkpoint.is_dir() else checkpoint.parent
    raw = checkpoint_config(checkpoint)
    quantisation = _quantisation(raw)
    device = _device(config.device)
    check_fast_decode(config, device)
    model = build_model(raw, config, _dtype(config, text_config(raw), checkpoint))
    asked = config.max_model_len
    config = config.model_copy(update={"max_model_len": _longest(model, asked)})
    _set_formats(model, config, device)
    cache_plan = _plan(model, config, device)
    config = config.model_copy(update={"max_model_len": _fitting(cache_plan, config, asked)})
    return Blueprint(config, directory, device, model, cache_plan, checkpoint, quantisation)


def build_model(raw: dict[str, Any], config: EngineConfig, dtype: torch.dtype) -> CausalLM:
    """The model of a `config.json`, the text model of a multimodal one, on the meta device."""
    cls = model_class(raw)
    # Of loading, not of the model.
    part = {k: value for k, value in text_config(raw).items() if k != "quantization_config"}
    model_config = cls.Config.from_json(part, config.ignore_config_keys)
    with torch.device("meta"), _default_dtype(dtype):
        return cls(model_config)  # pyright: ignore[reportCallIssue]


def load(blueprint: Blueprint, *, progress: bool) -> Pool:
    """Fills the model with its weights and binds its layers to a new pool."""
    config, model, device = blueprint.config, blueprint.model, blueprint.device
    if blueprint.plan.pool_bytes > total_memory(device):
        raise ValueError(
            f"a cache of {blueprint.plan.pool_bytes} bytes doesn't fit {str(device)!r}, which has "
            f"{total_memory(device)}; lower cache_memory"
        )
    load_weights(
        model,
        blueprint.checkpoint,
        device=device,
        progress=progress,
        quantisation=blueprint.quantisation,
    )
    assert config.max_model_len is not None
    packs = not config.compile  # a graph can't take weights in oneDNN's own layout
    model.prepare(config.max_model_len, device, config.quantization, packs=packs)
    pool = Pool(blueprint.plan, device, poison_freed_pages=config.poison_freed_pages)
    layers = model.cached_layers()
    for layer_plan in blueprint.plan.layers:
        layer = layers[layer_plan.name]
        layer.cache_group, layer.cache_part = layer_plan.group, layer_plan.part
        layer.bind_kv_cache(pool.layer_pages(layer_plan))
    return pool


def _quantisation(raw: dict[str, Any]) -> Quantisation | None:
    """What a `config.json` says, or what a released one should."""
    part = text_config(raw)
    if "quantization_config" not in part and "transformers_version" not in raw:
        part["quantization_config"] = model_class(raw).released_quantisation
    return read_quantisation(part)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device={name!r}: torch finds no CUDA device here; use 'cpu' or 'auto'")
    return torch.device(name)


def _dtype(config: EngineConfig, raw: dict[str, Any], directory: Path) -> torch.dtype:
    """The one asked for, or the checkpoint's: as its config says, or as its weights are."""
    name = config.dtype
    if name == "auto":
        name = raw.get("dtype") or raw.get("torch_dtype")
    if name is None and any(directory.glob("*.safetensors")):
        name = checkpoint_dtype(directory)
    name = str(name or "float32").removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"config.json: dtype={name!r} should be one of {', '.join(DTYPES)}")
    return DTYPES[name]


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _longest(model: CausalLM, asked: int | None) -> int:
    """`max_model_len` as far as the model goes."""
    limit = model.config.max_position_embeddings or UNLIMITED_MODEL_LEN
    reason = f"max_position_embeddings={limit}"
    if model.longest_exact is not None and model.longest_exact <= limit:
        limit = model.longest_exact
        reason = f"{limit}, since rope_type 'dynamic' changes cached keys beyond that"
    if asked is not None and asked > limit:
        raise ValueError(f"max_model_len={asked} should be at most {reason}")
    return limit if asked is None else asked


def _set_formats(model: CausalLM, config: EngineConfig, device: torch.device) -> None:
    layers = model.cached_layers()
    cache_format = CacheFormat(
        kv_layout=config.kv_layout,
        kv_cache_dtype=config.kv_cache_dtype,
        state_dtype=DTYPES[config.state_dtype],
    )
    for layer in layers.values():
        layer.cache_format = cache_format
    attention = choose_attention_backend(config.attention_backend, device)
    state = choose_state_backend(config.state_backend, device)
    for module in model.modules():  # those that read another layer's cache among them
        if isinstance(module, CachedLayer):
            module.attention_backend, module.state_backend = attention, state
    for name, tokens in choose_kernel_block_sizes(layers, config).items():
        layers[name].cache_format = replace(cache_format, kernel_block_size=tokens)


def _plan(model: CausalLM, config: EngineConfig, device: torch.device) -> CachePlan:
    layers = model.cached_layers()
    memory = config.cache_memory
    if memory is None:
        assert config.max_model_len is not None
        ample = plan(layers, config, 2**62)
        useful = ample.slab_bytes * ample.slabs_for(config.max_model_len, config.max_num_seqs)
        # A slab more for each group, whose own may be cut in another way.
        useful += ample.slab_bytes * len(ample.groups)
        memory = default_cache_memory(model, device, useful)
    return plan(layers, config, memory)


def _fitting(cache_plan: CachePlan, config: EngineConfig, asked: int | None) -> int:
    """`max_model_len` as far as the cache goes."""
    limit = config.max_model_len
    assert limit is not None
    longest = cache_plan.longest_sequence()
    if longest is None or longest >= limit:
        return limit
    if asked is not None or longest < 2:
        raise ValueError(
            f"the cache of {cache_plan.pool_bytes} bytes holds a sequence of {longest} tokens at "
            f"most, not max_model_len={limit}: one takes {cache_plan.slabs_for(limit)} slabs of "
            f"{cache_plan.slab_bytes} bytes; raise cache_memory or lower max_model_len"
        )
    logger.info("max_model_len is %d, what the cache holds, not the model's %d", longest, limit)
    return longest

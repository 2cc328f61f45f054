"""What a session caches beside what transformers' cache holds of the same tokens."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from hybridrt.introspection.capture import Call
from hybridrt.introspection.counterparts import Counterparts
from hybridrt.introspection.our_run import OurRun
from hybridrt.introspection.their_run import TheirRun
from hybridrt.layers.linear import Linear
from hybridrt.layers.mla import MLA
from hybridrt.layers.norm import GatedRMSNorm

Pair = tuple[Call, str, str, Tensor, Tensor, Tensor | None, int | None]
"""The call before which it is cached, the mixer, the name; then as `_pair` gives them."""


def cached_pairs(
    index: int,
    both: Counterparts,
    ours: OurRun,
    theirs: TheirRun,
    num_tokens: int,
    calls: Sequence[Call],
) -> Iterator[Pair]:
    """All that layer `index` caches on both sides in the same form."""
    layer = both.our_layers[index]
    paths = {path: module for path, module in both.model.named_modules()}
    parts = set(layer.modules())
    for plan, tensors in ours.cached:
        mixer = paths[plan.name]
        if mixer not in parts:
            continue
        inside = [call for call in calls if call.module in set(mixer.modules())]
        before = _last_step(inside)
        held = {**theirs.cache[index], **_latents(mixer, both, theirs, index, num_tokens)}
        for name, tensor in tensors.items():
            if before is not None and name in held and name != "positions":
                pair = _pair(name, tensor, held[name], tensors, num_tokens)
                if pair is not None:
                    yield before, path_in(layer, mixer), name, *pair


def _latents(
    mixer: nn.Module, both: Counterparts, theirs: TheirRun, index: int, num_tokens: int
) -> dict[str, Tensor]:
    """What MLA caches: the normed latents, and the part of keys that all heads share."""
    norm_of_latents = getattr(mixer, "kv_a_layernorm", None)  # none where they are another's
    if not isinstance(mixer, MLA) or norm_of_latents is None:
        return {}
    found: dict[str, Tensor] = {}
    norm = both.ours[norm_of_latents]
    for call in theirs.calls:
        if call.layer == index and norm and both.theirs[call.module] == norm:
            latents = call.output(num_tokens)
            if latents is not None:
                found["c_kv"] = latents
    # Their cache has latents and rotated parts as keys and values of one head, or whole keys.
    held, size = theirs.cache[index], mixer.config.qk_rope_head_dim
    apart = "v" in held and held["v"].shape[1:] == (1, size)
    rotated = held.get("v" if apart else "k")
    if rotated is not None and size and len(rotated) == num_tokens:
        found["k_pe"] = rotated[:, 0, -size:]
    return found


def _last_step(calls: Sequence[Call]) -> Call | None:
    """The norm behind a recurrence, or the last projection."""
    projections = [call for call in calls if isinstance(call.module, Linear)]
    behind = [call for call in calls if isinstance(call.module, GatedRMSNorm)]
    return min([*projections[-1:], *behind], key=lambda call: call.order, default=None)


def path_in(layer: nn.Module, module: nn.Module) -> str:
    """Where `module` is in `layer`; empty if it isn't."""
    return next((path for path, part in layer.named_modules() if part is module), "")


def _pair(
    name: str, ours: Tensor, theirs: Tensor, tensors: Mapping[str, Tensor], num_tokens: int
) -> tuple[Tensor, Tensor, Tensor | None, int | None] | None:
    """Both in one shape, the positions of tokens, and the axis of heads."""
    positions = None
    if name in ("k", "v", "c_kv", "k_pe"):
        first = num_tokens - len(theirs)  # of those that a window has left there
        positions = tensors.get("positions", torch.arange(num_tokens)).cpu()
        ours, positions = ours[positions >= first], positions[positions >= first]
        theirs = theirs.cpu()[positions - first]
    elif name == "conv_state":
        theirs = theirs.transpose(-1, -2)[-ours.shape[0] :]  # theirs keeps the newest input too
    if ours.shape != theirs.shape or not ours.numel():
        return None
    if name == "k_pe":
        theirs = _in_our_order(ours, theirs)
    axis = {"k": 1, "v": 1, "ssm_state": 0}.get(name)
    return ours, theirs, positions, axis


def _in_our_order(ours: Tensor, theirs: Tensor) -> Tensor:
    """Rotated pairs are neighbours here; there they may stand half of the dimensions apart."""
    neighbours = theirs.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    return min((theirs, neighbours), key=lambda order: (ours.cpu() - order.cpu()).abs().sum())

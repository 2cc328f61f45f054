"""CachedLayer: a layer that keeps something between the steps of a sequence."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from hybridrt.cache.spec import CacheFormat, CacheSpec
from hybridrt.kernels.backend import AttentionBackend, StateBackend
from hybridrt.kernels.op import remember_bytes


class CachedLayer(nn.Module, ABC):
    """Declares its cache in `cache_spec` and gets it, once, through `bind_kv_cache`.

    Before that the engine sets `cache_format`, `attention_backend`, `state_backend`, and under
    which group and part a `ForwardBatch` has this layer's pages.
    """

    mixer: str
    cache_format: CacheFormat = CacheFormat()
    cache_group: str = ""
    cache_part: int = 0
    name: str = "?"
    attention_backend: AttentionBackend = "reference"
    state_backend: StateBackend = "reference"

    def __init__(self) -> None:
        super().__init__()
        self.dtype = torch.get_default_dtype()
        self._bound = False

    @property
    def caches_nothing(self) -> bool:
        """Whether this layer reads only what others cache: then it's neither planned nor bound."""
        return False

    @property
    @abstractmethod
    def cache_spec(self) -> CacheSpec:
        """What this layer stores in one kernel block."""

    def supports_kernel_block_size(self, tokens: int) -> bool:
        """Whether this layer's kernels can index blocks of that many tokens; plain torch can."""
        return True

    @abstractmethod
    def _bind(self, *views: Tensor) -> None:
        """Keeps the views of the states that `cache_spec` names, in order.

        Or views of them, each an attribute or in a tuple. Kernels take views that are kept;
        for one made during a forward a compiler can't tell what its writes change.
        """

    def bind_kv_cache(self, pages: UInt8[Tensor, "num_blocks layer_bytes"]) -> None:
        """Takes this layer's rows of the pool and keeps views of them. Copies nothing.

        Raises:
            ValueError: a row has not the size that `cache_spec` asks for.
            RuntimeError: the layer is bound already.
        """
        if self._bound:
            raise RuntimeError(
                f"{self.name} is bound already: {self.cache_spec.block_bytes} bytes a block, "
                f"and now {pages.shape[1]} again"
            )
        try:
            views = self.cache_spec.unpack(pages)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None
        self._bind(*views)
        self._bound = True
        for value in vars(self).values():
            for view in value if isinstance(value, tuple | list) else (value,):
                if isinstance(view, Tensor) and _same_storage(view, pages):
                    remember_bytes(view, pages)


def _same_storage(view: Tensor, pages: Tensor) -> bool:
    return view.untyped_storage().data_ptr() == pages.untyped_storage().data_ptr()

"""TokenCached: a layer that caches something of every token."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.layers.cached import CachedLayer


class TokenCached(CachedLayer):
    """Writes what it caches of the new tokens, and attends then.

    `update_kv_cache(*new_tokens, batch)` writes, `attend(*queries, batch)` attends. Where a
    backend's kernel does both, its layer says `fuses_cache_update`, and what is to be
    written goes to `attend(*queries, batch, new_tokens)`.
    """

    fuses_cache_update: bool = False
    update_kv_cache: Callable[..., None]
    attend: Callable[..., Tensor]

    def update_and_attend(
        self,
        queries: tuple[Tensor | None, ...],
        new_tokens: tuple[Tensor, ...] | None,
        batch: ForwardBatch,
    ) -> Float[Tensor, "tokens heads dim"]:
        """The one place that decides who writes. `None`: another layer has written already."""
        if new_tokens is None:
            return self.attend(*queries, batch)
        if self.fuses_cache_update:
            return self.attend(*queries, batch, new_tokens)
        self.update_kv_cache(*new_tokens, batch)
        return self.attend(*queries, batch)

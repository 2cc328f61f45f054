"""Views: tensors of a layer that are read when they are asked for, and never out of date."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hybridrt.cache.plan import LayerPlan
from hybridrt.engine.read_cache import Field, LayerCache
from hybridrt.introspection.access import Access
from hybridrt.introspection.history import current


class StaleView(RuntimeError):  # noqa: N818 (as StopIteration: what it says is what is the case)
    """A view was used after its session had moved on."""


class LayerView(Mapping[str, "TensorView"]):
    """What a layer holds of a session, by name, none of it read yet.

    It is of one moment. As soon as the session has moved on (tokens were appended or generated,
    it was truncated, written to or closed, or lost its pages) using it raises `StaleView`.
    """

    def __init__(self, access: Access, plan: LayerPlan) -> None:
        self._access = access
        self._plan = plan
        held = access.compute()
        self._generation = held.generation
        self.position = held.num_computed
        self._fields = dict(current(access, plan).fields)
        self._rows = len(current(access, plan).rows)

    def __getitem__(self, name: str) -> "TensorView":
        if name not in self._fields:
            raise KeyError(f"{name!r}: {self._plan.name} has {sorted(self._fields)}")
        return TensorView(self, self._fields[name], self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {list(view.shape)}" for name, view in self.items())
        return f"<LayerView of {self._plan.name} behind {self.position} tokens: {shapes}>"

    def cache(self) -> LayerCache:
        """The layer's cache, as it is now.

        Raises:
            StaleView: the session has moved on.
        """
        name = self._access.held.name
        if self._access.closed:
            raise StaleView(f"{name} is closed, and its pages may hold something else by now")
        if self._access.held.generation != self._generation:
            raise StaleView(
                f"{name} has moved on since this view was made, behind {self.position} tokens; "
                f"take another with layer.view()"
            )
        return current(self._access, self._plan)


class TensorView:
    """One tensor of a layer, read only: indexing it reads a copy of what is asked for.

    Attributes:
        name, axes, dtype: as of the tensor that `read()` gives.
        shape: of the whole tensor; known without reading.
    """

    def __init__(self, view: LayerView, field: Field, num_rows: int) -> None:
        self._view = view
        self._field = field
        self.name, self.axes, self.dtype = field.name, field.axes, field.dtype
        self.shape = torch.Size((num_rows, *field.shape) if field.rows else field.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"<TensorView {self.name}: {dtype}{list(self.shape)} {self.axes}>"

    def read(self) -> Tensor:
        """A copy of all of it.

        Raises:
            StaleView: the session has moved on.
        """
        return self._view.cache().read(self.name)

    def __getitem__(self, index: Any) -> Tensor:
        cache = self._view.cache()
        if not self._field.rows:
            return cache.read(self.name)[index].clone()
        first, *rest = index if isinstance(index, tuple) else (index,)
        if first is Ellipsis or first is None:
            return self.read()[index]
        device = self._view._access.engine.pool.bytes.device
        rows = torch.arange(cache.rows.start, cache.rows.stop, device=device)[first]
        found = cache.read(self.name, rows.reshape(-1))
        found = found.reshape((*rows.shape, *found.shape[1:]))
        return found[(*(slice(None),) * rows.dim(), *rest)]

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(f"a view of {self.name} is read only; layer.write(...) replaces it")

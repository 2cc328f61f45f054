"""SessionLayer: one layer of a session, to look into and to write to."""

import reprlib
from collections.abc import Mapping

import torch
from torch import Tensor

from hybridrt.cache.plan import LayerPlan
from hybridrt.cache.spec import Kind
from hybridrt.engine.read_cache import POSITIONS
from hybridrt.introspection.access import Access
from hybridrt.introspection.history import Reading, checkpoint_positions, current, read_at
from hybridrt.introspection.pages import PageInfo, page_infos
from hybridrt.introspection.patch import Rows, Undo, ablate, write
from hybridrt.introspection.session_tables import layer_tables
from hybridrt.introspection.views import LayerView
from hybridrt.show import Shown, ShowsItself


class SessionLayer(ShowsItself):
    """What one cached layer holds of a session.

    Attributes:
        index: its place in `session.layers`, which is that in `llm.plan.layers`.
        plan: its row of the cache plan.
    """

    def __init__(self, access: Access, index: int, plan: LayerPlan) -> None:
        self._access = access
        self.index = index
        self.plan = plan

    def __repr__(self) -> str:
        return f"<SessionLayer {self.index} {self.name}: {self.mixer}, {self.kind}>"

    def shown(self) -> Shown:
        """What it is and what it holds, as a table."""
        return layer_tables(self._access.engine, self._access.held, self.plan)

    @property
    def name(self) -> str:
        """The layer's name in the model."""
        return self.plan.name

    @property
    def kind(self) -> Kind:
        """What is kept: "full" every token, "window" the last ones, "state" one state."""
        return self.plan.kind

    @property
    def mixer(self) -> str:
        """What the layer computes: `attention`, `mla`, `mamba2` ..."""
        return self.plan.mixer

    @property
    def group(self) -> str:
        """The group of layers with which it shares a page table."""
        return self.plan.group

    @property
    def dtype(self) -> torch.dtype:
        """How the largest of its tensors is stored; `read()` gives quantised ones as numbers."""
        sizes = {name: torch.Size(shape).numel() for name, shape, _ in self.plan.states}
        largest = max(self.plan.states, key=lambda state: sizes[state[0]])
        return getattr(torch, largest[2])

    @property
    def bytes(self) -> int:
        """Bytes that the session's pages have for this layer now, shared ones included."""
        return len(self.pages) * self.plan.bytes_per_page

    @property
    def pages(self) -> tuple[PageInfo, ...]:
        """Its pages now, in token order; those that a window has left behind are gone."""
        return page_infos(self._access, self.plan)

    @property
    def checkpoint_positions(self) -> tuple[int, ...]:
        """Numbers of this session's tokens behind which the prefix cache has its states.

        None for a layer of another kind than "state".
        """
        return checkpoint_positions(self._access, self.plan)

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Names of the axes of each tensor that `read()` gives."""
        self._access.open()
        fields = current(self._access, self.plan).fields
        return {name: field.axes for name, field in fields.items()}

    @property
    def rows(self) -> range:
        """The first axis of its tensors in tokens of the session; of `entries`, in entries.

        All that it holds now; a window's begins with the first that is still held. Empty for a
        layer of the kind "state".

        Raises:
            ValueError: the session is closed or generating.
        """
        self._access.still()
        return current(self._access, self.plan).rows

    def read(self, position: int | None = None) -> Reading:
        """Copies of what the layer holds of all the session's tokens, which are computed first.

        Attention: `k`, behind the rotary embedding, and `v`, `[tokens, kv_heads, head_dim]`.
        MLA: `c_kv` and `k_pe`, `[tokens, dim]`, and an indexer's `k_index`, as far as the layer
        has them. All in the model's dtype; quantised ones as they are read back. Layers with a
        window have the tokens that they still hold, and `positions: int64[tokens]` says which.
        Compressed tokens and what they are made of, `entries`, `inputs` and `kv`, are `[entries,
        dim]` and `[tokens, dim]`. Other layers: their states, as they declare them.

        With `position` it is what the layer holds of so many tokens: out of the cache if it is
        all there, or from a checkpoint, or the tokens are computed once more, in another sequence.
        `source` of what is returned says which. Computing again leaves a checkpoint, as any
        prompt does; its sums may be rounded otherwise than those of the session's own steps.

        Raises:
            ValueError: the session is closed or generating, there are not so many tokens, or
                the session was written to and what was there before is gone.
            OutOfPages: there is no room to compute it.
        """
        return read_at(self._access, self.plan, position)

    def view(self) -> LayerView:
        """What `read()` gives, read when asked for: `view["k"][3:10]`, `view["k"].shape`.

        Read only, and never out of date: using it once the session has moved on raises
        `StaleView`.
        """
        return LayerView(self._access, self.plan)

    def write(
        self,
        name: str | Mapping[str, Tensor],
        values: Tensor | None = None,
        *,
        tokens: Rows | None = None,
        position: int | None = None,
    ) -> Undo:
        """Replaces what the layer holds: `write("ssm_state", x)`, or several by name at once.

        Of a layer of the kind "state" whole states, as they are behind the last token. Of others
        the rows of `tokens` (a position, a range or a slice of positions; None: all that it
        holds); of `entries` these are numbers of entries. `values` have the shape of what is
        replaced, and become what the cache's dtype makes of them; quantised ones are quantised as
        those of new tokens are, so `read()` may give back other numbers.

        What is written acts on tokens that come after it: `session.logits`, and so the first
        token that is generated, are what they were. Pages that others have are copied first.
        The session shares nothing with the prefix cache from then on, can't be saved or
        truncated, and says so in `session.was_written_to`, until the write is undone.

        Args:
            name: a name of `read()`, or tensors by such names.
            values: what to write, with a single name.
            tokens: rows to replace.
            position: must be the number of the session's tokens, if given; to write behind fewer,
                open or truncate to a session of so many.

        Raises:
            ValueError: a name, shape, dtype, token or position is none of this layer's, or the
                session is closed, generating or without tokens; nothing was changed.
            OutOfPages: there is no room for the copies; nothing was changed.
        """
        if isinstance(name, str):
            if values is None:
                raise ValueError(f"{self.name}: write({name!r}) needs values")
            name = {name: values}
        elif not isinstance(name, Mapping) or not name:
            raise ValueError(
                f"{self.name}: name={reprlib.repr(name)} should be a name that read() gives, or "
                f"tensors by such names, at least one"
            )
        elif values is not None:
            raise ValueError(f"{self.name}: values come with their names, or with one name")
        return write(self._access, self.plan, name, tokens, position)

    def ablate(self, tokens: Rows | None = None) -> Undo:
        """Lets the layer forget; see `write` for what that means for the session.

        A layer of the kind "state" has its states as before the first token: zeros. In attention
        the tokens' values are zero, in MLA their latents `c_kv`, so that they add nothing to
        any output; they still take part in the softmax. Compressed tokens are zero altogether.
        """
        return ablate(self._access, self.plan, tokens)

    def swap(self, other: "SessionLayer") -> Undo:
        """Exchanges what two layers hold, of two sessions as a rule; see `write`.

        Layers of tokens must hold the same rows. The `Undo` sets both sessions back.

        Raises:
            ValueError: what they hold has not the same names, shapes and kinds of numbers, or
                `other` is no layer.
            OutOfPages: there is no room for the copies; nothing was changed.
        """
        if not isinstance(other, SessionLayer):
            raise ValueError(
                f"{self.name}: other={reprlib.repr(other)} should be a layer, as session.layers[i]"
            )
        ours, theirs = self.read(), other.read()
        shapes = [{name: list(x.shape) for name, x in held.items()} for held in (ours, theirs)]
        if shapes[0] != shapes[1] or self.rows != other.rows:
            raise ValueError(
                f"{self.name} holds {shapes[0]} of the rows {self.rows}, {other.name} {shapes[1]} "
                f"of {other.rows}; to be swapped they should hold the same"
            )
        for held in (ours, theirs):
            held.pop(POSITIONS, None)
        first = self.write(theirs)
        try:
            return first.joined(other.write(ours))
        except BaseException:
            first.undo()
            raise

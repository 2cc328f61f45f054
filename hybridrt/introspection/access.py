"""Access: how a session and its layers reach one held sequence."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hybridrt.engine.engine import Engine
from hybridrt.engine.held import Held
from hybridrt.request import RequestOutput, SamplingParams

Run = Callable[[Held, SamplingParams | None], Iterator[RequestOutput]]
"""Steps the engine until a held sequence has what is asked for, and gives its outputs."""


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """A held sequence, its engine, and what steps that."""

    engine: Engine
    held: Held
    run: Run

    @property
    def closed(self) -> bool:
        """Whether its pages have been given back."""
        return self.held not in self.engine.held

    def open(self) -> Held:
        """The held sequence.

        Raises:
            ValueError: it is closed.
        """
        if self.closed:
            raise ValueError(f"{self.held.name} is closed; open another with llm.session()")
        return self.held

    def still(self) -> Held:
        """The held sequence, which isn't on its way.

        Raises:
            ValueError: it is closed or generating.
        """
        if self.open().run is not None:
            raise ValueError(f"{self.held.name} is generating; finish or close its stream first")
        return self.held

    def idle(self) -> Held:
        """The held sequence, of which more may be computed.

        Raises:
            ValueError: it is closed or generating, or it was written to and that is lost.
        """
        held = self.still()
        self.check_kept()
        return held

    def check_kept(self) -> None:
        """Refuses what was written to and can't be computed again.

        Raises:
            ValueError: its pages had to be given up since.
        """
        if not self.closed and self.engine.held.is_lost(self.held):
            raise ValueError(
                f"{self.held.name} was written to, and had to give up its pages since, for others "
                f"or after an error; what was written is in no token, so it can't be computed "
                f"again; undo the write, or close the session"
            )

    def compute(self) -> Held:
        """Computes all tokens, and the logits behind the last.

        Raises:
            ValueError: as `idle`.
            OutOfPages: other sessions hold the pages that are needed.
        """
        held = self.idle()
        if held.token_ids and not held.complete:
            for _ in self.run(held, None):
                pass
            self.check_kept()
        return held

    def close(self) -> None:
        """Gives back its pages. Closing it again does nothing."""
        if self.closed:
            return
        if self.held.run is not None:
            self.engine.abort(self.held.run.request.request_id)
        with self.engine.repairing():
            self.engine.held.close(self.held)

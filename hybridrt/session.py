"""Session: one sequence held in the cache until it is closed."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtyping import Float32
from torch import Tensor

from hybridrt.cache.snapshot import read_snapshot, write_snapshot
from hybridrt.engine.engine import Engine
from hybridrt.engine.held import Held
from hybridrt.engine.saved_session import check_saved, plain_fingerprint
from hybridrt.introspection.access import Access, Run
from hybridrt.introspection.layer import SessionLayer
from hybridrt.introspection.session_tables import session_tables
from hybridrt.prompt import ParsedPrompt, Prompt, parse
from hybridrt.request import RequestOutput, SamplingParams
from hybridrt.show import Shown, ShowsItself
from hybridrt.values import plain_int

if TYPE_CHECKING:
    from hybridrt.introspection.trace import Trace


class Session(ShowsItself):
    """One sequence that stays in the cache. `llm.session()` opens one.

    Its pages are held until it is closed, whatever else runs. Every method but `close` raises
    `ValueError` once it is closed, and while `stream` is giving its tokens.
    """

    def __init__(self, engine: Engine, held: Held, run: Run) -> None:
        self._engine = engine
        self._held = held
        self._run = run
        self._access = Access(engine, held, run)

    @classmethod
    def open(
        cls, engine: Engine, run: Run, prompt: Prompt | None = None, cache_salt: str | None = None
    ) -> "Session":
        """See `LLM.session`."""
        parsed = ParsedPrompt(token_ids=()) if prompt is None else parse(prompt)
        salts = {cache_salt, parsed.cache_salt} - {None}
        if len(salts) > 1:
            raise ValueError(f"cache_salt={cache_salt!r}, but the prompt has another one")
        session = cls(engine, engine.held.open(*salts), run)
        try:
            session._append(session._token_ids(parsed))
        except BaseException:
            session.close()
            raise
        return session

    @classmethod
    def load(cls, path: str | os.PathLike[str], engine: Engine, run: Run) -> "Session":
        """See `LLM.load_session`."""
        file = Path(path)
        saved = read_snapshot(file)
        check_saved(
            file,
            saved,
            engine.fingerprint,
            engine.plan,
            engine.max_model_len,
            engine.model.config.vocab_size,
        )
        with engine.repairing():
            return cls(engine, engine.held.restore(saved), run)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"{self.num_tokens} tokens" if not self.closed else "closed"
        return f"<Session {self._held.name}: {state}>"

    def shown(self) -> Shown:
        """Its pages in each group, as a table."""
        return session_tables(self._engine, self._held)

    @property
    def closed(self) -> bool:
        """Whether its pages have been given back."""
        return self._access.closed

    @property
    def token_ids(self) -> list[int]:
        """All its tokens, a copy."""
        return list(self._access.open().token_ids)

    @property
    def num_tokens(self) -> int:
        """How many tokens it has, those that are still to be computed included."""
        return len(self._access.open().token_ids)

    @property
    def logits(self) -> Float32[Tensor, " vocab"]:
        """The logits behind its last token, a copy; tokens not yet computed are, first.

        Raises:
            ValueError: there is no token yet.
        """
        self._access.compute()
        if self._held.logits is None:
            raise ValueError(f"{self._held.name} has no tokens, so no logits; append some first")
        return self._held.logits.clone()

    @property
    def layers(self) -> tuple[SessionLayer, ...]:
        """Each cached layer, in the order of `llm.plan.layers`."""
        self._access.open()
        plans = enumerate(self._engine.plan.layers)
        return tuple(SessionLayer(self._access, index, plan) for index, plan in plans)

    @property
    def was_written_to(self) -> bool:
        """Whether a layer was written to, so that the cache isn't what the tokens say."""
        return self._access.open().was_written_to

    def append(self, text_or_ids: str | Sequence[int]) -> None:
        """Adds a text or token ids behind the last token. They are computed when needed.

        A text gets the special tokens of a prompt's beginning only if it is the first.

        Raises:
            ValueError: a token id is none of the model's, there would be more than
                `max_model_len` tokens, it is a text and there is no tokenizer, or a layer was
                written to and the tokens passed to where other rotary frequencies hold.
        """
        self._access.idle()
        self._append(self._parse(text_or_ids))

    def generate(self, sampling_params: SamplingParams | None = None) -> RequestOutput:
        """Generates behind the last token; what comes is part of the session then.

        The tokens are those that `llm.generate` gives for the same token ids and seed. If it
        is interrupted, the tokens up to there are part of the session.

        Raises:
            ValueError: the parameters can't be served, or the session has no tokens.
            OutOfPages: other sessions hold the pages that are needed.
        """
        *_, last = self.stream(sampling_params)
        return last

    def stream(self, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """As `generate`, but yields what is known of the output after every token."""
        held, params = self._access.idle(), sampling_params or SamplingParams()
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params={params!r} should be a SamplingParams")
        if not held.token_ids:
            raise ValueError(f"{held.name} has no tokens to go on from; append some first")
        if params.n != 1:
            raise ValueError(f"n={params.n}: a session is one sequence; fork it for others")
        if params.prompt_logprobs is not None:
            raise ValueError(
                f"prompt_logprobs={params.prompt_logprobs}: a session's tokens are not computed "
                f"again for their logprobs; llm.generate gives them"
            )
        return self._until_lost(self._run(held, params))

    def _until_lost(self, outputs: Iterator[RequestOutput]) -> Iterator[RequestOutput]:
        yield from outputs
        self._access.check_kept()

    def fork(self) -> "Session":
        """Another session with the same tokens; the two go on independently.

        Full pages are shared; what will be written into, states among it, is copied.

        Raises:
            OutOfPages: there is no room for the copies; nothing was changed.
        """
        held = self._access.idle()
        with self._engine.repairing():
            child = self._engine.held.fork(held)
        return Session(self._engine, child, self._run)

    def truncate(self, num_tokens: int, recompute: bool = False) -> None:
        """Forgets all tokens but the first `num_tokens`.

        Exact, or refused: what of the cache is right for fewer tokens stays. A state can't go
        back, but for places where the prefix cache has a copy of it, and a window may be gone.
        With `recompute` the tokens that are left are computed again where that is so.

        Raises:
            ValueError: the cache can't go back to there, and names the nearest places; or a layer
                was written to.
        """
        held = self._access.idle()
        self._refuse_written("truncated")
        num_tokens = plain_int(num_tokens)
        if type(num_tokens) is not int or not 0 <= num_tokens <= len(held.token_ids):
            raise ValueError(
                f"{held.name}: num_tokens={num_tokens!r} should be from 0 to {len(held.token_ids)}"
            )
        below, above = self._engine.held.nearest_exact(held, num_tokens)
        if below < num_tokens < above and not recompute:
            raise ValueError(
                f"{held.name}: the cache can't go back to {num_tokens} tokens; the nearest are "
                f"{below} and {above}; truncate({num_tokens}, recompute=True) computes them again"
            )
        with self._engine.repairing():
            self._engine.held.truncate(held, num_tokens)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a safetensors file, for `llm.load_session`.

        The file is written as a whole or not at all. It holds the tokens, what the cache has
        of them, the logits behind the last, the `cache_salt`, a fingerprint of the model and
        its formats, and checksums of everything.

        Raises:
            ValueError: a layer was written to.
            OSError: the file can't be written.
        """
        held = self._access.compute()
        self._refuse_written("saved")
        fingerprint = plain_fingerprint(self._engine.fingerprint)
        write_snapshot(Path(path), self._engine.held.snapshot(held, fingerprint))

    def trace(
        self,
        text_or_ids: str | Sequence[int],
        layers: Sequence[int] | None = None,
        every: int = 256,
        path: str | os.PathLike[str] | None = None,
        statistics: Sequence[str] | None = None,
    ) -> "Trace":
        """Appends a text or token ids and computes them, and records what layers do meanwhile.

        The session is then as after `append`, with all tokens computed. What it had before is
        computed first, and not recorded. Statistics and states are recorded at positions that are
        multiples of `every` tokens of the session, and at the end (docs/introspection.md).

        Args:
            text_or_ids: as for `append`.
            layers: indices into `llm.plan.layers`; None: all.
            every: tokens from one recorded position to the next.
            path: a folder, new or empty, for the states, and the statistics too; None: states are
                not kept.
            statistics: names of those that are wanted, or "all"; None: all but `effective_rank`,
                which takes longer than the others together.

        Raises:
            ValueError: an argument is wrong, there are no tokens, or `append` would raise it;
                nothing was appended.
            OSError: the folder can't be written.
        """
        from hybridrt.introspection.trace import record

        self._access.idle()
        token_ids = self._parse(text_or_ids)
        self._check_room(token_ids)
        held = self._access.compute()

        def compute() -> None:
            self.append(token_ids)
            self._access.compute()

        return record(
            self._engine,
            held,
            token_ids,
            compute,
            layers=layers,
            every=every,
            path=path,
            statistics=statistics,
        )

    def close(self) -> None:
        """Gives back its pages. Closing it again does nothing."""
        self._access.close()

    def _parse(self, text_or_ids: str | Sequence[int]) -> tuple[int, ...]:
        if isinstance(text_or_ids, Mapping):
            raise ValueError(f"{self._held.name}: {text_or_ids!r} should be a text or token ids")
        return self._token_ids(parse(text_or_ids))

    def _token_ids(self, given: ParsedPrompt) -> tuple[int, ...]:
        if given.token_ids is not None:
            return given.token_ids
        return tuple(self._encode(given.text or "", first=not self._held.token_ids))

    def _append(self, token_ids: tuple[int, ...]) -> None:
        self._check_room(token_ids)
        with self._engine.repairing():
            self._engine.held.append(self._held, list(token_ids))

    def _check_room(self, token_ids: tuple[int, ...]) -> None:
        """Refuses token ids that can't stand behind those there are."""
        held = self._held
        vocab_size, most = self._engine.model.config.vocab_size, self._engine.max_model_len
        wrong = next((token for token in token_ids if not 0 <= token < vocab_size), None)
        if wrong is not None:
            raise ValueError(f"{held.name}: token id {wrong} should be in [0, {vocab_size})")
        total = len(held.token_ids) + len(token_ids)
        if total > most:
            raise ValueError(
                f"{held.name}: with {len(token_ids)} tokens more it would have {total}; "
                f"with max_model_len={most} it can have {most}"
            )

    def _refuse_written(self, what: str) -> None:
        if self._held.was_written_to:
            raise ValueError(
                f"{self._held.name} was written to, so its tokens don't say what its cache is; it "
                f"can't be {what}; undo the write first"
            )

    def _encode(self, text: str, *, first: bool) -> list[int]:
        if self._engine.tokenizer is None:
            raise ValueError(
                f"{self._held.name}: a text needs a tokenizer, and the model has no "
                f"tokenizer.json; give token ids instead"
            )
        return self._engine.tokenizer.encode(text, add_special_tokens=first)

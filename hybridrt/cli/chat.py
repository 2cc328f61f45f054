"""`hybridrt chat`: a conversation with a model."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from hybridrt.cli.errors import report
from hybridrt.cli.generate import output_data
from hybridrt.cli.models import load_llm
from hybridrt.cli.options import EngineOptions, Json, Model, SamplingOptions
from hybridrt.cli.output import print_json, write

if TYPE_CHECKING:
    from hybridrt.llm import LLM
    from hybridrt.request import RequestOutput, SamplingParams

_HINT = "/reset forgets the conversation, /exit or Ctrl-D ends, Ctrl-C stops an answer."


def chat(
    model: Model,
    sampling: SamplingOptions,
    engine: EngineOptions,
    message: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Say this and stop. Repeatable: one turn after another."),
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The system message before all others.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Talk with a model through its chat template; it is shown the whole conversation.

    Without --message, messages are the lines of standard input. With --json: one line for
    each answer.
    """
    params = sampling.params()
    llm = load_llm(model, engine)
    conversation = _Conversation(llm, params, system, json_output)
    conversation.check()
    interactive = message is None and sys.stdin.isatty()
    for text in message or _typed(interactive, conversation):
        try:
            conversation.say(text)
        except ValueError as error:
            if not interactive:
                raise
            report(error)


class _Conversation:
    """The messages so far, and who answers them."""

    def __init__(
        self, llm: "LLM", params: "SamplingParams", system: str | None, json_output: bool
    ) -> None:
        self._llm = llm
        self._params = params
        self._json = json_output
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.reset()

    def reset(self) -> None:
        """Forgets all but the system message."""
        self._messages = list(self._system)

    def check(self) -> None:
        """Says at once if the checkpoint can't chat."""
        self._llm.chat_prompt([*self._system, {"role": "user", "content": "?"}])

    def say(self, text: str) -> None:
        """One turn. If it can't be answered, nothing has been said."""
        turn = [*self._messages, {"role": "user", "content": text}]
        answer = self._answer(turn)
        self._messages = [*turn, {"role": "assistant", "content": answer}]

    def _answer(self, messages: list[dict[str, str]]) -> str:
        """Writes the answer as it comes. Ctrl-C ends it there, if anybody can go on."""
        shown = ""
        output: RequestOutput | None = None
        try:
            for output in self._llm.stream(self._llm.chat_prompt(messages), self._params):
                text = output.outputs[0].text
                if not self._json:
                    write(text[len(shown) :])
                shown = text
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        if self._json and output is not None:
            print_json(output_data(output))
        elif not self._json:
            write("\n")
        return shown


def _typed(interactive: bool, conversation: _Conversation) -> Iterator[str]:
    """The messages that come in on standard input, one a line."""
    if not interactive:
        yield from (line.rstrip("\n") for line in sys.stdin if line.strip())
        return
    _edits_lines()
    typer.secho(_HINT, dim=True, err=True)
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            typer.echo(err=True)
            return
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
        elif line:
            yield line


def _edits_lines() -> None:
    """Arrow keys and history for `input`, where Python has them."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return

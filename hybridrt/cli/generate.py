"""`hybridrt generate`: complete prompts."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridrt.cli.models import load_llm
from hybridrt.cli.options import EngineOptions, Json, Model, SamplingOptions
from hybridrt.cli.output import console, plain, print_json, shortened, write

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hybridrt.llm import LLM
    from hybridrt.request import CompletionOutput, RequestOutput, SamplingParams


def generate(
    model: Model,
    sampling: SamplingOptions,
    engine: EngineOptions,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT...", show_default=False, help="Texts to complete."),
    ] = None,
    prompt_file: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A file that is one prompt (less its last line end), or a .jsonl with a prompt "
            "a line: a text, a list of token ids, or an object. - is standard input.",
        ),
    ] = None,
    token_ids: Annotated[
        list[str] | None, typer.Option(metavar="IDS", help="A prompt as token ids: 1,2,3.")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Completions for each prompt.")] = 1,
    logprobs: Annotated[
        int | None, typer.Option(help="With --json: that many likeliest tokens at each position.")
    ] = None,
    session: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Go on with a saved session: the prompt, if there is one, is added to it.",
        ),
    ] = None,
    save_session: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Save the session as it stands at the end: that of --session, or a new one of "
            "the prompt. May be the same FILE.",
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Complete prompts. A single completion appears as it is made.

    With --json: one line, an object, for each prompt, in their order. With --session or
    --save-session there is one prompt, and a file keeps what the cache holds of it.
    """
    params = sampling.params(n=n, logprobs=logprobs)
    asked: list[Any] = [*(prompts or ())]
    asked += [prompt for file in prompt_file or () for prompt in read_prompts(file)]
    asked += [parse_ids(text) for text in token_ids or ()]
    if session is not None or save_session is not None:
        _run_session(model, engine, asked, params, session, save_session, json_output)
        return
    if not asked:
        raise ValueError("no prompt; give a PROMPT, a --prompt-file or --token-ids")
    llm = load_llm(model, engine)
    if json_output:
        for output in llm.generate(asked, params):
            print_json(output_data(output))
    elif len(asked) == 1 and n == 1:
        stream(llm, asked[0], params)
    else:
        for number, output in enumerate(llm.generate(asked, params)):
            _print_output(output, f"{number + 1}/{len(asked)}")


def _run_session(
    model: str,
    engine: EngineOptions,
    asked: list[Any],
    params: "SamplingParams",
    file: Path | None,
    target: Path | None,
    json_output: bool,
) -> None:
    """Goes on with the session in `file`, or with a new one, and saves it to `target`."""
    if len(asked) > 1 or not (asked or file):
        raise ValueError(f"a session takes one prompt; {len(asked)} were given")
    llm = load_llm(model, engine)
    with llm.session(asked[0]) if file is None else llm.load_session(file) as session:
        if file is not None and asked:
            session.append(asked[0])
        if json_output:
            print_json(output_data(session.generate(params)))
        else:
            show(session.stream(params), llm)
        if target is not None:
            session.save(target)


def read_prompts(file: Path) -> list[Any]:
    """The prompts in a file."""
    from hybridrt.engine.checkpoint import read_text

    text = sys.stdin.read() if str(file) == "-" else read_text(file)
    if file.suffix != ".jsonl":
        return [text.removesuffix("\n")]
    lines = enumerate(text.splitlines(), start=1)
    return [_parse_line(f"{file}, line {number}", line) for number, line in lines if line.strip()]


def _parse_line(where: str, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: not valid JSON: {error}") from None


def parse_ids(text: str) -> list[int]:
    """`"1, 2,3"` as numbers."""
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise ValueError(f"--token-ids={text!r} should be numbers, such as 1,2,3") from None


def stream(llm: "LLM", prompt: Any, params: "SamplingParams") -> str:
    """Writes one completion while it is made; returns it."""
    return show(llm.stream(prompt, params), llm)


def show(outputs: "Iterable[RequestOutput]", llm: "LLM") -> str:
    """Writes what each output has more than the last; returns the whole text."""
    shown = ""
    for output in outputs:
        text = completion_text(output.outputs[0], llm)
        write(text[len(shown) :])
        shown = text
    write("\n")
    return shown


def completion_text(completion: "CompletionOutput", llm: "LLM") -> str:
    """The text, or the token ids of a model without a tokenizer."""
    if llm.engine.tokenizer is not None:
        return completion.text
    return " ".join(map(str, completion.token_ids))


def output_data(output: "RequestOutput") -> dict[str, Any]:
    """An output as plain data, its times in seconds since it arrived."""
    data: dict[str, Any] = plain(output)
    start = output.metrics.arrival_time
    data["metrics"] = {
        name: value - start if name.endswith("_time") and value is not None else value
        for name, value in data["metrics"].items()
        if name != "arrival_time"
    }
    return data


def _print_output(output: "RequestOutput", number: str) -> None:
    prompt = output.prompt
    if prompt is None:
        prompt = " ".join(map(str, output.prompt_token_ids))
    out = console()
    for completion in output.outputs:
        which = f", {completion.index + 1} of {len(output.outputs)}" * (len(output.outputs) > 1)
        heading = f"[{number}{which}] {shortened(prompt, 60)}"
        out.print(heading, style="bold cyan", markup=False, soft_wrap=True)
        write((completion.text or " ".join(map(str, completion.token_ids))) + "\n")

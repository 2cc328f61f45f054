"""`hybridrt bench latency`: how long one waits for the first token, and for each one behind it."""

from typing import Annotated, Any

import typer

from hybridrt.cli.bench.settings import (
    Bench,
    MeasureOptions,
    OutputTokens,
    at_least,
    check_batch,
    check_length,
)
from hybridrt.cli.bench.tables import Row, heading, notes, print_rows
from hybridrt.cli.models import busy
from hybridrt.cli.options import EngineOptions, Json, Model
from hybridrt.cli.output import print_json


def _lengths(help: str) -> Any:
    return typer.Option(metavar="N", help=f"{help} Repeatable.")


def latency(
    model: Model,
    engine: EngineOptions,
    measure: MeasureOptions,
    prompt_tokens: Annotated[
        list[int] | None, _lengths("Random tokens in each prompt. If not given: 128.")
    ] = None,
    context_tokens: Annotated[
        list[int] | None,
        _lengths("Tokens behind which the others come. If not given: as --prompt-tokens."),
    ] = None,
    batch: Annotated[list[int] | None, _lengths("Requests at once. If not given: 1 and 8.")] = None,
    output_tokens: OutputTokens = 32,
    json_output: Json = False,
) -> None:
    """Measure the time to the first token, and between tokens at a length of context.

    The first is that of all requests at once, the other a step in which all of them run.
    The floor is what the machine allows, measured in the same run: the operations of the
    products, or reading the weights in use and the cache.
    """
    prompts, batches = prompt_tokens or [128], batch or [1, 8]
    contexts = context_tokens or prompts
    measure.check()
    at_least(1, prompt_tokens=min(prompts), context_tokens=min(contexts))
    at_least(2, output_tokens=output_tokens)
    for size in batches:
        check_batch(size, engine.max_num_seqs)
    from hybridrt.cli.bench.loaded import load_bench

    bench = load_bench(model, engine, measure)
    check_length(bench.llm, model, prompt_tokens=max(prompts), output_tokens=1)
    check_length(bench.llm, model, context_tokens=max(contexts), output_tokens=output_tokens)
    rows: list[Row] = []
    for size in batches:
        rows += [_first_token(bench, measure, size, tokens) for tokens in prompts]
        rows += [_between(bench, measure, size, tokens, output_tokens) for tokens in contexts]
    data = bench.data(model, measure) | {"output_tokens": output_tokens}
    if json_output:
        print_json(data | {"rows": [row.data() for row in rows]})
    else:
        title = f"Times to the first token of prompts, and between {output_tokens} more"
        print_rows(title, rows, heading(data), notes(data))


def _first_token(bench: Bench, measure: MeasureOptions, batch: int, tokens: int) -> Row:
    from hybridrt.measure.timing import take_turns
    from hybridrt.measure.work import to_first_token

    with busy(f"first token of {batch} x {tokens} tokens"):
        sides = to_first_token(bench.sides, bench.vocab_size, batch, tokens, measure.seed)
        spreads = take_turns(sides, measure.repeats)
    about = {"what": "first token", "batch": batch, "tokens": tokens}
    return Row(
        about, batch * tokens, spreads, bench.floor.prefill(batch, tokens).seconds(bench.limits)
    )


def _between(bench: Bench, measure: MeasureOptions, batch: int, tokens: int, steps: int) -> Row:
    from hybridrt.measure.timing import take_turns
    from hybridrt.measure.work import between_tokens

    with busy(f"between tokens of {batch} behind {tokens} tokens"):
        sides = between_tokens(bench.sides, bench.vocab_size, batch, tokens, steps, measure.seed)
        spreads = take_turns(sides, measure.repeats)
    about = {"what": "between tokens", "batch": batch, "tokens": tokens}
    return Row(about, batch, spreads, bench.floor.decode(batch, tokens).seconds(bench.limits))

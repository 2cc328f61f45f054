"""`hybridrt bench throughput`: tokens a second with many requests at once."""

from math import ceil
from typing import Annotated

import typer

from hybridrt.cli.bench.settings import (
    Bench,
    MeasureOptions,
    OutputTokens,
    at_least,
    check_length,
)
from hybridrt.cli.bench.tables import Row, heading, notes, print_rows
from hybridrt.cli.models import busy
from hybridrt.cli.options import EngineOptions, Json, Model
from hybridrt.cli.output import print_json


def throughput(
    model: Model,
    engine: EngineOptions,
    measure: MeasureOptions,
    requests: Annotated[int, typer.Option(help="Requests, all in line at the beginning.")] = 64,
    prompt_tokens: Annotated[int, typer.Option(help="Random tokens in each prompt.")] = 128,
    output_tokens: OutputTokens = 32,
    json_output: Json = False,
) -> None:
    """Measure tokens a second, prompts and outputs together, with many requests.

    The floor is what the machine allows, measured in the same run: the operations of all
    prompts, and steps that read the weights in use and the cache, with --max-num-seqs
    requests at a time. With --against, transformers gets as many at a time, a batch behind
    the other.
    """
    measure.check()
    at_least(1, requests=requests, prompt_tokens=prompt_tokens)
    at_least(2, output_tokens=output_tokens)
    from hybridrt.cli.bench.loaded import load_bench

    bench = load_bench(model, engine, measure)
    check_length(bench.llm, model, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    row = _measure(bench, measure, engine, requests, prompt_tokens, output_tokens)
    data = bench.data(model, measure)
    if json_output:
        print_json(data | {"rows": [row.data()]})
    else:
        print_rows("All requests to their last token", [row], heading(data), notes(data))


def _measure(
    bench: Bench,
    measure: MeasureOptions,
    engine: EngineOptions,
    requests: int,
    prompt_tokens: int,
    output_tokens: int,
) -> Row:
    from hybridrt.measure.timing import take_turns
    from hybridrt.measure.work import to_completion

    with busy(f"{requests} requests of {prompt_tokens} and {output_tokens} tokens"):
        sides = to_completion(
            bench.sides, bench.vocab_size, requests, prompt_tokens, output_tokens, measure.seed
        )
        spreads = take_turns(sides, measure.repeats)
    waves = ceil(requests / engine.max_num_seqs)
    context = prompt_tokens + output_tokens // 2
    step = bench.floor.decode(ceil(requests / waves), context).seconds(bench.limits)
    floor = bench.floor.prefill(requests, prompt_tokens).seconds(bench.limits)
    floor += waves * (output_tokens - 1) * step
    about = {"requests": requests, "prompt tokens": prompt_tokens, "output tokens": output_tokens}
    return Row(about, requests * (prompt_tokens + output_tokens), spreads, floor)

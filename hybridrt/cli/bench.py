"""`hybridrt bench`: prefill and decode, measured."""

import random
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridrt.cli.models import busy, load_llm
from hybridrt.cli.options import EngineOptions, Json, Model
from hybridrt.cli.output import console, plain, print_json

if TYPE_CHECKING:
    from hybridrt.llm import LLM


@dataclass(frozen=True, slots=True)
class Measurement:
    """Medians over the repeats, for one batch size."""

    batch: int
    prefill_seconds: float
    prefill_tokens_per_second: float
    decode_ms_per_step: float
    decode_tokens_per_second: float
    num_preemptions: int


def bench(
    model: Model,
    engine: EngineOptions,
    prompt_tokens: Annotated[int, typer.Option(help="Random tokens in each prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(help="Tokens to generate, at least 2.")] = 32,
    batch: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Requests at once. Repeatable. If not given: 1 and 8."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Measured runs, after one that is not.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the random prompts.")] = 0,
    json_output: Json = False,
) -> None:
    """Measure prefill (tokens a second) and decode (milliseconds a step), medians of repeats.

    Prefill is the time to the first token of all requests, decode a step in which all of
    them run. Prompts are random tokens, and nothing stops an output early.
    """
    batches = batch or [1, 8]
    _check(prompt_tokens, output_tokens, repeats, batches, engine.max_num_seqs)
    started = time.perf_counter()
    llm = load_llm(model, engine)
    load_seconds = time.perf_counter() - started
    if prompt_tokens + output_tokens > llm.max_model_len:
        raise ValueError(
            f"--prompt-tokens={prompt_tokens} and --output-tokens={output_tokens} should be at "
            f"most {llm.max_model_len} together, the longest sequence of {model}"
        )
    rows: list[Measurement] = []
    for size in batches:
        with busy(f"batch {size}: {repeats + 1} runs"):
            prompts = _prompts(llm, size, prompt_tokens, seed)
            rows.append(_measure(llm, prompts, output_tokens, repeats))
    settings = _settings(llm, prompt_tokens, output_tokens, repeats, load_seconds)
    if json_output:
        print_json({"model": model, **settings, "rows": plain(rows)})
    else:
        _print(model, settings, rows)


def _check(
    prompt_tokens: int, output_tokens: int, repeats: int, batches: list[int], max_num_seqs: int
) -> None:
    least = {"prompt-tokens": (prompt_tokens, 1), "output-tokens": (output_tokens, 2)}
    least |= {"repeats": (repeats, 1), "batch": (min(batches), 1)}
    for name, (value, smallest) in least.items():
        if value < smallest:
            raise ValueError(f"--{name}={value} should be at least {smallest}")
    if max(batches) > max_num_seqs:
        raise ValueError(
            f"--batch={max(batches)} should be at most --max-num-seqs={max_num_seqs}, or not all "
            f"of the batch run at once"
        )


def _prompts(llm: "LLM", count: int, length: int, seed: int) -> list[list[int]]:
    rng, vocab = random.Random(seed), llm.engine.model.config.vocab_size
    return [[rng.randrange(vocab) for _ in range(length)] for _ in range(count)]


def _measure(llm: "LLM", prompts: list[list[int]], output_tokens: int, repeats: int) -> Measurement:
    """Prefill is measured alone, since decodes may run beside the last prompts' chunks."""
    prefills: list[float] = []
    steps: list[float] = []
    preemptions = 0
    for run in range(repeats + 1):
        (prefill, _), _ = _run(llm, prompts, 1)
        (_, decodes), run_preemptions = _run(llm, prompts, output_tokens)
        if run:  # the first compiles kernels and warms caches
            prefills.append(prefill)
            steps += decodes
            preemptions += run_preemptions
    if not steps:
        raise ValueError(
            f"a batch of {len(prompts)} never ran as a whole: the cache is too small for it; "
            f"raise --cache-memory or lower --batch"
        )
    num_prompt_tokens = sum(map(len, prompts))
    return Measurement(
        batch=len(prompts),
        prefill_seconds=median(prefills),
        prefill_tokens_per_second=num_prompt_tokens / median(prefills),
        decode_ms_per_step=1000 * median(steps),
        decode_tokens_per_second=len(prompts) / median(steps),
        num_preemptions=preemptions,
    )


def _run(
    llm: "LLM", prompts: list[list[int]], output_tokens: int
) -> tuple[tuple[float, list[float]], int]:
    """Seconds to the last first token, seconds of each step in which all decode; preemptions."""
    from hybridrt.request import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
    for prompt in prompts:
        llm.add_request(prompt, params)
    begun: set[str] = set()
    decodes: list[float] = []
    prefill, preemptions = 0.0, 0
    while llm.has_unfinished:
        all_begun = len(begun) == len(prompts)
        started = time.perf_counter()
        outputs = llm.step()
        seconds = time.perf_counter() - started
        begun.update(output.request_id for output in outputs)
        preemptions += sum(o.metrics.num_preemptions for o in outputs if o.finished)
        if not all_begun:
            prefill += seconds
        elif len(outputs) == len(prompts):
            decodes.append(seconds)
    return (prefill, decodes), preemptions


def _settings(
    llm: "LLM", prompt_tokens: int, output_tokens: int, repeats: int, load_seconds: float
) -> dict[str, Any]:
    import torch

    parameter = next(llm.engine.model.parameters())
    return {
        "device": str(parameter.device),
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "repeats": repeats,
        "load_seconds": load_seconds,
    }


def _print(model: str, settings: dict[str, Any], rows: list[Measurement]) -> None:
    from hybridrt.cache.explain import simple_table

    columns = ("batch", "prefill tok/s", "first token ms", "decode ms/step", "decode tok/s")
    title = f"Prompts of {settings['prompt_tokens']} tokens, outputs of {settings['output_tokens']}"
    table = simple_table(title, *columns, right=columns)
    for row in rows:
        table.add_row(
            str(row.batch),
            f"{row.prefill_tokens_per_second:,.0f}",
            f"{1000 * row.prefill_seconds:,.1f}",
            f"{row.decode_ms_per_step:,.2f}",
            f"{row.decode_tokens_per_second:,.0f}",
        )
    out = console()
    threads = f", {_times(settings['threads'], 'thread')}" * (settings["device"] == "cpu")
    heading = f"{model}: {settings['dtype']} on {settings['device']}{threads}"
    out.print(
        f"{heading}, loaded in {settings['load_seconds']:.1f} s",
        style="bold",
        markup=False,
    )
    out.print()
    out.print(table)
    out.print()
    runs = _times(settings["repeats"], "run")
    out.print(f"Medians of {runs}, after one that is not counted.")
    preemptions = sum(row.num_preemptions for row in rows)
    if preemptions:
        out.print(f"[yellow]{preemptions} preemptions: the cache is too small for the batch.[/]")


def _times(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"

"""`hybridrt demo`: the shipped model answers questions about facts, and shows its cache."""

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridrt.cli.models import busy, load_llm
from hybridrt.cli.options import DEMO, EngineOptions, Json
from hybridrt.cli.output import console, print_json, shortened

if TYPE_CHECKING:
    from hybridrt.demo.facts import Recall
    from hybridrt.llm import LLM
    from hybridrt.request import RequestOutput

_INTRODUCTION = """\
A model that was trained to remember: each text states facts such as amy=372 and
ends in a question. Its attention layer recalls the names up to J, its MLA layer
the others, its Mamba-1 states hold [i]day[/] and its Mamba-2 states [i]now[/]."""


@dataclass(frozen=True, slots=True)
class _Answered:
    """A question, and what the model said."""

    recall: "Recall"
    answer: str

    @property
    def facts(self) -> str:
        return self.recall.prompt.rpartition("\n")[0]

    @property
    def question(self) -> str:
        return self.recall.prompt.rpartition("\n")[2]

    @property
    def expected(self) -> str:
        return self.recall.answer.strip()

    @property
    def right(self) -> bool:
        return self.answer == self.expected


@dataclass(frozen=True, slots=True)
class _Seconds:
    """What answering took, and what of it was numba."""

    total: float
    compiling: float


def demo(
    engine: EngineOptions,
    num_prompts: Annotated[int, typer.Option("--prompts", help="How many texts to make.")] = 8,
    seed: Annotated[int, typer.Option(help="Other seeds make other texts.")] = 1,
    json_output: Json = False,
) -> None:
    """Let the shipped model answer questions about facts, and show what its cache held."""
    if num_prompts < 1:
        raise ValueError(f"--prompts={num_prompts} should be at least 1")
    llm = load_llm(DEMO, engine)
    answered, outputs, seconds = _answer_timed(llm, _questions(num_prompts, seed))
    if json_output:
        print_json(_data(llm, answered, outputs, seconds))
    else:
        _print(llm, answered, outputs, seconds)


def _questions(count: int, seed: int) -> "list[Recall]":
    """As many for each kind of layer."""
    from hybridrt.demo.facts import KINDS, recall_prompt

    rng = random.Random(seed)
    return [recall_prompt(rng, kind=KINDS[i % len(KINDS)]) for i in range(count)]


def _answer_timed(
    llm: "LLM", recalls: "list[Recall]"
) -> "tuple[list[_Answered], list[RequestOutput], _Seconds]":
    from numba.core.event import TimingListener, install_listener

    compiling = TimingListener()
    started = time.perf_counter()
    doing = f"answering {len(recalls)} questions (the first run compiles kernels, for a minute)"
    with busy(doing), install_listener("numba:compile", compiling):
        answered, outputs = _answer(llm, recalls)
    seconds = _Seconds(
        total=time.perf_counter() - started,
        compiling=compiling.duration if compiling.done else 0.0,
    )
    return answered, outputs, seconds


def _answer(llm: "LLM", recalls: "list[Recall]") -> "tuple[list[_Answered], list[RequestOutput]]":
    """All of them at once, through the online loop."""
    from hybridrt.demo.facts import STOP
    from hybridrt.request import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=8, stop=(STOP,))
    waiting = {llm.add_request(recall.prompt, params): recall for recall in recalls}
    outputs: dict[str, RequestOutput] = {}
    while llm.has_unfinished:
        for output in llm.step():
            outputs[output.request_id] = output
    answered = [_Answered(waiting[id], outputs[id].outputs[0].text) for id in waiting]
    return answered, [outputs[id] for id in waiting]


def _data(
    llm: "LLM", answered: list[_Answered], outputs: "list[RequestOutput]", seconds: _Seconds
) -> dict[str, Any]:
    from hybridrt.cli.usage import most_in_use

    return {
        "right": sum(one.right for one in answered),
        "prompts": [
            {
                "prompt": one.recall.prompt,
                "kind": one.recall.kind,
                "distance": one.recall.distance,
                "answer": one.answer,
                "expected": one.expected,
                "right": one.right,
                "num_prompt_tokens": len(output.prompt_token_ids),
            }
            for one, output in zip(answered, outputs, strict=True)
        ],
        "layers": [use.data() for use in most_in_use(llm)],
        "seconds": seconds.total,
        "compile_seconds": seconds.compiling,
    }


def _print(
    llm: "LLM",
    answered: list[_Answered],
    outputs: "list[RequestOutput]",
    seconds: _Seconds,
) -> None:
    out = console()
    right = sum(one.right for one in answered)
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    out.print(_INTRODUCTION)
    out.print()
    out.print(_answers_table(answered))
    out.print()
    out.print(
        f"[bold]{right} of {len(answered)} right[/], all in one batch of {num_tokens:,} prompt "
        f"tokens, in {seconds.total - seconds.compiling:.1f} s."
    )
    if seconds.compiling > 1:
        out.print(
            f"Before, kernels for this processor were compiled for {seconds.compiling:.0f} s. "
            "They are kept."
        )
    out.print()
    _print_cache(llm)
    out.print(
        "Go on with: [bold]hybridrt plan demo[/], [bold]hybridrt inspect demo[/], "
        "[bold]hybridrt --help[/]"
    )


def _print_cache(llm: "LLM") -> None:
    from hybridrt.cli.usage import in_use, most_in_use, peak_table

    out = console()
    uses = most_in_use(llm)
    out.print(peak_table("What the cache held for them, at its fullest", uses))
    out.print()
    page = llm.config.page_size
    out.print(f"A page is {page} tokens of a full layer, or one sequence's state of a state layer.")
    still = sum(use.num_bytes for use in in_use(llm))
    out.print(
        f"{sum(use.num_bytes for use in uses):,} bytes of a pool of {llm.plan.pool_bytes:,}; "
        f"now {still:,} are in use."
    )


def _answers_table(answered: list[_Answered]) -> Any:
    from hybridrt.cache.explain import simple_table

    columns = ("facts", "question", "tokens back", "asks", "answer", "expected", "")
    table = simple_table("Questions and answers", *columns, right=("tokens back",))
    for one in answered:
        table.add_row(
            shortened(one.facts, 19),
            one.question,
            str(one.recall.distance),
            one.recall.kind,
            one.answer,
            one.expected,
            "[green]right[/]" if one.right else "[bold red]wrong[/]",
        )
    return table

"""A run with several requests, looked at behind every step.

The prompt comes first, then again with three endings, then two others that begin as it does,
then one that has nothing in common with it. So misses, hits, shared, kept and freed pages are
seen, in this order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridrt.report.frames import Frame
from hybridrt.request import RequestOutput, SamplingParams

if TYPE_CHECKING:
    from hybridrt.llm import LLM

_NEW_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Scene:
    """Requests that come together: names, tokens, and how many endings each gets."""

    title: str
    requests: tuple[tuple[str, tuple[int, ...]], ...]
    endings: int = 1


def scenes(token_ids: Sequence[int]) -> list[Scene]:
    """The run for a prompt."""
    tokens = tuple(token_ids)
    half = max(1, len(tokens) // 2)
    begin, end = tokens[:half], tokens[half:]
    return [
        Scene("The prompt", (("first", tokens),)),
        Scene("The same prompt again, with three endings", (("again", tokens),), endings=3),
        Scene(
            "Two prompts that begin as it does",
            (("branch-1", begin + end[::-1]), ("branch-2", begin + end[1:] + end[:1])),
        ),
        Scene("Another prompt", (("other", tokens[::-1]),)),
    ]


def record(llm: "LLM", token_ids: Sequence[int]) -> list[Frame]:
    """Runs the scenes and returns a frame for the pool before them and behind each step.

    Raises:
        ValueError: the prompt leaves no room for a token behind it.
    """
    room = llm.max_model_len - len(token_ids)
    if room < 1 or not token_ids:
        raise ValueError(
            f"the prompt has {len(token_ids)} tokens; to be recorded it should have from 1 to "
            f"{llm.max_model_len - 1}"
        )
    frames = [Frame("", "Before the first step.", 0, 0, llm.cache_map())]
    for scene in scenes(token_ids):
        _play(llm, scene, min(_NEW_TOKENS, room), frames)
    return frames


def _play(llm: "LLM", scene: Scene, max_tokens: int, frames: list[Frame]) -> None:
    params = SamplingParams(
        n=scene.endings, temperature=1.0, seed=0, max_tokens=max_tokens, ignore_eos=True
    )
    waiting = {llm.add_request(list(ids), params, name) for name, ids in scene.requests}
    told: set[str] = set()
    try:
        while waiting:
            outputs = [output for output in llm.step() if output.request_id in waiting]
            waiting -= {output.request_id for output in outputs if output.finished}
            text, running = _step_text(outputs, told), llm.engine.num_running
            frames.append(Frame(scene.title, text, running, _held(llm), llm.cache_map()))
    finally:
        for name in waiting:
            llm.abort(name)


def _held(llm: "LLM") -> int:
    """Tokens that the cache has of the sequences that run, shared ones as often as they run."""
    pages = llm.engine.pages
    return sum(pages.num_committed(sequence) for sequence in pages)


def _step_text(outputs: Sequence[RequestOutput], told: set[str]) -> str:
    """What a step did, request by request; what was found in the cache is told once."""
    if not outputs:
        return "A part of a prompt is computed."
    return " ".join(_output_text(output, told) for output in outputs)


def _output_text(output: RequestOutput, told: set[str]) -> str:
    name = output.request_id
    made = max(len(one.token_ids) for one in output.outputs)
    if output.finished:
        return f"{name} ends with token {made}; its pages are kept or given back."
    if name in told:
        return f"{name} gets token {made}."
    told.add(name)
    length = len(output.prompt_token_ids)
    return (
        f"{name} has {output.num_cached_tokens:,} of its {length:,} tokens from the cache "
        f"({output.cache_note}), and gets token {made}."
    )

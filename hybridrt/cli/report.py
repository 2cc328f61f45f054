"""The page of `hybridrt inspect --html`: a run is recorded, a prompt traced, the page written."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridrt.cli.models import busy, load_llm
from hybridrt.cli.options import EngineOptions

if TYPE_CHECKING:
    from hybridrt.cli.parts import ModelPart
    from hybridrt.engine.loading import Blueprint
    from hybridrt.introspection.trace import Trace
    from hybridrt.llm import LLM
    from hybridrt.report.frames import Frame

TRACED_POSITIONS = 48


def write_report(
    path: Path,
    model: str,
    engine: EngineOptions,
    blueprint: "Blueprint",
    parts: "Sequence[ModelPart]",
    summary: Mapping[str, Any],
    prompt: str | list[int] | None,
) -> None:
    """Writes the page. Without a prompt nothing is run."""
    from hybridrt.report.page import report_page

    plan, frames, trace = blueprint.plan, [], None
    if prompt is not None:
        llm = load_llm(model, engine)
        with busy("recording"):
            plan, (frames, trace) = llm.plan, recorded(llm, prompt)
    page = report_page(
        model,
        plan,
        _facts(summary),
        parts=parts,
        longest=summary["max_model_len"],
        hidden_bytes=summary["hidden_size"] * next(blueprint.model.parameters()).element_size(),
        prompt=_shown(prompt),
        frames=frames,
        trace=trace,
    )
    path.write_bytes(page.encode())


def recorded(llm: "LLM", prompt: str | list[int]) -> "tuple[list[Frame], Trace]":
    """The pool over a run of several requests with the prompt, and what its layers did."""
    from hybridrt.report.recording import record

    with llm.session(prompt) as session:
        token_ids = session.token_ids
    frames = record(llm, token_ids)
    return frames, traced(llm, token_ids)


def traced(llm: "LLM", token_ids: Sequence[int]) -> "Trace":
    """A trace of the tokens, at some tens of positions."""
    every = -(-len(token_ids) // TRACED_POSITIONS)
    with llm.session() as session:
        return session.trace(token_ids, every=every)


def _facts(summary: Mapping[str, Any]) -> dict[str, str]:
    from hybridrt.cache.explain import size_text

    longest = summary["max_position_embeddings"]
    quantised = summary["quantisation"]
    return {
        "model type": summary["model_type"],
        "parameters": f"{summary['parameters']:,}",
        "weights": size_text(summary["parameter_bytes"]),
        "dtype": summary["dtype"] + (f", {quantised}" if quantised else ""),
        "layers": f"{summary['num_layers']:,}, of which {summary['num_cached_layers']:,} cache",
        "hidden size": f"{summary['hidden_size']:,}",
        "vocabulary": f"{summary['vocab_size']:,}",
        "longest": "set by nothing" if longest is None else f"{longest:,} tokens",
    }


def _shown(prompt: str | list[int] | None) -> str | None:
    return ", ".join(map(str, prompt)) if isinstance(prompt, list) else prompt

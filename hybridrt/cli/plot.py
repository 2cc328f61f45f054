"""`hybridrt plot`: pictures for papers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridrt.cli.errors import reports_errors
from hybridrt.cli.generate import parse_ids
from hybridrt.cli.models import busy, engine_config, load_llm
from hybridrt.cli.options import EngineOptions, Json, Model, expands_options
from hybridrt.cli.output import check_folder, print_written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hybridrt.llm import LLM

plot = typer.Typer(
    no_args_is_help=True,
    help="Draw a model's memory, states or pages for a paper (svg, pdf, png).",
)
_Out = Annotated[
    Path, typer.Option("--out", metavar="FILE", help="The picture: .svg, .pdf or .png.")
]
_Prompt = Annotated[str | None, typer.Option(metavar="TEXT", help="The prompt to run.")]
_Ids = Annotated[str | None, typer.Option(metavar="IDS", help="The same with token ids: 1,2,3.")]


def memory(model: Model, engine: EngineOptions, out: _Out, json_output: Json = False) -> None:
    """Memory of a sequence against its length, and what full attention would need.

    Of a model it reads config.json alone.
    """
    _check(out)
    config = engine_config(model, engine)
    with busy("planning"):
        from hybridrt.engine.loading import draw_up
        from hybridrt.report.figures import memory_figure
        from hybridrt.report.memory import memory_curves

        blueprint = draw_up(config, config_only=True)
    item_bytes = next(blueprint.model.parameters()).element_size()
    hidden_bytes = blueprint.model.config.hidden_size * item_bytes
    curves = memory_curves(blueprint.plan, blueprint.config.max_model_len, hidden_bytes)
    _write(memory_figure(curves), out, json_output)


def states(
    model: Model,
    engine: EngineOptions,
    out: _Out,
    prompt: _Prompt = None,
    token_ids: _Ids = None,
    json_output: Json = False,
) -> None:
    """Norms of the states while a prompt is read, and how long each head remembers."""
    _check(out)
    asked = _asked(prompt, token_ids)
    llm = load_llm(model, engine)
    from hybridrt.cli.report import traced
    from hybridrt.report.figures import state_numbers, states_figure

    with busy("tracing"):
        trace = traced(llm, _token_ids(llm, asked))
    _write(states_figure(state_numbers(trace, llm.plan)), out, json_output)


def pages(
    model: Model,
    engine: EngineOptions,
    out: _Out,
    prompt: _Prompt = None,
    token_ids: _Ids = None,
    json_output: Json = False,
) -> None:
    """What the pool holds at every step of a run with several requests.

    a: the prompt; b: the same again with three endings; c: two prompts that begin as it does;
    d: another prompt.
    """
    _check(out)
    asked = _asked(prompt, token_ids)
    llm = load_llm(model, engine)
    from hybridrt.report.figures import pages_figure
    from hybridrt.report.recording import record

    with busy("recording"):
        frames = record(llm, _token_ids(llm, asked))
    _write(pages_figure(frames), out, json_output)


def _check(out: Path) -> None:
    """Refuses before a model is loaded what can't be drawn after it."""
    from hybridrt.report.figures import check_format, need_matplotlib

    check_format(out)
    check_folder("--out", out)
    need_matplotlib()


def _asked(prompt: str | None, token_ids: str | None) -> str | list[int]:
    if prompt is None and token_ids is None:
        raise ValueError("this plot needs a --prompt or --token-ids")
    if prompt is not None and token_ids is not None:
        raise ValueError("this plot takes a --prompt or --token-ids, and not both")
    return parse_ids(token_ids) if prompt is None and token_ids is not None else prompt or ""


def _token_ids(llm: "LLM", asked: str | list[int]) -> list[int]:
    with llm.session(asked) as session:
        return session.token_ids


def _write(figure: "Figure", out: Path, json_output: bool) -> None:
    from hybridrt.report.figures import save_figure

    save_figure(figure, out)
    print_written(out, json_output)


for _command in (memory, states, pages):
    plot.command()(reports_errors(expands_options(_command)))

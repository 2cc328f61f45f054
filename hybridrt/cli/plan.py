"""`hybridrt plan`: the bytes of a cache, before a weight is read."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridrt.cli.models import busy, engine_config
from hybridrt.cli.options import EngineOptions, Json
from hybridrt.cli.output import console, print_json

if TYPE_CHECKING:
    from hybridrt.cache.plan import CachePlan


def plan(
    engine: EngineOptions,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", show_default=False, help="A folder with config.json, or a Hub id."
        ),
    ] = None,
    geometry: Annotated[
        Path | None,
        typer.Option(help="A geometry file in the place of a model; needs --cache-memory."),
    ] = None,
    byte_map: Annotated[
        bool, typer.Option("--bytes", help="Show every tensor's bytes in a page of each group.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Show what the cache takes per token, sequence and layer, and what fits in it.

    Of a model it reads config.json alone. --max-model-len and --cache-memory change the answer.
    """
    if (model is None) == (geometry is None):
        raise ValueError("plan needs a MODEL or a --geometry, and not both")
    with busy("planning"):
        if geometry is not None:
            source, cache_plan, longest = _of_geometry(geometry, engine)
        else:
            source, cache_plan, longest = _of_model(model or "", engine)
    if json_output:
        _print_json(source, cache_plan, longest)
    else:
        _print_tables(source, cache_plan, longest)
        if byte_map:
            _print_byte_map(cache_plan)


def _of_model(model: str, engine: EngineOptions) -> "tuple[str, CachePlan, int | None]":
    config = engine_config(model, engine)
    from hybridrt.engine.loading import draw_up

    blueprint = draw_up(config, config_only=True)
    return model, blueprint.plan, blueprint.config.max_model_len


def _of_geometry(path: Path, engine: EngineOptions) -> "tuple[str, CachePlan, int | None]":
    config = engine_config(str(path), engine)
    if config.cache_memory is None:
        raise ValueError("--geometry needs --cache-memory, such as 8GiB")
    from hybridrt.cache.planner import plan as plan_cache
    from hybridrt.engine.geometry import load_geometry

    geometry = load_geometry(path, config)
    return geometry.name, plan_cache(geometry.layers, config, config.cache_memory), None


def _lengths(longest: int | None) -> list[int]:
    """The usual lengths that the model can reach, and its longest."""
    from hybridrt.cache.explain import LENGTHS

    if longest is None:
        return list(LENGTHS)
    return [*(length for length in LENGTHS if length < longest), longest]


def _print_json(source: str, cache_plan: "CachePlan", longest: int | None) -> None:
    from hybridrt.cache.explain import plan_data

    data = plan_data(cache_plan, _lengths(longest))
    print_json({"model": source, "max_model_len": longest, **data})


def _print_tables(source: str, cache_plan: "CachePlan", longest: int | None) -> None:
    from hybridrt.cache.explain import fits_table, groups_table, layers_table, summary

    out = console()
    reach = "" if longest is None else f": sequences of up to {longest:,} tokens"
    out.print(f"{source}{reach}", style="bold", markup=False, end="\n\n")
    for table in (
        layers_table(cache_plan),
        groups_table(cache_plan),
        fits_table(cache_plan, _lengths(longest)),
    ):
        out.print(table)
        out.print()
    out.print(summary(cache_plan))
    for note in cache_plan.notes:
        out.print(note, style="yellow")


def _print_byte_map(cache_plan: "CachePlan") -> None:
    from hybridrt.cache.byte_map import byte_map_table

    out = console()
    for group in cache_plan.groups:
        out.print()
        out.print(byte_map_table(cache_plan, group))

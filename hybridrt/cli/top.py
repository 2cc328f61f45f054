"""`hybridrt top`: what running engines do, seen from another terminal."""

import time
from typing import Annotated, Any

import typer

from hybridrt.cli.options import Json
from hybridrt.cli.output import console, print_json

NOTHING = (
    "no engine runs that can be seen; `hybridrt generate`, `chat` and `bench` can, and a script "
    "with LLM(..., publish_stats=True) or HYBRIDRT_PUBLISH_STATS=1 in its environment"
)


def top(
    pid: Annotated[
        int | None, typer.Option(metavar="PID", help="Only the engines of this process.")
    ] = None,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and stop.")] = False,
    json_output: Json = False,
) -> None:
    """Watch the engines of this user that run: requests, speed, the pool, hits and misses.

    Ctrl-C ends it. With --json: a line for each look, a list of the engines.
    """
    if not interval > 0:
        raise ValueError(f"--interval={interval} should be more than 0")
    if not json_output and not _look(pid):
        raise ValueError(NOTHING if pid is None else f"--pid={pid}: {NOTHING}")
    try:
        if json_output:
            _write_lines(pid, interval, once)
        elif once:
            console().print(_view(pid))
        else:
            _watch(pid, interval)
    except KeyboardInterrupt:
        return


def _look(pid: int | None) -> list[dict[str, Any]]:
    from hybridrt.introspection.published import read_published

    return [engine for engine in read_published() if pid in (None, engine["pid"])]


def _write_lines(pid: int | None, interval: float, once: bool) -> None:
    print_json(_look(pid))
    while not once:
        time.sleep(interval)
        print_json(_look(pid))


def _watch(pid: int | None, interval: float) -> None:
    from rich.live import Live

    with Live(_view(pid), console=console(), auto_refresh=False, screen=False) as live:
        while True:
            time.sleep(interval)
            live.update(_view(pid), refresh=True)


def _view(pid: int | None) -> Any:
    from rich.console import Group

    from hybridrt.cli.top_view import engine_view

    engines = _look(pid)
    if not engines:
        return "No engine runs any more. Ctrl-C ends this view."
    now = time.time()
    return Group(*(engine_view(engine, now) for engine in engines))

"""Progress of loading and of long batches, on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hybridrt.request import RequestOutput


@contextmanager
def byte_progress(total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar over the bytes of the weights, gone when they are loaded; yields what advances it."""
    if not shown:
        yield lambda num_bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = ("loading weights", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda num_bytes: bar.advance(task, num_bytes)


@contextmanager
def count_progress(what: str, total: int, *, shown: bool) -> Iterator[Callable[[], None]]:
    """A bar over so many things, gone when they are done; yields what is called behind each."""
    if not shown:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


@contextmanager
def request_progress(total: int, *, shown: bool) -> Iterator[Callable[[RequestOutput], None]]:
    """A bar over requests with the tokens made so far; yields what takes their outputs.

    Outputs may be given after every step or only when they are finished.
    """
    if not shown or total < 2:
        yield lambda output: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        "requests",
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]:,} tokens, {task.fields[speed]:,.0f} a second"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, tokens=0, speed=0.0)
        made: dict[str, int] = {}
        num_tokens = 0

        def advance(output: RequestOutput) -> None:
            nonlocal num_tokens
            count = sum(len(completion.token_ids) for completion in output.outputs)
            num_tokens += count - made.get(output.request_id, 0)
            made[output.request_id] = count
            seconds = bar.tasks[0].elapsed or 1e-9
            speed = num_tokens / seconds
            bar.update(task, advance=output.finished, tokens=num_tokens, speed=speed)

        yield advance

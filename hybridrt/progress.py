"""Progress of long batches, on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hybridrt.request import RequestOutput


@contextmanager
def request_progress(total: int, *, shown: bool) -> Iterator[Callable[[RequestOutput], None]]:
    """A bar over requests with the tokens made so far; yields what a finished one is given to."""
    if not shown or total < 2:
        yield lambda output: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        "requests",
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]:,} tokens"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, tokens=0)
        num_tokens = 0

        def advance(output: RequestOutput) -> None:
            nonlocal num_tokens
            num_tokens += sum(len(completion.token_ids) for completion in output.outputs)
            bar.update(task, advance=1, tokens=num_tokens)

        yield advance

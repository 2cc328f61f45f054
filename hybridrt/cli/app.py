"""The commands, put together."""

from typing import Annotated

import typer

from hybridrt.cli.bench import bench
from hybridrt.cli.chat import chat
from hybridrt.cli.demo import demo
from hybridrt.cli.errors import reports_errors
from hybridrt.cli.generate import generate
from hybridrt.cli.inspect import inspect
from hybridrt.cli.options import expands_options
from hybridrt.cli.plan import plan
from hybridrt.cli.plot import plot
from hybridrt.cli.top import top

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from hybridrt import __version__

        typer.echo(f"hybridrt {__version__}")
        raise typer.Exit


@app.callback()
def _hybridrt(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    """Run language models that stack attention, MLA and Mamba layers, and see their cache.

    Start with: hybridrt demo
    """


for _command in (demo, generate, chat, plan, inspect, top):
    app.command()(reports_errors(expands_options(_command)))
app.add_typer(plot, name="plot")
app.add_typer(bench, name="bench")

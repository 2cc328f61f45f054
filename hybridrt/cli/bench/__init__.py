"""`hybridrt bench`: what a model's speed is on this machine, beside what is possible."""

import typer

from hybridrt.cli.bench.latency import latency
from hybridrt.cli.bench.startup import startup
from hybridrt.cli.bench.throughput import throughput
from hybridrt.cli.errors import reports_errors
from hybridrt.cli.options import expands_options

bench = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Measure latency, throughput or start-up beside what the machine allows.",
)

for _command in (latency, throughput, startup):
    bench.command()(reports_errors(expands_options(_command)))

"""Options that the measuring commands share, and what they say about a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridrt.cli.output import plain

if TYPE_CHECKING:
    from hybridrt.llm import LLM
    from hybridrt.measure.floor import Floor
    from hybridrt.measure.machine import Limits
    from hybridrt.measure.runtime import Hybridrt, Runtime

PEERS = ("transformers",)

OutputTokens = Annotated[int, typer.Option(help="Tokens to generate, at least 2.")]


def _measured(help: str, metavar: str | None = None) -> Any:
    return typer.Option(help=help, metavar=metavar, rich_help_panel="Measurement")


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How often, of what, and beside whom."""

    repeats: Annotated[int, _measured("Measured runs, after one that is not.")] = 3
    seed: Annotated[int, _measured("Of the random prompts.")] = 0
    against: Annotated[
        str | None,
        _measured("Also measure transformers on the same checkpoint, in turns.", "transformers"),
    ] = None

    def check(self) -> None:
        """Raises a `ValueError` for what can't be measured, before a model is loaded."""
        at_least(1, repeats=self.repeats)
        if self.against is None:
            return
        if self.against not in PEERS:
            raise ValueError(f"--against={self.against!r} should be {' or '.join(PEERS)}")
        from hybridrt.measure.with_transformers import check_installed

        check_installed()


@dataclass(frozen=True, slots=True)
class Bench:
    """A loaded model with its floor, its peers, and the seconds that loading took."""

    llm: "LLM"
    limits: "Limits"
    floor: "Floor"
    ours: "Hybridrt"
    peers: Mapping[str, "Runtime"]
    load_seconds: float

    @property
    def sides(self) -> dict[str, "Runtime"]:
        """All runtimes, ours first."""
        return {"hybridrt": self.ours, **self.peers}

    @property
    def vocab_size(self) -> int:
        return self.llm.engine.model.config.vocab_size

    def data(self, model: str, measure: MeasureOptions) -> dict[str, Any]:
        """What was measured, and where."""
        from hybridrt.measure.machine import describe

        parameter = next(self.llm.engine.model.parameters())
        return {
            "model": model,
            "machine": describe(),
            "device": str(parameter.device),
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "repeats": measure.repeats,
            "load_seconds": self.load_seconds,
            "limits": plain(self.limits),
            "num_preemptions": self.ours.num_preemptions,
        }


def at_least(smallest: int, **options: int) -> None:
    """Raises a `ValueError` with the name of an option that is below."""
    for name, value in options.items():
        if value < smallest:
            raise ValueError(f"--{name.replace('_', '-')}={value} should be at least {smallest}")


def check_batch(batch: int, max_num_seqs: int) -> None:
    """Raises a `ValueError` for a batch that would not run all at once."""
    at_least(1, batch=batch)
    if batch > max_num_seqs:
        raise ValueError(
            f"--batch={batch} should be at most --max-num-seqs={max_num_seqs}, or not all "
            f"of the batch run at once"
        )


def check_length(llm: "LLM", model: str, **tokens: int) -> None:
    """Raises a `ValueError` for a sequence that the model can't have."""
    if sum(tokens.values()) > llm.max_model_len:
        named = " and ".join(f"--{n.replace('_', '-')}={count}" for n, count in tokens.items())
        raise ValueError(
            f"{named} should be at most {llm.max_model_len} together, the longest sequence of "
            f"{model}"
        )

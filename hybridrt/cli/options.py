"""Options that several commands share, declared once.

A command names a class of options as the type of one of its parameters; `expands_options`
makes them options of the command, and an object of the class of what was given.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hybridrt.request import SamplingParams

DEMO = "demo"

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="A folder with config.json and safetensors, a .gguf file, a Hub id, or 'demo'.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, alone.")]


def _engine(help: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel="Engine")


def _sampling(help: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel="Sampling")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The fields of `EngineConfig` that matter on the command line, with its defaults."""

    dtype: Annotated[
        str, _engine("Of weights and activations: auto (the checkpoint's), float32, bfloat16 ...")
    ] = "auto"
    device: Annotated[str, _engine("auto, cpu, cuda or cuda:N.")] = "auto"
    quantization: Annotated[
        str | None, _engine("Of weights, while they are loaded: int8 or int4.")
    ] = None
    max_model_len: Annotated[
        int | None, _engine("Tokens of the longest sequence, prompt and output together.")
    ] = None
    max_num_seqs: Annotated[int, _engine("Most sequences in one step.")] = 64
    max_num_batched_tokens: Annotated[int, _engine("Most tokens in one step.")] = 2048
    cache_memory: Annotated[
        str | None,
        _engine("Bytes of the cache, such as 8GiB. Else from free memory.", metavar="SIZE"),
    ] = None
    cache_policy: Annotated[str, _engine("paged, or contiguous (one page a sequence).")] = "paged"
    page_size: Annotated[int, _engine("Tokens in a page of attention and MLA layers.")] = 16
    kernel_block_size: Annotated[
        int | None, _engine("Tokens that a kernel indexes at once; divides the page size.")
    ] = None
    compile: Annotated[bool, _engine("Run decode steps through torch.compile.", "--compile")] = (
        False
    )
    ignore_config_keys: Annotated[
        list[str] | None,
        _engine(
            "A key of config.json to leave aside though it is not known. Repeatable.",
            "--ignore-config-key",
            metavar="KEY",
        ),
    ] = None

    def fields(self) -> dict[str, Any]:
        """As fields of `EngineConfig`, or keyword arguments of `LLM`."""
        given = asdict(self)
        given["ignore_config_keys"] = tuple(self.ignore_config_keys or ())
        if self.cache_memory is not None and self.cache_memory.strip().isdigit():
            given["cache_memory"] = int(self.cache_memory)
        return given


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """The fields of `SamplingParams` that matter on the command line."""

    max_tokens: Annotated[int, _sampling("Most tokens to generate.")] = 128
    temperature: Annotated[float, _sampling("0 takes the likeliest token.")] = 1.0
    top_p: Annotated[float, _sampling("Keep the fewest tokens with at least this probability.")] = (
        1.0
    )
    top_k: Annotated[int, _sampling("Keep this many tokens; 0 keeps all.")] = 0
    min_p: Annotated[
        float, _sampling("Drop tokens below this share of the likeliest's probability.")
    ] = 0.0
    seed: Annotated[int | None, _sampling("Makes the draw another one, and repeatable.")] = None
    stop: Annotated[
        list[str] | None,
        _sampling(
            r"A text that ends the output; \n and \t are understood. Repeatable.", metavar="TEXT"
        ),
    ] = None
    ignore_eos: Annotated[
        bool, _sampling("Go on behind the end-of-sequence token.", "--ignore-eos")
    ] = False

    def params(self, **more: Any) -> "SamplingParams":
        """As `SamplingParams`, with `more` of its fields."""
        from hybridrt.request import SamplingParams

        given = asdict(self) | {"stop": tuple(map(_unescape, self.stop or ()))}
        return SamplingParams(**given, **more)


def expands_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one parameter for each field of its classes of options."""
    signature = inspect.signature(command)
    classes: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }
    expanded = list(_expand(signature))

    @wraps(command)
    def run(**values: Any) -> None:
        for name, cls in classes.items():
            values[name] = cls(**{field.name: values.pop(field.name) for field in fields(cls)})
        command(**values)

    # typer reads the parameters from these two.
    run.__signature__ = signature.replace(parameters=expanded)  # pyright: ignore
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded}
    return run


def _expand(signature: inspect.Signature) -> Iterator[inspect.Parameter]:
    keyword = inspect.Parameter.KEYWORD_ONLY
    for parameter in signature.parameters.values():
        if not is_dataclass(parameter.annotation):
            yield parameter.replace(kind=keyword)
            continue
        for field in fields(parameter.annotation):
            yield inspect.Parameter(
                field.name, keyword, default=field.default, annotation=field.type
            )


def _unescape(text: str) -> str:
    r"""A stop text as meant: a shell has no easy way to write a line's end, so `\n` is one."""
    parts = text.split(r"\\")
    return "\\".join(part.replace(r"\n", "\n").replace(r"\t", "\t") for part in parts)

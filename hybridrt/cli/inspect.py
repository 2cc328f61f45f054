"""`hybridrt inspect`: what a checkpoint is made of, and what its layers keep of a prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridrt.cli.generate import parse_ids
from hybridrt.cli.models import busy, engine_config, load_llm
from hybridrt.cli.options import EngineOptions, Json, Model
from hybridrt.cli.output import check_folder, console, print_json, print_written

if TYPE_CHECKING:
    from hybridrt.cli.parts import ModelPart
    from hybridrt.cli.usage import LayerUse
    from hybridrt.engine.loading import Blueprint
    from hybridrt.engine.tensor_map import TensorMap


@dataclass(frozen=True, slots=True)
class _Look:
    """What the layers hold of a prompt of so many tokens; the pages of each group."""

    num_tokens: int
    uses: "list[LayerUse]"
    page_ids: Mapping[str, Sequence[int]]


def inspect(
    model: Model,
    engine: EngineOptions,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Run this, and show what each layer holds after it."),
    ] = None,
    token_ids: Annotated[
        str | None, typer.Option(metavar="IDS", help="The same with token ids: 1,2,3.")
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(metavar="INDEX", help="With a prompt: show this cached layer, page by page."),
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(metavar="A:B", help="With --layer: values of these tokens too.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a page with pictures in the place of tables; with a prompt, of a run too.",
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Show a checkpoint's layers, tensors and cache; with a prompt, what each layer holds.

    Without a prompt no weight is read: names, shapes and dtypes are in the files' headers.
    """
    if prompt is not None and token_ids is not None:
        raise ValueError("inspect takes a --prompt or --token-ids, not both")
    asked = prompt if token_ids is None else parse_ids(token_ids)
    if tokens is not None and layer is None:
        raise ValueError(f"--tokens={tokens!r} is of one layer; say which with --layer")
    if layer is not None and html is not None:
        raise ValueError("inspect shows one --layer, or writes a page of all as --html, not both")
    if layer is not None:
        from hybridrt.cli.layer_contents import show_layer

        if asked is None:
            raise ValueError(f"--layer={layer} is of a prompt; give a --prompt or --token-ids")
        return show_layer(model, engine, asked, layer, tokens, as_json=json_output)
    if html is not None:
        check_folder("--html", html)
    config = engine_config(model, engine)
    with busy("reading"):
        from hybridrt.cli.parts import model_parts
        from hybridrt.engine.loading import draw_up

        blueprint = draw_up(config)
    parts = model_parts(blueprint.model, blueprint.plan)
    if html is not None:
        from hybridrt.cli.report import write_report

        summary = _summary(blueprint, parts)
        write_report(html, model, engine, blueprint, parts, summary, asked)
        print_written(html, json_output)
        return
    tensors = _tensors(blueprint)
    look = None if asked is None else _look(model, engine, asked)
    if json_output:
        _print_json(model, blueprint, parts, tensors, look)
    else:
        _print(model, blueprint, parts, tensors, look)


def _look(model: str, engine: EngineOptions, prompt: str | list[int]) -> _Look:
    """Runs a prompt up to where all of it is in the cache."""
    from hybridrt.cli.usage import held_by
    from hybridrt.request import SamplingParams

    llm = load_llm(model, engine)
    # More tokens than are looked at, so that the request still holds its pages.
    request_id = llm.add_request(prompt, SamplingParams(max_tokens=3, ignore_eos=True))
    sequence, pages = f"{request_id}/0", llm.engine.pages
    begun = False
    while not (begun and sequence in pages):
        outputs = llm.step()
        begun = begun or bool(outputs)
        if any(output.finished for output in outputs):
            raise ValueError(
                f"the prompt has {len(outputs[0].prompt_token_ids)} tokens; to be looked at it "
                f"should have at most {llm.max_model_len - 2}"
            )
    tables = zip(llm.plan.groups, pages.tables(sequence), strict=True)
    page_ids = {group.name: tuple(table.physical_ids) for group, table in tables}
    return _Look(pages.num_committed(sequence), held_by(llm, request_id), page_ids)


def _tensors(blueprint: "Blueprint") -> "TensorMap | None":
    """What the checkpoint's tensors become; None if there are only its configs."""
    from hybridrt.engine.tensor_map import has_weights, tensor_map

    if not has_weights(blueprint.checkpoint):
        return None
    return tensor_map(blueprint.model, blueprint.checkpoint, blueprint.quantisation)


def _summary(blueprint: "Blueprint", parts: "Sequence[ModelPart]") -> dict[str, Any]:
    config, directory = blueprint.model.config, blueprint.directory
    vocabulary, chats = _tokenizer(blueprint)
    return {
        "directory": str(directory),
        "model_type": config.model_type,
        "parameters": sum(part.parameters for part in parts),
        "parameter_bytes": sum(part.parameter_bytes for part in parts),
        "dtype": str(next(blueprint.model.parameters()).dtype).removeprefix("torch."),
        "file_bytes": sum(file.stat().st_size for file in _files(blueprint.checkpoint)),
        "quantisation": blueprint.quantisation and blueprint.quantisation.method,
        "num_layers": sum(part.is_layer for part in parts),
        "num_cached_layers": len(blueprint.plan.layers),
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_word_embeddings,
        "max_position_embeddings": config.max_position_embeddings,
        "max_model_len": blueprint.config.max_model_len,
        "tokenizer_size": vocabulary,
        "chat_template": chats,
    }


def _files(checkpoint: Path) -> list[Path]:
    """Files of weights."""
    if checkpoint.is_file():
        return [checkpoint]
    return [*checkpoint.glob("*.safetensors"), *checkpoint.glob("*.gguf")]


def _tokenizer(blueprint: "Blueprint") -> tuple[int | None, bool]:
    """Tokens of the tokenizer, if there is one; whether there is a chat template."""
    from hybridrt.engine.chat_template import ChatTemplate
    from hybridrt.engine.checkpoint import read_json_object
    from hybridrt.engine.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_directory(blueprint.directory)
    file = blueprint.directory / "tokenizer_config.json"
    config = read_json_object(file) if file.is_file() else {}
    template = ChatTemplate.from_directory(blueprint.directory, config)
    return tokenizer and tokenizer.vocab_size, template is not None


def _print_json(
    model: str,
    blueprint: "Blueprint",
    parts: "Sequence[ModelPart]",
    tensors: "TensorMap | None",
    look: _Look | None,
) -> None:
    from hybridrt.cache.explain import plan_data

    data: dict[str, Any] = {"model": model, **_summary(blueprint, parts)}
    data["parts"] = [part.data() for part in parts]
    data["weights"] = None if tensors is None else _weights_data(tensors)
    data["plan"] = plan_data(blueprint.plan)
    if look is not None:
        data["prompt"] = {
            "num_tokens": look.num_tokens,
            "page_ids": look.page_ids,
            "layers": [
                use.data() | {"bytes_used": use.layer.bytes_for(look.num_tokens)}
                for use in look.uses
            ],
        }
    print_json(data)


def _weights_data(found: "TensorMap") -> dict[str, Any]:
    return {
        "fits": found.fits,
        "missing": list(found.problems["missing"]),
        "unused": [t.name for t in found.tensors if t.use in ("ignored", "unexpected")],
        "problems": {kind: list(names) for kind, names in found.problems.items() if names},
        "tensors": [tensor.data() for tensor in found.tensors],
    }


def _print(
    model: str,
    blueprint: "Blueprint",
    parts: "Sequence[ModelPart]",
    tensors: "TensorMap | None",
    look: _Look | None,
) -> None:
    from hybridrt.cache.explain import groups_table, layers_table, summary
    from hybridrt.cli.parts import parts_table

    out = console()
    for line in _summary_lines(model, _summary(blueprint, parts)):
        out.print(line, markup=False)
    out.print()
    out.print(parts_table(parts))
    out.print()
    if look is None:
        _print_tensors(tensors)
        for table in (layers_table(blueprint.plan), groups_table(blueprint.plan)):
            out.print(table)
            out.print()
    out.print(summary(blueprint.plan))
    if look is not None:
        out.print()
        _print_look(look)


def _print_tensors(tensors: "TensorMap | None") -> None:
    from hybridrt.cli.tensors import problems_text, tensors_table

    if tensors is None:
        return
    out = console()
    out.print(tensors_table(tensors.tensors))
    out.print()
    out.print(problems_text(tensors), markup=False, soft_wrap=True)
    out.print()


def _summary_lines(model: str, summary: Mapping[str, Any]) -> list[str]:
    from hybridrt.cache.explain import size_text

    on_disk = size_text(summary["file_bytes"]) if summary["file_bytes"] else "not here"
    coded = f", {summary['quantisation']}" if summary["quantisation"] else ""
    tied = ", the output layer's too" * summary["tie_word_embeddings"]
    tokens = summary["tokenizer_size"]
    tokenizer = "none: token ids only" if tokens is None else f"{tokens:,} tokens"
    chats = "with" if summary["chat_template"] else "no"
    longest = summary["max_position_embeddings"]
    limit = "set by nothing" if longest is None else f"{longest:,} tokens"
    return [
        f"{model}: {summary['model_type']}",
        f"  parameters  {summary['parameters']:,} = {size_text(summary['parameter_bytes'])} in "
        f"{summary['dtype']}; weights on disk: {on_disk}{coded}",
        f"  layers      {summary['num_layers']}, of which {summary['num_cached_layers']} cache; "
        f"hidden size {summary['hidden_size']:,}",
        f"  vocabulary  {summary['vocab_size']:,} embeddings{tied}",
        f"  tokenizer   {tokenizer}, {chats} chat template",
        f"  length      {limit}; here up to {summary['max_model_len']:,}",
    ]


def _print_look(look: _Look) -> None:
    from hybridrt.cache.explain import number_ranges
    from hybridrt.cli.usage import held_table

    out = console()
    out.print(held_table(f"After {look.num_tokens:,} tokens", look.uses, look.num_tokens))
    out.print()
    for group, ids in look.page_ids.items():
        out.print(f"Pages of the group {group}: {number_ranges(ids)}", soft_wrap=True)

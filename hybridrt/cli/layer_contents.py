"""`hybridrt inspect --layer`: what one layer holds of a prompt, page by page and in numbers."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hybridrt.cli.models import load_llm
from hybridrt.cli.options import EngineOptions
from hybridrt.cli.output import console, print_json

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from hybridrt.engine.read_cache import Field
    from hybridrt.introspection.layer import SessionLayer
    from hybridrt.session import Session

_SHOWN = 4  # numbers of a row that a table shows


def show_layer(
    model: str,
    engine: EngineOptions,
    prompt: str | list[int],
    index: int,
    tokens: str | None,
    *,
    as_json: bool,
) -> None:
    """Runs a prompt, and prints what its layer of that index holds.

    `tokens` are the rows to print values of, such as "3:10".

    Raises:
        ValueError: there is no such layer, or it doesn't hold these tokens.
    """
    llm = load_llm(model, engine)
    if not 0 <= index < len(llm.plan.layers):
        raise ValueError(f"--layer={index} should be from 0 to {len(llm.plan.layers) - 1}")
    with llm.session(prompt) as session:
        layer = session.layers[index]
        view = layer.view()
        rows = None if tokens is None else _rows(layer, tokens)
        data = {"model": model, "num_tokens": session.num_tokens, **_layer_data(layer)}
        data["tensors"] = [_tensor_data(view[name].read(), view[name]) for name in view]
        if rows is not None:
            data["tokens"] = _token_data(session, layer, rows)
    if as_json:
        print_json(data)
    else:
        _print(data)


def _rows(layer: "SessionLayer", text: str) -> range:
    """The rows `a:b` that a layer holds; either side may be left out."""
    if layer.kind == "state":
        raise ValueError(
            f"--tokens={text!r}: layer {layer.index}, {layer.name}, holds one state of all tokens; "
            f"leave --tokens out"
        )
    match = re.fullmatch(r"(\d*):(\d*)", text.strip())
    if match is None:
        raise ValueError(f"--tokens={text!r} should be two positions, such as 3:10")
    held = layer.rows
    start, stop = (int(part) if part else None for part in match.groups())
    rows = range(held.start if start is None else start, held.stop if stop is None else stop)
    if not rows or rows[0] not in held or rows[-1] not in held:
        raise ValueError(
            f"--tokens={text!r}: layer {layer.index} holds {held.start}:{held.stop}; "
            f"should be some of these"
        )
    return rows


def _layer_data(layer: "SessionLayer") -> dict[str, Any]:
    pages = [
        {
            "number": page.number,
            "physical_id": page.physical_id,
            "kernel_ids": page.kernel_ids,
            "slab": page.slab,
            "tokens": [page.tokens.start, page.tokens.stop],
            "holders": page.holders,
            "kept": page.kept,
            "key": page.key,
        }
        for page in layer.pages
    ]
    names = ("index", "name", "mixer", "kind", "group", "bytes", "checkpoint_positions")
    data = {name: getattr(layer, name) for name in names}
    return data | {"dtype": _dtype(layer.dtype), "pages": pages}


def _tensor_data(tensor: "Tensor", field: "Field | Any") -> dict[str, Any]:
    """Shape and statistics, of each head where there are heads."""
    heads = [i for i, axis in enumerate(field.axes) if axis.endswith("heads")]
    by_head = tensor.movedim(heads[0], 0) if heads else tensor[None]
    return {
        "name": field.name,
        "shape": list(tensor.shape),
        "dtype": _dtype(tensor.dtype),
        "axes": field.axes,
        "heads": [_statistics(part) for part in by_head] if tensor.numel() else [],
    }


def _statistics(part: "Tensor") -> dict[str, float]:
    numbers = part.double().flatten()
    least, most = numbers.aminmax()
    return {
        "norm": float(numbers.norm()),
        "mean": float(numbers.mean()),
        "min": float(least),
        "max": float(most),
    }


def _token_data(session: "Session", layer: "SessionLayer", rows: range) -> list[dict[str, Any]]:
    """Every value of these rows; of tokens the ids too."""
    view, first = layer.view(), layer.rows.start
    names = [name for name in view if name != "positions"]
    part = slice(rows.start - first, rows.stop - first)
    values = {name: view[name][part].tolist() for name in names}
    entries = "entries" in view
    return [
        {
            "position": row,
            "token_id": None if entries else session.token_ids[row],
            **{name: values[name][place] for name in names},
        }
        for place, row in enumerate(rows)
    ]


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _print(data: dict[str, Any]) -> None:
    out = console()
    out.print(
        f"Layer {data['index']}, {data['name']}: {data['mixer']}, {data['kind']}, group "
        f"{data['group']}, {data['dtype']}, {data['bytes']:,} bytes of {data['num_tokens']:,} "
        f"tokens",
        markup=False,
        soft_wrap=True,
    )
    if data["checkpoint_positions"]:
        positions = ", ".join(map(str, data["checkpoint_positions"]))
        out.print(f"Checkpoints of its states behind {positions} tokens.", soft_wrap=True)
    out.print()
    for table in (_pages_table(data["pages"]), _tensors_table(data["tensors"])):
        out.print(table)
        out.print()
    if "tokens" in data:
        out.print(_tokens_table(data["tokens"]))


def _pages_table(pages: "Sequence[dict[str, Any]]") -> "Table":
    from hybridrt.cache.explain import number_ranges, simple_table

    columns = ("page", "id", "kernel ids", "slab", "tokens", "held by", "key")
    table = simple_table("Pages", *columns, right=("page", "id", "slab", "held by"))
    for page in pages:
        start, stop = page["tokens"]
        table.add_row(
            str(page["number"]),
            str(page["physical_id"]),
            number_ranges(page["kernel_ids"]),
            str(page["slab"]),
            f"{start}:{stop}",
            f"{page['holders']}{' and kept' * page['kept']}",
            (page["key"] or "")[:12],
        )
    return table


def _tensors_table(tensors: "Sequence[dict[str, Any]]") -> "Table":
    from hybridrt.cache.explain import simple_table

    numbers = ("norm", "mean", "min", "max")
    table = simple_table("Tensors", "tensor", "head", *numbers, right=("head", *numbers))
    for tensor in tensors:
        shape = " x ".join(
            f"{size} {axis}" for size, axis in zip(tensor["shape"], tensor["axes"], strict=True)
        )
        name = f"{tensor['name']}\n{tensor['dtype']}, {shape}"
        for head, found in enumerate(tensor["heads"]):
            which = str(head) if len(tensor["heads"]) > 1 else ""
            cells = (f"{found[number]:.4g}" for number in numbers)
            table.add_row(name if not head else "", which, *cells)
    return table


def _tokens_table(tokens: "Sequence[dict[str, Any]]") -> "Table":
    from hybridrt.cache.explain import simple_table

    names = [name for name in tokens[0] if name not in ("position", "token_id")]
    title = f"The first {_SHOWN} numbers of each token's tensors (--json has all)"
    table = simple_table(title, "token", "id", *names, right=("token", "id"))
    for token in tokens:
        cells = [_first_numbers(token[name]) for name in names]
        which = "" if token["token_id"] is None else str(token["token_id"])
        table.add_row(str(token["position"]), which, *cells)
    return table


def _first_numbers(values: Any) -> str:
    """The first numbers of nested lists."""
    while isinstance(values[0], list):
        values = values[0]
    more = " ..." * (len(values) > _SHOWN)
    return " ".join(f"{value:.3g}" for value in values[:_SHOWN]) + more

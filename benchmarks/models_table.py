"""The table of models in docs/models.md: what each is made of, what it caches, how exact it is.

    python -m benchmarks.models_table                     # writes docs/models.md
    python -m benchmarks.models_table --errors [--model llama ...] [--rows 3]

The first computes bytes from configurations alone: those of well-known checkpoints
(`well_known.json`), else the defaults that transformers has for the model type. `--errors` also
runs the rows of tests/oracle against transformers' full forward, in float32, and keeps the largest
error of a log-probability in results/models.json. Both need the extra `test`.
"""

import argparse
import json
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridrt.cache.plan import CachePlan
from hybridrt.config import EngineConfig
from hybridrt.engine.loading import draw_up
from hybridrt.models import known_model_types

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "models.md"
ERRORS = HERE / "results" / "models.json"
WELL_KNOWN: dict[str, tuple[str, dict[str, Any]]] = json.loads(
    (HERE / "well_known.json").read_text()
)
OWN = "hybrid_stack"
MEMORY = 2**50  # bytes, so that any plan fits
INTRODUCTION = """# Models

Written by `python -m benchmarks.models_table`; don't edit it by hand.

One row for each `model_type`. The mixers and the bytes are those of the checkpoint that is named,
or of the defaults that transformers has for the type; weights in bfloat16, states in float32, from
the configuration alone. *Bytes a token* grow with a sequence, those in windows up to their size;
*bytes a sequence* don't grow. The error is the largest of a log-probability, in nats, against
transformers' full forward without a cache in float32, over the tiny checkpoints in
[tests/oracle](../tests/oracle) (`--errors`; the tests allow 1e-3).
"""
LEFT_OUT = """
## Left out

Of the types in transformers 5.23 with recurrent, convolutional, latent or indexed layers, and of
the common ones without:

| model_type | why |
|---|---|
| Inkling's text (`inkling_text`) | as transformers saves it alone; as released it runs |
| Gemma 3n (`gemma3n_text`) | predicts and corrects streams at each layer; Gemma 4 took its place |
| `gpt2`, `opt`, `bloom`, `gptj`, `mpt`, `falcon`, `phi` | attention alone, of before 2024 |
| encoders, encoder-decoders, diffusion | not causal language models |
"""


@dataclass(frozen=True)
class Row:
    """What is known of a model type's plan."""

    model_type: str
    sizes_of: str
    mixers: str
    kinds: str
    bytes_per_token: str
    bytes_per_sequence: str


def main() -> None:
    options = _options()
    _quieten()
    if options.errors:
        _measure(options.model, options.rows)
    errors = json.loads(ERRORS.read_text()) if ERRORS.exists() else {}
    PAGE.write_text(page([row_of(name) for name in known_model_types()], errors))


def _quieten() -> None:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--errors", action="store_true", help="measure errors first")
    parser.add_argument("--model", nargs="*", help="of these model types only")
    parser.add_argument("--rows", type=int, help="of so many rows of each model")
    return parser.parse_args()


def page(rows: list[Row], errors: dict[str, Any]) -> str:
    """The page."""
    lines = [
        INTRODUCTION,
        "| model_type | sizes of | mixers | cache | bytes a token | bytes a sequence | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        # Rows of a multimodal checkpoint's text model may have its own name.
        found = errors.get(row.model_type) or errors.get(f"{row.model_type}_text")
        error = f"{found['error']:.0e} in {found['rows']}" if found else "-"
        cells = [f"`{row.model_type}`", row.sizes_of, row.mixers, row.kinds]
        cells += [row.bytes_per_token, row.bytes_per_sequence, error]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" + LEFT_OUT


def row_of(model_type: str) -> Row:
    """The row of a model type, without its error."""
    name, config = config_of(model_type)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        options = EngineConfig(model=folder, device="cpu", dtype="bfloat16", cache_memory=MEMORY)
        plan = draw_up(options, config_only=True).plan
    mixers = Counter(layer.mixer for layer in plan.layers)
    window = plan.bytes_per_window_token
    per_token = f"{plan.bytes_per_token:,}" + (f" + {window:,} in windows" if window else "")
    return Row(
        model_type,
        name,
        ", ".join(f"{count} {mixer}" for mixer, count in mixers.items()),
        _kinds(plan),
        per_token if plan.bytes_per_token or window else "0",
        f"{plan.bytes_per_sequence:,}",
    )


def config_of(model_type: str) -> tuple[str, dict[str, Any]]:
    """Whose sizes they are, and a `config.json` that has them."""
    if model_type == OWN:
        demo = HERE.parent / "hybridrt" / "demo" / "config.json"
        return "the shipped demo", json.loads(demo.read_text())
    from transformers import AutoConfig

    name, changes = WELL_KNOWN.get(model_type, ("transformers' defaults", {}))
    config: dict[str, Any] = json.loads(
        AutoConfig.for_model(model_type, **changes).to_json_string(use_diff=False)
    )
    return name, config


def _kinds(plan: CachePlan) -> str:
    kinds: list[str] = []
    for group in plan.groups:
        window = group.window
        size = f" of {window.size:,}" if window is not None else ""
        kinds.append(f"{len(group.layers)} {group.kind}{size}")
    return ", ".join(kinds)


def _measure(model_types: list[str] | None, most: int | None) -> None:
    """Adds to the errors that are known; each model is kept as soon as it is done."""
    from tests.oracle import TINY

    rows_of: dict[str, list[Any]] = {}
    for row in TINY:
        rows_of.setdefault(row.model_type, []).append(row)
    for model_type, rows in rows_of.items():
        if model_types and model_type not in model_types:
            continue
        chosen = rows[:most]
        error = max(_error(row) for row in chosen)
        known = json.loads(ERRORS.read_text()) if ERRORS.exists() else {}
        known[model_type] = {"rows": len(chosen), "error": error}
        ERRORS.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")
        print(f"{model_type}: {error:.2g} in {len(chosen)} rows", flush=True)


def _error(row: Any) -> float:
    """The largest over the row's prompts and what is generated behind them."""
    from tests.models.test_against_transformers import _answers, _llm, _prompts
    from tests.oracle import tiny_checkpoint
    from tests.oracle.answers import judge_all

    path = tiny_checkpoint(row.name)
    answers = _answers(_llm(path, "float32"), _prompts(row, row.prompt_lengths))
    return max(verdict.error for verdict in judge_all(path, answers, row.stepwise))


if __name__ == "__main__":
    main()

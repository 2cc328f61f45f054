"""How much memory for how many users? Answered from a config.json alone, with no weights.

A cache has three kinds of cost. Attention and MLA pay for every token of every user, for good. A
window pays for its last tokens. A state is paid once a user, whatever the length. Which of them
a model has decides what it costs to serve: this script says so for a model of your choice.

Usage: python examples/size_a_deployment.py [FOLDER with a config.json | config.json]
Without one it takes a hybrid of the size of a real one: 40 layers, of which 4 attend
(its MLPs are left out: they cache nothing).
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hybridrt import EngineConfig
from hybridrt.cache.explain import size_text
from hybridrt.cache.plan import CachePlan
from hybridrt.engine.loading import draw_up
from hybridrt.report.memory import full_attention_bytes, memory_curves

MEMORIES = (16, 40, 64)
"""GiB that are left for the cache on a device once the weights are on it."""
LENGTHS = (2_048, 16_384, 131_072)

MAMBA = {"type": "mamba2", "num_heads": 128, "head_dim": 64, "state_size": 128}
ATTENTION = {
    "type": "attention",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
HYBRID = {
    "model_type": "hybrid_stack",
    "vocab_size": 100_352,
    "hidden_size": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131_072,
    "dtype": "bfloat16",
    "layers": 4 * [*[MAMBA] * 5, ATTENTION, *[MAMBA] * 4],
}


def plan_of(folder: Path, gibibytes: int) -> tuple[CachePlan, int, int]:
    """The plan for a cache of that size, the longest length, and the bytes of a hidden vector.

    `draw_up` makes the model with shapes and no numbers, so even a model far too large for this
    machine takes a moment.
    """
    config = EngineConfig(model=str(folder), cache_memory=gibibytes * 2**30)
    blueprint = draw_up(config, config_only=True)
    item_bytes = next(blueprint.model.parameters()).element_size()
    longest = blueprint.config.max_model_len
    assert longest is not None
    return blueprint.plan, longest, blueprint.model.config.hidden_size * item_bytes


def explain_costs(plan: CachePlan, longest: int, hidden_bytes: int) -> None:
    """What one user costs, and where full attention would be dearer."""
    print("1. What is paid")
    print(f"   for every token:  {plan.bytes_per_token:>14,} bytes (attention, MLA)")
    if plan.bytes_per_window_token:
        print(f"   ... in a window:  {plan.bytes_per_window_token:>14,} bytes, for its last tokens")
    print(f"   for every user:   {plan.bytes_per_sequence:>14,} bytes (states)")
    if plan.bytes_per_sequence and plan.bytes_per_token:
        even = plan.bytes_per_sequence // plan.bytes_per_token
        print(
            f"   A user's states weigh as much as {even:,} of its tokens. With conversations much"
        )
        print("   shorter than that, states are what you pay for; with longer ones, tokens.")
    curves = memory_curves(plan, longest, hidden_bytes)
    print(f"\n2. Beside full attention ({curves.full_attention_means})")
    print(f"   {'tokens':>9}  {'this model':>12}  {'full attention':>14}  {'times':>6}")
    full = curves.full_attention or curves.total
    for length, mine, other in zip(curves.lengths, curves.total, full, strict=True):
        if length >= 256:
            times = f"{other / mine:6.2f}"
            print(f"   {length:>9,}  {size_text(mine):>12}  {size_text(other):>14}  {times}")
    cheaper = [n for n, mine, other in zip(curves.lengths, curves.total, full, strict=True)
               if mine < other]  # fmt: skip
    if cheaper:
        print(
            f"   From some {cheaper[0]:,} tokens on this model is the cheaper one. Below that its"
        )
        print("   states, which are there from the first token, weigh more than they save.")


def explain_users(folder: Path, longest: int, hidden_bytes: int) -> None:
    """How many users of which length fit into which memory.

    The plan counts whole pages in whole slabs, so what it says fits does fit. Users who share a
    beginning (a system prompt, say) share its pages too, and then more fit than this.
    """
    lengths = sorted({min(length, longest) for length in LENGTHS})
    print("\n3. Users that fit at once, by the tokens of each")
    print(f"   {'cache':>6}  {'':>14}" + "".join(f"  {length:>9,}" for length in lengths))
    for memory in MEMORIES:
        plan, _, _ = plan_of(folder, memory)
        counts = [plan.sequences_of(length) for length in lengths]
        print(f"   {memory:>3}GiB  {'this model':>14}{_row(counts)}")
        per_token, _ = full_attention_bytes(plan, hidden_bytes)
        if per_token:
            others: list[int | None] = [plan.pool_bytes // (per_token * n) for n in lengths]
            print(f"   {'':>6}  {'full attention':>14}{_row(others)}")
        if memory == MEMORIES[-1] and len(lengths) > 1 and counts[0] and counts[-1]:
            longer, fewer = lengths[-1] // lengths[0], counts[0] / counts[-1]
            print(f"   {longer} times the length is {fewer:.1f} times fewer users. What is paid")
            print("   once a user does not grow with the length; what is paid for a token does.")
    print("\n   hybridrt plan MODEL --cache-memory 40GiB  says the same, layer by layer;")
    print("   hybridrt plot memory MODEL --out memory.pdf  draws it.")


def _row(counts: Sequence[int | None]) -> str:
    return "".join(f"  {'any' if count is None else format(count, ','):>9}" for count in counts)


def main() -> None:
    """Sizes the model that the command line names, or the built-in one."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        given = Path(sys.argv[1]) if len(sys.argv) > 1 else None
        if given is None:
            (folder / "config.json").write_text(json.dumps(HYBRID))
        elif given.is_dir():
            folder = given
        else:
            shutil.copy(given, folder / "config.json")
        plan, longest, hidden_bytes = plan_of(folder, MEMORIES[0])
        print(f"{given or 'A hybrid of 40 layers'}: up to {longest:,} tokens\n")
        explain_costs(plan, longest, hidden_bytes)
        explain_users(folder, longest, hidden_bytes)


if __name__ == "__main__":
    main()

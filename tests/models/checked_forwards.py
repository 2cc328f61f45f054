"""Runs models with every signature in the package checked: shapes, dtypes and types.

A program of its own, since the checks are put in while modules are imported.
"""

import sys
from pathlib import Path

import torch
from jaxtyping import install_import_hook

ROOT = Path(__file__).parents[2]
PLACES = [
    "hybridrt/batch.py",
    "hybridrt/kernels",
    "hybridrt/layers",
    "hybridrt/models",
    "hybridrt/cache",
    "hybridrt/engine/logprobs.py",
    "hybridrt/engine/runner.py",
    "hybridrt/engine/sampler.py",
]


def _modules() -> list[str]:
    """Those that say a shape. Of the others pyright has seen all that there is to see."""
    files = [file for place in PLACES for file in [ROOT / place, *(ROOT / place).rglob("*.py")]]
    saying = [file for file in files if file.is_file() and "jaxtyping" in file.read_text()]
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in saying]


CHECKED = _modules()
# An int may stand where a float is asked for, as for every type checker.
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"


SETTINGS = (("float32", "reference", "HND"), ("bfloat16", "numba", "NHD"))


def main(names: list[str]) -> None:
    """Prefills, chunks and decodes of each row, by the references and by the CPU's kernels."""
    install_import_hook(CHECKED, CHECKER)
    from hybridrt import SamplingParams
    from tests.harness.engines import open_llm

    params = SamplingParams(max_tokens=3, ignore_eos=True, logprobs=1, prompt_logprobs=0, top_k=5)
    torch.set_num_threads(1)
    for name in names:
        for dtype, backend, layout in SETTINGS:
            backends = {"attention_backend": backend, "state_backend": backend}
            choices = {"dtype": dtype, "kv_layout": layout, **backends}
            llm = open_llm(name, page_size=4, max_num_batched_tokens=16, **choices)
            llm.generate([[1], [2] * 7, [3] * 23], params)
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])

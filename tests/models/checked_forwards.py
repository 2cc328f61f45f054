"""Runs models with every signature in the package checked: shapes, dtypes and types.

A program of its own, since the checks are put in while modules are imported.
"""

import sys

import torch
from jaxtyping import install_import_hook

CHECKED = [
    "hybridrt.batch",
    "hybridrt.kernels",
    "hybridrt.layers",
    "hybridrt.models",
    "hybridrt.cache.page_table",
    "hybridrt.cache.pool",
    "hybridrt.cache.sequence_pages",
    "hybridrt.cache.slabs",
    "hybridrt.cache.spec",
    "hybridrt.engine.logprobs",
    "hybridrt.engine.runner",
    "hybridrt.engine.sampler",
    "hybridrt.engine.scheduler",
]
# An int may stand where a float is asked for, as for every type checker.
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"


PLAIN = ("float32", "reference", "HND")
FAST = ("bfloat16", "numba", "NHD")


def main(names: list[str]) -> None:
    """Prefills, chunks and decodes of each row by the CPU's kernels.

    Of those before `-` the references are run as well.
    """
    install_import_hook(CHECKED, CHECKER)
    from hybridrt import SamplingParams
    from tests.harness.engines import open_llm

    params = SamplingParams(max_tokens=3, ignore_eos=True, logprobs=1, prompt_logprobs=0, top_k=5)
    torch.set_num_threads(1)
    dash = names.index("-")
    rows = [(name, (PLAIN, FAST)) for name in names[:dash]]
    rows += [(name, (FAST,)) for name in names[dash + 1 :]]
    for name, settings in rows:
        for dtype, backend, layout in settings:
            backends = {"attention_backend": backend, "state_backend": backend}
            choices = {"dtype": dtype, "kv_layout": layout, **backends}
            llm = open_llm(name, page_size=4, max_num_batched_tokens=16, **choices)
            llm.generate([[1], [2] * 7, [3] * 23], params)
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])

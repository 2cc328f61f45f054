"""The shipped model answers as well with prefixes reused as without, and in the same tokens."""

from random import Random

import pytest

from hybridrt import LLM, SamplingParams
from hybridrt.demo.facts import KINDS
from tests.reuse.questions import questions

# It writes on behind the answer, into pages that others have read.
WRITES_ON = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


@pytest.mark.parametrize(
    ("memory", "least_hits"), [("64MiB", 0.8), ("2MiB", 0.2)], ids=["ample", "full"]
)
def test_questions_about_the_same_texts_are_answered_as_without_reuse(
    memory: str, least_hits: float
) -> None:
    """benchmarks/demo_reuse.py asks a thousand."""
    recalls = questions(Random(5), 6, 20)
    assert {recall.kind for recall in recalls} == set(KINDS)
    tokens: list[list[list[int]]] = []
    for reuses in (True, False):
        llm = LLM(
            "demo",
            device="cpu",
            cache_memory=memory,
            max_model_len=512,
            max_num_seqs=8,
            max_num_batched_tokens=256,
            page_size=4,
            poison_freed_pages=True,
            enable_prefix_caching=reuses,
        )
        outputs = llm.generate([recall.prompt for recall in recalls], WRITES_ON)
        hit_rate = llm.stats()["total"]["hit_rate"]
        assert (hit_rate > least_hits) == reuses
        pairs = zip(recalls, outputs, strict=True)
        wrong = sum(not o.outputs[0].text.startswith(recall.answer) for recall, o in pairs)
        assert wrong <= 0.02 * len(recalls)
        tokens.append([output.outputs[0].token_ids for output in outputs])
    assert tokens[0] == tokens[1]

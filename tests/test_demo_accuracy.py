"""The shipped model answers: a wrong state or a stale page would show as a wrong answer."""

from collections import Counter
from pathlib import Path
from random import Random

import hybridrt.demo
from hybridrt import LLM, SamplingParams
from hybridrt.demo.facts import KINDS, MAX_DISTANCE, recall_prompt

CHECKPOINT = Path(hybridrt.demo.__file__).parent
NUM_PROMPTS = 500


def test_at_least_98_percent_of_fresh_prompts_are_answered_exactly() -> None:
    """Through batches, chunks of prefills, preemption, and pages poisoned when freed."""
    rng = Random(20_000)
    recalls = [recall_prompt(rng) for _ in range(NUM_PROMPTS)]
    llm = LLM(
        CHECKPOINT,
        device="cpu",
        cache_memory="2MiB",
        max_model_len=1024,
        max_num_seqs=24,
        max_num_batched_tokens=512,
        page_size=4,
        poison_freed_pages=True,
    )
    # It writes on behind the answer, which fills the pool.
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    outputs = llm.generate([recall.prompt for recall in recalls], params)
    wrong = Counter(
        recall.kind
        for recall, output in zip(recalls, outputs, strict=True)
        if not output.outputs[0].text.startswith(recall.answer)
    )
    assert {recall.kind for recall in recalls} == set(KINDS)
    assert max(recall.distance for recall in recalls) > MAX_DISTANCE - 20
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    assert wrong.total() <= 0.02 * NUM_PROMPTS, wrong


def test_the_checkpoint_is_small_enough_to_ship() -> None:
    assert (CHECKPOINT / "model.safetensors").stat().st_size <= 4_000_000

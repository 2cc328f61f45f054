"""Completes a batch of prompts. Usage: python examples/generate.py [MODEL [PROMPT ...]]"""

import random
import sys

from hybridrt import LLM, SamplingParams
from hybridrt.demo.facts import recall_prompt

model, *prompts = sys.argv[1:] or ["demo"]
if not prompts:
    rng = random.Random(1)
    prompts = [recall_prompt(rng, distance=100).prompt for _ in range(4)]

llm = LLM(model)
greedy = SamplingParams(temperature=0, max_tokens=16, stop=("\n",), logprobs=1)
for output in llm.generate(prompts, greedy):
    completion = output.outputs[0]
    logprob = completion.cumulative_logprob or 0.0
    end = (output.prompt or "")[-16:]
    print(f"... {end!r} -> {completion.text!r} (log probability {logprob:.3f})")
print(llm.plan.explain())

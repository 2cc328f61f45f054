"""The loop under `generate`: requests come and go while others run.

Usage: python examples/online.py [MODEL]
"""

import random
import sys

from hybridrt import LLM, SamplingParams
from hybridrt.demo.facts import recall_prompt

model = sys.argv[1] if len(sys.argv) > 1 else "demo"
rng = random.Random(2)
prompts = [recall_prompt(rng, distance=60).prompt for _ in range(6)]

# A small cache and a small step, to see requests wait, and prompts run in chunks.
llm = LLM(model, cache_memory="2MiB", max_num_seqs=3, max_num_batched_tokens=64)
endless = llm.add_request("now=", SamplingParams(max_tokens=None, ignore_eos=True))
params = SamplingParams(temperature=0, max_tokens=8, stop=("\n",))

step = 0
while llm.has_unfinished:
    if prompts and step % 2 == 0:
        name = llm.add_request(prompts.pop(), params)
        print(f"step {step}: {name} arrives")
    for output in llm.step():
        if output.finished:
            print(f"step {step}: {output.request_id} is done: {output.outputs[0].text!r}")
    if step == 50:
        llm.abort(endless)
        print(f"step {step}: {endless} is aborted")
    step += 1
print(f"{step} steps, {llm.engine.num_running} running, {llm.engine.num_waiting} waiting")

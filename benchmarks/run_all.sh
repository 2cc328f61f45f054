#!/usr/bin/env bash
# Makes every table in benchmarks/results again, one command a table. Takes hours: run it on a
# machine that does nothing else, in an environment with the extra `test`.
#
#     PEERS=DIR PEERS_PYTHON=EXE VLLM_PYTHON=EXE LLAMA_CPP_PYTHON=EXE \
#         benchmarks/run_all.sh [NAME ...]
#
# PEERS is the folder of the harness around vLLM's planner, cache and scheduler, PEERS_PYTHON the
# Python of an environment that has that vLLM, VLLM_PYTHON of one that has vLLM for CPUs,
# LLAMA_CPP_PYTHON of one that has llama-cpp-python; what needs one of them is left out without
# it. With NAMEs only those tables, such as `compare soak`.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1
results=benchmarks/results
names=" $* "

table() { # NAME COMMAND ...
    if [ "$names" = "  " ] || [[ "$names" == *" $1 "* ]]; then
        echo "== $1" >&2
        "${@:2}"
    fi
}

# A CPU of another kind than that of compare.md has a file of its own: COMPARE=compare_amx.
# Six models beside transformers, vLLM and llama.cpp: prefill and decode, and the machine's floor.
table compare python benchmarks/compare.py ${VLLM_PYTHON:+--vllm "$VLLM_PYTHON"} \
    ${LLAMA_CPP_PYTHON:+--llama-cpp "$LLAMA_CPP_PYTHON"} --out "$results/${COMPARE:-compare}.md"

# Ratios of small models to plain torch, for benchmarks/regression.py to hold against.
table regression python benchmarks/regression.py --update

# Loading a checkpoint of 2 GB: peak memory, and seconds beside safetensors.
table loading python benchmarks/loading.py --json $results/loading.json --md $results/loading.md

# Time to the first token with and without a hit, and what the prefix cache costs without hits.
table first_token python benchmarks/first_token.py --models demo bamba --runs 4

# The demo with and without reuse.
table demo_reuse env OMP_NUM_THREADS=1 python benchmarks/demo_reuse.py

# 20,000 requests on a full pool.
table soak env OMP_NUM_THREADS=1 python benchmarks/soak.py

# A map of the pool at every step, and counting for `llm.stats_rows()`.
table cache_map python benchmarks/cache_map.py --json $results/cache_map.json \
    --md $results/cache_map.md

# What recording states and statistics adds to a prefill.
table tracing env OMP_NUM_THREADS=1 python benchmarks/tracing.py

# Error of every model's log-probabilities, and docs/models.md with it.
table models python -m benchmarks.models_table --errors

# What caches of eight bits cost the demo: prints the numbers that cache_dtypes.md has.
table cache_dtypes python -m training.evaluate hybridrt/demo --prompts 3000 --seed 1 \
    --state-dtype float32 bfloat16 --kv-cache-dtype auto fp8_e4m3 int8 --chunk 2048 16

# What weights of 8 and 4 bits gain, and cost the demo: prints what quantisation.md has.
table quantisation python -m training.evaluate hybridrt/demo --prompts 1000 --seed 1 \
    --dtype bfloat16 --quantization none int8 int4
table quantisation python benchmarks/quantisation.py

# On a GPU: models of released geometries, and kernels beside others'.
if python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    table gpu python benchmarks/gpu.py --against llama nemotron_h jamba --out $results/gpu.json
    table gpu_kernels python benchmarks/gpu_kernels.py --out $results/gpu_kernels.json
fi

# What recorded decode steps gain: prints what taped_decode.md has.
table taped_decode python benchmarks/taped_decode.py

# How steps grow with their context, and prefills: prints what long_context.md has.
table long_context python benchmarks/long_context.py

# How fast memory is read, by the order in which it is asked for: prints what read_order.md has.
table read_order python benchmarks/read_order.py

# Where the processor has AMX, its products by registers: prints what tile_registers.md has.
if python -c 'import sys, torch; sys.exit(not torch.cpu._init_amx())'; then
    table tile_registers python benchmarks/tile_registers.py
fi

# What compiled decode steps gain, and cost before the first: prints what compile.md has.
table compile env OMP_NUM_THREADS=1 python benchmarks/compiled_decode.py

# What the prefix cache finds, beside the ideal, a yardstick and vLLM; the host's time of a step.
if [ -n "${PEERS:-}" ]; then
    table reuse python benchmarks/reuse.py --peers "$PEERS" \
        ${PEERS_PYTHON:+--peers-python "$PEERS_PYTHON"}
fi

# Planner, cache and scheduler beside vLLM's.
if [ -n "${PEERS:-}" ] && [ -n "${PEERS_PYTHON:-}" ]; then
    table versus_vllm python benchmarks/versus_vllm.py --peers "$PEERS" \
        --peers-python "$PEERS_PYTHON"
fi

"""Which rows of the oracle's table stand for others in tests of many models."""

from tests.oracle import TINY

MODEL_TYPES = tuple(dict.fromkeys(row.model_type for row in TINY))

FIRST_ROWS = [next(row.name for row in TINY if row.model_type == model) for model in MODEL_TYPES]

MORE_ROWS = (
    "llama-longrope-long",  # sequences that grow out of one rotary table into the other
    "deepseek_v3-odd-sizes",
    "bamba-limited-time-steps",
    "hybrid_stack-attention-of-unlike-geometries",
    "hybrid_stack-latent-attention-of-unlike-geometries",
    "hybrid_stack-mamba1-of-unlike-geometries",
    "hybrid_stack-mamba2-of-unlike-geometries",
    "hybrid_stack-states-of-unlike-geometries",
    "hybrid_stack-sliding-windows",
    "hybrid_stack-shared-caches",
    "hybrid_stack-every-kind-of-cache",
)
"""Of sizes, and of kinds of cache side by side, that no first row has."""

ROWS = [*FIRST_ROWS, *MORE_ROWS]

OF_EACH_CACHE = (
    "llama-grouped-heads",
    "deepseek_v2-greedy-routing",
    "mamba-tied-embeddings",
    "mamba2-two-groups",
    "jamba-experts-every-second-layer",
    "bamba-attention-in-the-middle",
    "hybrid_stack-every-mixer",
    "minimax_m3_vl_text-three-blocks-of-four-tokens",
    "gpt_neox-side-by-side",
    "olmo3-every-fourth-layer-without-a-window",
    "ministral-windows",
    "ministral3-queries-that-grow",
    "mimo_v2_flash-two-windows-between",
    "gemma4_text-embeddings-for-each-layer",
    "recurrent_gemma-two-recurrent-blocks-to-one-of-attention",
    "llama4_text-three-chunked-layers-to-one-full",
    "inkling_mm_model-full-attention-between-windows",
    "inkling2-windows-and-full-attention-by-turns",
    "axk2-one-dense-layer",
    "deepseek_v4-every-kind-of-layer",
    "hy_v4-two-layers-of-four-select",
    "mistral_large4-one-layer-without-positions",
    "deepseek_v32-twelve-of-the-tokens-before",
    "glm_moe_dsa-every-second-layer-selects",
    "glm5_next-attention-in-the-middle",
    "dots3_note_text-windows-between-indexed-layers",
    "zamba2-one-block-used-twice",
    "zamba-the-block-used-twice",
    "qwen3_next-attention-in-the-middle",
    "qwen4_exp_text-three-blocks-of-four-tokens",
    "lfm2-attention-in-the-middle",
    "lfm3-full-and-sliding-attention",
    "kimi_linear-attention-in-the-middle",
    "bailing_hybrid-attention-in-the-middle",
    "olmo_hybrid-attention-in-the-middle",
    "minimax-attention-in-the-middle",
    "zaya-attention-to-everything",
    "xlstm-matrix-memories",
    "rwkv-halved-every-two-layers",
)
"""The first of each stack of caches, for what a cache does whatever a model computes besides.

In every other row layers of the same classes keep the same states of the same kinds.
"""

CACHE_ROWS = [*OF_EACH_CACHE, *MORE_ROWS]

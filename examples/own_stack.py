"""A stack of layers of one's own, with random weights: no model code to write.

The config lists the layers; the runtime plans their cache, loads them and runs them.
Usage: python examples/own_stack.py [FOLDER to keep the checkpoint in]
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

from hybridrt import LLM, EngineConfig, SamplingParams
from hybridrt.engine.loading import draw_up
from hybridrt.engine.weights import parameter_slots

CONFIG = {
    "model_type": "hybrid_stack",
    "vocab_size": 1000,
    "hidden_size": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
    "dtype": "float32",
    "layers": [
        {"type": "mamba2", "num_heads": 4, "head_dim": 32, "state_size": 16},
        {"type": "mlp", "intermediate_size": 128},
        {
            "type": "mla",
            "num_attention_heads": 4,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
        },
        {"type": "moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    ],
}


def write_checkpoint(folder: Path) -> None:
    """Writes the config, and small random numbers for every weight that it asks for."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    model = draw_up(EngineConfig(model=str(folder))).model
    torch.manual_seed(0)
    weights = {slot.names[0]: 0.05 * torch.randn(slot.shape) for slot in parameter_slots(model, ())}
    save_file(weights, folder / "model.safetensors")


with TemporaryDirectory() as temporary:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
    write_checkpoint(folder)
    llm = LLM(str(folder), cache_memory="16MiB")
    print(llm.plan.explain())
    # No tokenizer, so prompts are token ids.
    for output in llm.stream([5, 6, 7], SamplingParams(max_tokens=8, seed=0)):
        print(output.outputs[0].token_ids)

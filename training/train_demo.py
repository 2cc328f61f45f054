"""Trains the demo checkpoint: a small `hybrid_stack` that recalls facts.

    OMP_NUM_THREADS=1 python -m training.train_demo --minutes 60 --run training/runs/demo
    python -m training.train_demo --run training/runs/demo --export hybridrt/demo

Interrupted runs resume from the last checkpoint in `--run`.
"""

import argparse
import json
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hybridrt.demo.facts import KINDS, Recall, recall_prompt, training_text
from training.dense import DenseStack

EOS = 256
HIDDEN = 128
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
CONFIG: dict[str, Any] = {
    "model_type": "hybrid_stack",
    "architectures": ["HybridStackForCausalLM"],
    "vocab_size": 257,
    "hidden_size": HIDDEN,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "dtype": "float32",
    "layers": [
        {"type": "mamba1", "intermediate_size": 128, "state_size": 8, "time_step_rank": 8},
        {"type": "mamba2", "num_heads": 4, "head_dim": 32, "state_size": 16},
        {
            "type": "attention",
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5},
        },
        {"type": "mamba2", "num_heads": 4, "head_dim": 32, "state_size": 16},
        {
            "type": "mla",
            "num_attention_heads": 4,
            "kv_lora_rank": 64,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 8,
            "v_head_dim": 32,
            "rope_parameters": ROPE,
        },
        {"type": "mamba1", "intermediate_size": 128, "state_size": 8, "time_step_rank": 8},
        {"type": "mlp", "intermediate_size": 256},
    ],
}


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum: sequences of one length, up to a share of the run."""

    until: float
    tokens: int
    batch: int


STAGES = (Stage(0.12, 96, 64), Stage(0.3, 256, 24), Stage(1.0, 576, 12))


def encode(text: str) -> np.ndarray:
    """Bytes as token ids."""
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)


def make_batch(rng: random.Random, stage: Stage) -> tuple[Tensor, Tensor]:
    """Token ids `[batch, tokens]`, and how much each counts as a target."""
    ids = np.stack([encode(training_text(rng, stage.tokens)) for _ in range(stage.batch)])
    asked = ids == ord("?")
    weight = np.full(ids.shape, 0.02, dtype=np.float32)
    for offset, share in ((1, 2.0), (2, 1.0), (3, 1.0), (4, 0.1)):
        weight[:, offset:][asked[:, :-offset]] = share
    return torch.from_numpy(ids), torch.from_numpy(weight)


def initialise(model: DenseStack) -> None:
    """Small embeddings, fan-in scaled projections, step sizes from 1e-3 to 1e-1."""
    for name, p in model.named_parameters():
        if "embed_tokens" in name:
            torch.nn.init.normal_(p, std=0.05)
        elif p.ndim == 2 and "A_log" not in name:
            torch.nn.init.normal_(p, std=p.shape[1] ** -0.5)
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                p.data *= 0.5
        elif name.endswith(("dt_bias", "dt_proj.bias")):
            dt = torch.exp(torch.empty_like(p).uniform_(math.log(1e-3), math.log(1e-1)))
            p.data = dt + torch.log(-torch.expm1(-dt))


def loss_of(model: DenseStack, ids: Tensor, weight: Tensor) -> tuple[Tensor, float]:
    """Weighted cross-entropy, and the share of answer digits that are right."""
    logits = model(ids[:, :-1])
    targets, weight = ids[:, 1:], weight[:, 1:]
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    digits = weight >= 1.0
    right = (logits.argmax(-1) == targets)[digits].float().mean().item()
    return (losses * weight.flatten()).sum() / weight.sum(), right


@torch.no_grad()
def exact_match(model: DenseStack, prompts: int, seed: int) -> list[tuple[Recall, bool]]:
    """Fresh prompts, and whether the whole greedy answer to each is right.

    Teacher forcing: an answer is right if every one of its tokens is the argmax
    after the right ones before it, which is what greedy decoding would give.
    """
    rng = random.Random(f"fresh/{seed}")
    results = []
    for _ in range(prompts):
        recall = recall_prompt(rng)
        ids = torch.from_numpy(encode(recall.prompt + recall.answer))[None]
        answer = len(recall.answer)
        guess = model(ids[:, :-1])[0, -answer:].argmax(-1)
        results.append((recall, bool((guess == ids[0, -answer:]).all())))
    return results


def learning_rate(progress: float, peak: float) -> float:
    """Linear warm-up over 2 %, then a cosine to 2 % of the peak."""
    if progress < 0.02:
        return peak * (0.02 + progress / 0.02)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))


def save(path: Path, **state: Any) -> None:
    """Writes a checkpoint whole or not at all."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def train(run: Path, minutes: float, peak: float, seed: int) -> None:
    """Trains for `minutes` of computing in all, resuming from `run` if it was begun."""
    torch.manual_seed(seed)
    torch.set_flush_denormal(True)
    model = DenseStack(CONFIG)
    initialise(model)
    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=peak,
        betas=(0.9, 0.98),
    )
    spent, step = 0.0, 0
    if (run / "last.pt").exists():
        saved = torch.load(run / "last.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        spent, step = saved["spent"], saved["step"]
    run.mkdir(parents=True, exist_ok=True)
    loss_mean, right_mean = 0.0, 0.0
    while spent < 60 * minutes:
        began = time.perf_counter()
        progress = spent / (60 * minutes)
        stage = next(stage for stage in STAGES if progress < stage.until)
        rng = random.Random(f"{seed}/{step}")
        loss, right = loss_of(model, *make_batch(rng, stage))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(progress, peak)
        optimizer.step()
        step += 1
        loss_mean += (loss.item() - loss_mean) * max(0.02, 1 / step)
        right_mean += (right - right_mean) * max(0.02, 1 / step)
        spent += time.perf_counter() - began
        if step % 50 == 0:
            print(
                f"{spent / 60:6.1f} min  step {step:6}  {stage.tokens:4} tokens  "
                f"loss {loss_mean:.4f}  digits right {right_mean:.4f}",
                flush=True,
            )
        if step % 300 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(run / "last.pt", **state, spent=spent, step=step)
            results = exact_match(model, 80, seed=step)
            for kind in KINDS:
                right_ones = [ok for recall, ok in results if recall.kind == kind]
                print(kind, f"{sum(right_ones)} of {len(right_ones)} exact", flush=True)
    save(
        run / "last.pt",
        model=model.state_dict(),
        optimizer=optimizer.state_dict(),
        spent=spent,
        step=step,
    )


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, default=Path("training/runs/demo"))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--peak", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train(arguments.run, arguments.minutes, arguments.peak, arguments.seed)


if __name__ == "__main__":
    main()

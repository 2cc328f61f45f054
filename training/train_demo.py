"""Trains the demo checkpoint: a small `hybrid_stack` that recalls facts.

    OMP_NUM_THREADS=1 python -m training.train_demo --minutes 60 --run training/runs/demo
    python -m training.train_demo --run training/runs/demo --export hybridrt/demo

Interrupted runs resume from the last checkpoint in `--run`.
"""

import argparse
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

from hybridrt.demo.facts import CLOCKS, KINDS, Recall, kind_of, recall_prompt, training_text
from training.dense import DenseStack

EOS = 256
HIDDEN = 128
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
CONFIG: dict[str, Any] = {
    "model_type": "hybrid_stack",
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
    """A part of the curriculum."""

    steps: int
    tokens: int
    batch: int
    whole: float
    """The share of rows in which all layers remember."""
    duties: bool
    """Whether a layer learns its own duty only, and not to know the others'."""
    mixed: bool
    """Whether several kinds of layers, not one only, remember in the other rows."""


STAGES = (
    Stage(650, 96, 48, 0.0, False, False),
    Stage(600, 256, 20, 0.1, True, False),
    Stage(550, 576, 10, 0.4, True, False),
    Stage(900, 576, 10, 0.4, True, True),
)


@dataclass(frozen=True)
class Batch:
    """Token ids, what counts as a target, and which layers remember in which row."""

    ids: Tensor
    known: Tensor
    """How much the true token counts, as the next one, at each position."""
    unknown: Tensor
    """How much it counts that all digits are equally likely there."""
    memory: Tensor
    kinds: Tensor
    """The index in `KINDS` of what is to be known, at its question mark; elsewhere -1."""
    rows: list[tuple[str, ...]]
    """Which kinds of layers remember in each row."""


def encode(text: str) -> np.ndarray:
    """Bytes as token ids."""
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)


def asked_kinds(ids: np.ndarray) -> np.ndarray:
    """For every `?`: the index in `KINDS` of the name before it; elsewhere -1."""
    kinds = np.full(ids.shape, -1)
    for row, position in zip(*np.nonzero(ids == ord("?")), strict=True):
        name = bytes(ids[row, position - 3 : position].tolist()).decode()
        kinds[row, position] = KINDS.index(kind_of(name))
    return kinds


def remembering(rng: random.Random, stage: Stage) -> list[tuple[str, ...]]:
    """The kinds of layers that remember, for each row."""
    shift = rng.randrange(len(KINDS))
    rows = []
    for row in range(stage.batch):
        one = KINDS[(row + shift) % len(KINDS)]
        also = [kind == one or (stage.mixed and rng.random() < 0.5) for kind in KINDS]
        whole = rng.random() < stage.whole
        rows.append(tuple(kind for kind, on in zip(KINDS, also, strict=True) if on or whole))
    return rows


def clock_of(row: tuple[str, ...], rng: random.Random) -> str:
    """What the text of a row is about: the clock that it remembers, if it does."""
    if len(row) == 1:
        return next((clock for clock, kind in CLOCKS.items() if kind in row), "")
    return rng.choice(("", *CLOCKS))


def make_batch(rng: random.Random, stage: Stage) -> Batch:
    """Rows in which one kind of layer remembers and must answer its questions, and no others.

    The answers to other kinds' questions are to be unknown in such a row, which
    is what gives each kind of layer a duty that no other one takes over.
    """
    rows = remembering(rng, stage)
    ids = np.stack([encode(training_text(rng, stage.tokens, clock_of(row, rng))) for row in rows])
    types = [layer["type"] for layer in CONFIG["layers"]]
    memory = [[float(kind in row) for row in rows] for kind in types]
    kinds = asked_kinds(ids)
    duty = np.array([[kind in row for kind in (*KINDS, "")] for row in rows])
    if not stage.duties:
        duty[:, :2] = True
        duty[[row[0] in CLOCKS.values() for row in rows], :2] = False
        duty[[row[0] not in CLOCKS.values() for row in rows], 2:-1] = True
    mine = (kinds >= 0) & np.take_along_axis(duty, kinds, axis=1)
    others = (kinds >= 0) & ~mine
    known = np.full(ids.shape, 0.02, dtype=np.float32)
    unknown = np.zeros(ids.shape, dtype=np.float32)
    # A clock is asked less often than a name.
    share = np.where(kinds >= KINDS.index("mamba1"), 2.0, 1.0)
    for offset, weight in enumerate((2.0, 1.0, 1.0)):
        before, at = np.s_[:, : ids.shape[1] - offset], np.s_[:, offset:]
        known[at][mine[before]] = (weight * share)[before][mine[before]]
        known[at][others[before]] = 0.0
        unknown[at][others[before]] = 0.3 if stage.duties else 0.0
    kinds = np.where(mine, kinds, -1)
    tensors = map(torch.from_numpy, (ids, known, unknown))
    return Batch(*tensors, torch.tensor(memory), torch.from_numpy(kinds), rows)


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


def loss_of(model: DenseStack, batch: Batch) -> tuple[Tensor, list[float]]:
    """The weighted cross-entropy, and per kind the share of right first digits."""
    logits = model(batch.ids, batch.memory)[:, :-1]
    targets, known, unknown = batch.ids[:, 1:], batch.known[:, :-1], batch.unknown[:, :-1]
    log_p = logits.log_softmax(-1)
    true = log_p.gather(-1, targets[..., None])[..., 0]
    any_digit = log_p[..., ord("0") : ord("9") + 1].mean(-1)
    correct = (logits.argmax(-1) == targets).float()
    kinds = batch.kinds[:, :-1]
    right = []
    for rows in (KINDS, *((kind,) for kind in KINDS)):
        row = torch.tensor([remembering == rows for remembering in batch.rows])
        right.append(correct[row][kinds[row] >= 0].mean().item())
    loss = -(known * true + unknown * any_digit).sum() / (known + unknown).sum()
    return loss, right


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


def stage_at(step: int) -> Stage:
    """The stage that a step belongs to."""
    for stage in STAGES:
        if step < stage.steps:
            return stage
        step -= stage.steps
    raise ValueError(f"step {step} after the end")


def train(run: Path, peak: float, seed: int) -> None:
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
    loss_mean, first, rights = 0.0, step, []
    total = sum(stage.steps for stage in STAGES)
    while step < total:
        began = time.perf_counter()
        progress = step / total
        stage = stage_at(step)
        rng = random.Random(f"{seed}/{step}")
        loss, right = loss_of(model, make_batch(rng, stage))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(progress, peak)
        optimizer.step()
        step += 1
        loss_mean += (loss.item() - loss_mean) * max(0.02, 1 / (step - first))
        rights.append(right)
        spent += time.perf_counter() - began
        if step % 50 == 0:
            print(
                f"{spent / 60:6.1f} min  step {step:6}  {stage.tokens:4} tokens  "
                f"loss {loss_mean:.4f}  first digits right {np.nanmean(rights, axis=0).round(3)}",
                flush=True,
            )
            rights = []
        if step % 300 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(run / "last.pt", **state, spent=spent, step=step)
            results = exact_match(model, 80, seed=step)
            for kind in KINDS:
                right_ones = [ok for recall, ok in results if recall.kind == kind]
                print("   ", kind, f"{sum(right_ones)} of {len(right_ones)} exact", flush=True)
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
    parser.add_argument("--peak", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train(arguments.run, arguments.peak, arguments.seed)


if __name__ == "__main__":
    main()

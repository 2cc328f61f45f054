"""Trains the demo checkpoint, a small `hybrid_stack` that recalls facts, and exports it.

    OMP_NUM_THREADS=1 python -m training.train_demo --run training/runs/demo --export hybridrt/demo
    python -m training.evaluate hybridrt/demo

An interrupted run resumes from the last checkpoint in `--run`; a finished one is
only exported. The 3,800 steps took about 50 minutes on one core of a 2-core AMD
EPYC (Zen 5) shared with other jobs; hybridrt/demo/README.md says in what the
shipped checkpoint's run differed.
"""

import argparse
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from hybridrt.demo.facts import KINDS
from training.batches import TOTAL_STEPS, Batch, make_batch, stage_at
from training.demo_model import CONFIG, initialise
from training.dense import DenseStack
from training.evaluate import exact_match, fresh_prompts
from training.export import export

LOG_EVERY, SAVE_EVERY = 50, 300
NOT_KNOWN = ord("?")


@dataclass
class Run:
    """What a checkpoint holds."""

    model: DenseStack
    optimizer: torch.optim.Optimizer
    step: int = 0

    def save(self, path: Path) -> None:
        """Writes the checkpoint whole or not at all."""
        states = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        partial = path.with_suffix(".partial")
        torch.save({**states, "step": self.step}, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Goes on from a checkpoint."""
        saved: dict[str, Any] = torch.load(path, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step = saved["step"]


def new_run(seed: int, peak: float) -> Run:
    """A model as it starts, and AdamW that decays matrices only."""
    torch.manual_seed(seed)
    model = DenseStack(CONFIG)
    initialise(model)
    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [
        {"params": decayed, "weight_decay": 0.01},
        {"params": others, "weight_decay": 0.0},
    ]
    return Run(model, torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98)))


def learning_rate(step: int, peak: float) -> float:
    """Linear warm-up over 2 % of the steps, then a cosine to 2 % of the peak."""
    progress = step / TOTAL_STEPS
    if progress < 0.02:
        return peak * (0.02 + progress / 0.02)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))


def loss_of(model: DenseStack, batch: Batch) -> tuple[Tensor, list[float]]:
    """The weighted cross-entropy, and the share of right first digits.

    The shares are those of the rows in which all kinds of layers remember, and
    of the rows in which only one does, for each of `KINDS`.
    """
    logits = model(batch.ids, batch.memory)[:, :-1]
    targets, known, unknown = batch.ids[:, 1:], batch.known[:, :-1], batch.unknown[:, :-1]
    log_p = logits.log_softmax(-1)
    true = log_p.gather(-1, targets[..., None])[..., 0]
    loss = -(known * true + unknown * log_p[..., NOT_KNOWN]).sum() / (known + unknown).sum()
    correct, asked = logits.argmax(-1) == targets, batch.kinds[:, :-1] >= 0
    right = []
    for rows in (KINDS, *((kind,) for kind in KINDS)):
        chosen = torch.tensor([row == rows for row in batch.rows])
        right.append(correct[chosen][asked[chosen]].float().mean().item())
    return loss, right


def train_step(run: Run, seed: int, peak: float) -> tuple[float, list[float]]:
    """One step of the optimizer, on a batch that depends on seed and step only."""
    batch = make_batch(random.Random(f"{seed}/{run.step}"), stage_at(run.step))
    loss, right = loss_of(run.model, batch)
    run.optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    for group in run.optimizer.param_groups:
        group["lr"] = learning_rate(run.step, peak)
    run.optimizer.step()
    run.step += 1
    return loss.item(), right


def train(directory: Path, seed: int, peak: float) -> DenseStack:
    """Trains to the last step, from the checkpoint in `directory` if there is one."""
    # Decayed states become denormal numbers, on which a CPU is slow.
    torch.set_flush_denormal(True)
    directory.mkdir(parents=True, exist_ok=True)
    run, last = new_run(seed, peak), directory / "last.pt"
    if last.exists():
        run.load(last)
    columns = (BarColumn(), TextColumn("{task.completed} of {task.total} steps"))
    with Progress(*columns, TimeRemainingColumn(), TextColumn("{task.description}")) as progress:
        task = progress.add_task("", total=TOTAL_STEPS, completed=run.step)
        losses, rights = [], []
        while run.step < TOTAL_STEPS:
            loss, right = train_step(run, seed, peak)
            losses.append(loss)
            rights.append(right)
            progress.update(task, completed=run.step, description=f"loss {loss:.3f}")
            if run.step % LOG_EVERY == 0:
                progress.console.print(summary(run.step, losses, rights))
                losses, rights = [], []
            if run.step % SAVE_EVERY == 0 or run.step == TOTAL_STEPS:
                run.save(last)
                progress.console.print(exam(run.model, run.step))
    return run.model


def summary(step: int, losses: list[float], rights: list[list[float]]) -> str:
    """One line of the log."""
    names = ("all remember", *KINDS)
    # A kind may not have been asked about at all, which counts as nothing right.
    means = [
        np.mean(column[~np.isnan(column)]) if not np.isnan(column).all() else 0.0
        for column in np.array(rights).T
    ]
    shares = "  ".join(f"{name} {mean:.3f}" for name, mean in zip(names, means, strict=True))
    return f"step {step}  loss {np.mean(losses):.4f}  first digits right: {shares}"


def exam(model: DenseStack, seed: int) -> str:
    """Exact answers to a few fresh prompts."""
    results = exact_match(model, fresh_prompts(80, seed))
    right = {kind: [ok for recall, ok in results if recall.kind == kind] for kind in KINDS}
    return "  exact: " + "  ".join(f"{kind} {sum(r)} of {len(r)}" for kind, r in right.items())


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("training/runs/demo"))
    parser.add_argument("--export", type=Path, help="where to write the finished checkpoint")
    parser.add_argument("--peak", type=float, default=3e-3, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    model = train(arguments.run, arguments.seed, arguments.peak)
    if arguments.export is not None:
        export(model, CONFIG, arguments.export)


if __name__ == "__main__":
    main()

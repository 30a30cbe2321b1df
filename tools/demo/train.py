"""Trains the demo model: next-token first, then D2F-style masked diffusion. Resumable."""

from __future__ import annotations

import argparse
import copy
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from .corpus import GENERATED, Corpus
from .model import DreamNetwork, Shape, load_network
from .objective import (
    KIND_SHARES,
    KINDS,
    Batch,
    Sample,
    Specials,
    collate,
    fill_blocks,
    masked_sample,
    next_token_sample,
)

POOL = 4
EXTRA_BLOCK_SHARE = 0.15


@dataclass(frozen=True)
class Recipe:
    """Everything a run depends on besides the corpus."""

    steps: int = 10_000
    causal_steps: int = 2_000
    batch_size: int = 64
    learning_rate: float = 3e-3
    weight_decay: float = 0.02
    warm_up: int = 100
    decay_share: float = 0.25
    ema_decay: float = 0.998
    seed: int = 7
    mix: dict[str, float] = field(default_factory=lambda: dict.fromkeys(GENERATED, 1.0))


def learning_rate_factor(recipe: Recipe, step: int) -> float:
    """Warm-up, then constant, then linear to 2 % over the last `decay_share` of the steps."""
    decay_steps = max(1, int(recipe.steps * recipe.decay_share))
    left = (recipe.steps - step) / decay_steps
    return min(1.0, (step + 1) / recipe.warm_up, max(left, 0.02))


def make_samples(
    recipe: Recipe, corpus: Corpus, specials: Specials, pool: int, causal: bool
) -> list[Sample]:
    """The POOL * batch_size sequences of one pool, drawn from (seed, pool) alone."""
    rng = np.random.default_rng([recipe.seed, pool])
    members = [np.flatnonzero(corpus.tasks == number) for number in range(len(GENERATED))]
    shares = np.array([recipe.mix.get(task, 0.0) for task in GENERATED])
    shares = np.where([len(group) > 0 for group in members], shares, 0.0)
    tasks = rng.choice(len(GENERATED), POOL * recipe.batch_size, p=shares / shares.sum())
    samples = []
    for task in tasks:
        prompt, answer = corpus.problem(int(rng.choice(members[task])))
        extra = int(rng.random() < EXTRA_BLOCK_SHARE)
        filled = fill_blocks(answer.tolist(), specials.eos, extra)
        if causal:
            samples.append(next_token_sample(prompt, filled, specials))
        else:
            kind = KINDS[rng.choice(len(KINDS), p=KIND_SHARES)]
            samples.append(masked_sample(rng, prompt, filled, specials, kind))
    return samples


def batches(recipe: Recipe, corpus: Corpus, specials: Specials, start: int) -> Iterator[Batch]:
    """Batches from step `start` on; a pool is cut by length, its batches come in random order."""
    for pool in range(start // POOL, recipe.steps // POOL + 1):
        causal = pool * POOL < recipe.causal_steps
        samples = make_samples(recipe, corpus, specials, pool, causal)
        samples.sort(key=lambda sample: len(sample.ids))
        order = np.random.default_rng([recipe.seed, pool, 1]).permutation(POOL)
        for turn, part in enumerate(order):
            if pool * POOL + turn >= start:
                chosen = samples[part * recipe.batch_size : (part + 1) * recipe.batch_size]
                yield collate(chosen, specials)


def batch_loss(net: DreamNetwork, batch: Batch) -> Tensor:
    """Weighted mean cross-entropy over the rows with a weight, nats per token."""
    rows = torch.from_numpy(batch.weights) > 0
    with torch.autocast("cpu", torch.bfloat16):
        hidden = net.hidden(
            torch.from_numpy(batch.ids),
            torch.from_numpy(batch.attend),
            torch.from_numpy(batch.positions),
        )
        logits = net.lm_head(hidden[rows])
    losses = functional.cross_entropy(
        logits.float(), torch.from_numpy(batch.targets)[rows], reduction="none"
    )
    weights = torch.from_numpy(batch.weights)[rows]
    return (losses * weights).sum() / weights.sum()


class Trainer:
    """Network, averaged weights and optimisers, with save and load."""

    def __init__(self, recipe: Recipe, shape: Shape) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.step = recipe, 0
        self.net = DreamNetwork(shape)
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in self.net.named_parameters():
            inner = parameter.ndim == 2 and ".layers." in name
            (matrices if inner else others).append(parameter)
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices,
                lr=recipe.learning_rate,
                weight_decay=recipe.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(
                others, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
            ),
        ]

    def update(self, batch: Batch) -> float:
        """One optimiser step; returns the loss."""
        loss = batch_loss(self.net, batch)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        rate = self.recipe.learning_rate * learning_rate_factor(self.recipe, self.step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        keep = min(self.recipe.ema_decay, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.average.parameters()), list(self.net.parameters()), 1 - keep
            )
        self.step += 1
        return loss.item()

    def save(self, path: Path) -> None:
        """Writes the whole state to a temporary file and renames it."""
        state = {
            "step": self.step,
            "shape": vars(self.net.shape),
            "net": self.net.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Continues from a file that `save` wrote."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        self.step = state["step"]
        self.net.load_state_dict(state["net"])
        self.average.load_state_dict(state["average"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def train(
    trainer: Trainer,
    corpus: Corpus,
    specials: Specials,
    out: Path,
    save_seconds: float = 180.0,
    pause_file: Path | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Runs to `recipe.steps` or until `stop` is set; saves out/state.pt on the way and at the end.

    While `pause_file` exists the loop waits.
    """
    out.mkdir(parents=True, exist_ok=True)
    started = saved = time.monotonic()
    losses: list[float] = []
    with (out / "log.jsonl").open("a") as log:
        for batch in batches(trainer.recipe, corpus, specials, trainer.step):
            if trainer.step >= trainer.recipe.steps or (stop is not None and stop.is_set()):
                break
            while pause_file is not None and pause_file.exists():
                time.sleep(0.2)
            losses.append(trainer.update(batch))
            if len(losses) == 50:
                mean, losses = sum(losses) / len(losses), []
                elapsed = round(time.monotonic() - started)
                line = {"step": trainer.step, "loss": round(mean, 4), "seconds": elapsed}
                log.write(json.dumps(line) + "\n")
                log.flush()
            if time.monotonic() - saved > save_seconds:
                trainer.save(out / "state.pt")
                saved = time.monotonic()
    trainer.save(out / "state.pt")


def parse_mix(text: str) -> dict[str, float]:
    """`words=1,sudoku=2` as a dictionary over GENERATED; tasks left out count 0."""
    pairs = [part.split("=") for part in text.split(",")]
    unknown = {name for name, _ in pairs} - set(GENERATED)
    if unknown:
        raise ValueError(f"unknown tasks {sorted(unknown)}; choose from {', '.join(GENERATED)}")
    return {name: float(share) for name, share in pairs}


def main() -> None:
    """Trains or resumes; state and log go to --out."""
    recipe = Recipe()
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="continue from OUT/state.pt")
    parser.add_argument("--start-from", type=Path, help="weights: checkpoint folder or state.pt")
    parser.add_argument("--steps", type=int, default=recipe.steps)
    parser.add_argument("--causal-steps", type=int, default=recipe.causal_steps)
    parser.add_argument("--learning-rate", type=float, default=recipe.learning_rate)
    parser.add_argument("--decay-share", type=float, default=recipe.decay_share)
    parser.add_argument("--batch-size", type=int, default=recipe.batch_size)
    parser.add_argument("--mix", type=parse_mix, default=recipe.mix, help="words=1,sudoku=2,...")
    parser.add_argument("--threads", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--pause-file", type=Path, help="training waits while this file exists")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe = Recipe(
        steps=options.steps,
        causal_steps=options.causal_steps,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        decay_share=options.decay_share,
        mix=options.mix,
    )
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    specials = Specials.of(tokenizer)
    trainer = Trainer(recipe, Shape())
    if options.start_from:
        weights = load_network(options.start_from).state_dict()
        trainer.net.load_state_dict(weights)
        trainer.average.load_state_dict(weights)
    if options.resume:
        trainer.load(options.out / "state.pt")
        print(f"resumed at step {trainer.step}", file=sys.stderr)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    corpus = Corpus.load(options.corpus)
    train(trainer, corpus, specials, options.out, pause_file=options.pause_file, stop=stop)


if __name__ == "__main__":
    main()

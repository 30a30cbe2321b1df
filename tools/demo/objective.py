"""What a training sequence shows, hides and asks: layout, attention and masking.

A sequence is the prompt followed by one or two *views* of the answer, which see the prompt but
not each other, so that one prompt serves two maskings. Block 0 is the prompt, block k >= 1 the
k-th 16 tokens after it. Row i-1 predicts position i (Dream).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from tokenizers import Tokenizer

BLOCK = 16
LARGEST_WINDOW = 4
KINDS = ("window", "block_causal", "bidirectional")
KIND_SHARES = (0.45, 0.35, 0.20)
FILLER_WEIGHT = 0.25

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Specials:
    """Token ids the objective writes."""

    eos: int
    mask: int

    @staticmethod
    def of(tokenizer: Tokenizer) -> Specials:
        """The ids of a demo tokenizer; raises ValueError if a special token is missing."""
        eos, mask = (tokenizer.token_to_id(text) for text in ("<|endoftext|>", "<|mask|>"))
        if eos is None or mask is None:
            raise ValueError("the tokenizer lacks <|endoftext|> or <|mask|>: train it again")
        return Specials(eos, mask)


@dataclass(frozen=True)
class Sample:
    """One training sequence of length L.

    ids, targets, positions int64 [L]; weights float32 [L], 0 where a row has no loss;
    attend bool [L, L], True where row r may attend to row s.
    """

    ids: Ints
    targets: Ints
    positions: Ints
    weights: Floats
    attend: Bools


def fill_blocks(answer: Sequence[int], eos: int, extra_blocks: int = 0) -> Ints:
    """The answer, one end-of-text at least, and more up to the end of its block."""
    blocks = (len(answer) + BLOCK) // BLOCK + extra_blocks
    filled = np.full(blocks * BLOCK, eos, dtype=np.int64)
    filled[: len(answer)] = answer
    return filled


def block_numbers(prompt_len: int, answer_len: int) -> Ints:
    """0 for the prompt, then 1 + offset // 16; int64 [prompt_len + answer_len]."""
    return np.concatenate(
        [np.zeros(prompt_len, dtype=np.int64), 1 + np.arange(answer_len) // BLOCK]
    )


def block_attention(groups: Ints, views: Ints) -> Bools:
    """Row r sees row s if s is of no later group and of the same view (or the prompt, view -1)."""
    ordered = groups[None, :] <= groups[:, None]
    together = (views[None, :] == -1) | (views[None, :] == views[:, None])
    seen: Bools = ordered & together
    return seen


def rising_ratios(rng: Generator, count: int) -> NDArray[np.float64]:
    """Mask ratios of consecutive blocks, ascending; sometimes 0 at first or 1 at last."""
    ratios = np.sort(rng.random(count))
    if count > 1 and rng.random() < 0.25:
        ratios[0] = 0.0
    if rng.random() < 0.4:
        ratios[-1] = 1.0
    return ratios


def draw_masked(rng: Generator, ratios: NDArray[np.float64]) -> Bools:
    """Which positions of the blocks are hidden, at least one; bool [16 * len(ratios)]."""
    hidden: Bools = rng.random(len(ratios) * BLOCK) < np.repeat(ratios, BLOCK)
    if not hidden.any():
        hidden[-1 - rng.integers(BLOCK)] = True
    return hidden


def next_token_sample(prompt: Ints, filled: Ints, specials: Specials) -> Sample:
    """Causal attention over the clean sequence; loss on every token of the filled answer."""
    ids = np.concatenate([prompt, filled])
    targets = np.append(ids[1:], specials.eos)
    weights = np.zeros(len(ids), dtype=np.float32)
    weights[len(prompt) - 1 : -1] = _token_weights(filled, specials.eos)
    attend = np.tri(len(ids), dtype=np.bool_)
    return Sample(ids, targets, np.arange(len(ids)), weights, attend)


def masked_sample(
    rng: Generator, prompt: Ints, filled: Ints, specials: Specials, kind: str
) -> Sample:
    """One masked-diffusion sequence of the given kind; loss on hidden positions only."""
    block_count = len(filled) // BLOCK
    view_count = 1 if kind == "bidirectional" else 2
    start, end = 1, block_count + 1
    if kind == "bidirectional":
        start = 0
    elif kind == "window":
        # Start 0 is the first forward of a decode: the prompt sees the window.
        start = int(rng.integers(0, block_count + 1))
        view_count = 1 if start == 0 else 2
        end = min(end, max(start, 1) + int(rng.integers(1, LARGEST_WINDOW + 1)))
    shown = filled[: (end - 1) * BLOCK]
    first = max(start, 1) if kind == "window" else 1
    hidden = []
    for _ in range(view_count):
        flags = np.zeros(len(shown), dtype=np.bool_)
        if kind == "bidirectional":
            ratios = np.full(block_count, rng.random())
        else:
            ratios = rising_ratios(rng, end - first)
        flags[(first - 1) * BLOCK :] = draw_masked(rng, ratios)
        hidden.append(flags)
    groups = block_numbers(len(prompt), len(shown))
    if kind != "block_causal":
        groups = np.minimum(groups, start)
    return assemble(prompt, shown, hidden, groups, specials)


def assemble(
    prompt: Ints, shown: Ints, hidden: Sequence[Bools], groups: Ints, specials: Specials
) -> Sample:
    """Joins the prompt and one view per entry of `hidden` (bool [len(shown)]).

    `groups` int64 [len(prompt) + len(shown)] orders the attention. A group that the prompt
    shares with the answer is only symmetric with a single view.
    """
    count, size, view_count = len(prompt), len(shown), len(hidden)
    ids = np.concatenate([prompt, *(np.where(flags, specials.mask, shown) for flags in hidden)])
    views = np.repeat(np.arange(-1, view_count), [count] + [size] * view_count)
    attend = block_attention(np.append(groups[:count], np.tile(groups[count:], view_count)), views)
    if view_count == 1:
        attend = groups[None, :] <= groups[:, None]
    positions = np.append(np.arange(count), np.tile(np.arange(count, count + size), view_count))
    targets = np.full(len(ids), specials.eos, dtype=np.int64)
    weights = np.zeros(len(ids), dtype=np.float32)
    token_weights = _token_weights(shown, specials.eos)
    for view, flags in enumerate(hidden):
        rows = np.arange(size) - 1 + count + view * size
        rows[0] = count - 1
        targets[rows] = shown
        weights[rows] = np.maximum(weights[rows], token_weights * flags)
    return Sample(ids, targets, positions, weights, attend)


def _token_weights(filled: Ints, eos: int) -> Floats:
    """1 for the answer and its first end-of-text, less for the filling after it."""
    weights = np.ones(len(filled), dtype=np.float32)
    weights[1:][(filled[1:] == eos) & (filled[:-1] == eos)] = FILLER_WEIGHT
    return weights


@dataclass(frozen=True)
class Batch:
    """Samples padded to one length L: ids, targets, positions [B, L], weights, attend [B, L, L]."""

    ids: Ints
    targets: Ints
    positions: Ints
    weights: Floats
    attend: Bools


def collate(samples: Sequence[Sample], specials: Specials) -> Batch:
    """Pads on the right; a padding row sees only itself and is seen by nobody."""
    count, length = len(samples), max(len(sample.ids) for sample in samples)
    ids = np.full((count, length), specials.eos, dtype=np.int64)
    targets = np.zeros((count, length), dtype=np.int64)
    positions = np.zeros((count, length), dtype=np.int64)
    weights = np.zeros((count, length), dtype=np.float32)
    attend = np.zeros((count, length, length), dtype=np.bool_)
    attend[:, np.arange(length), np.arange(length)] = True
    for row, sample in enumerate(samples):
        size = len(sample.ids)
        ids[row, :size] = sample.ids
        targets[row, :size] = sample.targets
        positions[row, :size] = sample.positions
        weights[row, :size] = sample.weights
        attend[row, :size, :size] = sample.attend
    return Batch(ids, targets, positions, weights, attend)

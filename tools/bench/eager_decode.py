"""The plain way to run LoPA, for comparison: one eager forward per branch, a growing KV cache.

This is how the published decoding works: every branch runs by itself, the vocabulary head runs on
its whole window, and the winner's cache replaces the shared one. It shares no code with the
runtime, so it also checks the runtime's tokens.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .eager_model import Cache, EagerModel


@dataclass(frozen=True)
class EagerResult:
    """Tokens after the prompt, steps of the loop, forwards of the model, rows computed."""

    token_ids: list[int]
    steps: int
    forwards: int
    rows: int


@dataclass
class _Sequence:
    tokens: list[int]
    blocks: list[list[int]]  # [start, end, masks]
    states: list[str]
    complete: list[bool]
    masked: set[int] = field(default_factory=set)
    stopped: bool = False


@dataclass(frozen=True)
class _Outcome:
    """One branch after its forward; `predicted` maps position -> (probability, token)."""

    branch: _Sequence
    score: float
    predicted: dict[int, tuple[float, int]]
    cache: Cache
    row: Tensor | None


@torch.inference_mode()
def decode(
    model: EagerModel,
    prompt: list[int],
    *,
    lookahead: int,
    block_size: int,
    max_new_tokens: int,
    window: int,
    add_threshold: float,
    complete_threshold: float,
    confidence: float,
) -> EagerResult:
    """LoPA with full attention and the mean-confidence score, one forward per branch."""
    info = model.info
    anchor = _Sequence(list(prompt), [[0, len(prompt), 0]], ["to_cache"], [True])
    branches = [anchor]
    cache: Cache = []
    saved: Tensor | None = None
    steps = forwards = rows = 0
    while True:
        for branch in branches:
            _advance(
                branch,
                block_size,
                max_new_tokens // block_size,
                window if steps else len(prompt) + block_size,
                add_threshold,
                complete_threshold,
                info.mask_token_id,
            )
        if not branches[-1].masked and "active" not in branches[-1].states:
            break
        start = next(
            b[0] for b, s in zip(anchor.blocks, anchor.states, strict=True) if s != "in_cache"
        )
        commit_end = start
        for block, state in zip(anchor.blocks, anchor.states, strict=True):
            if state == "active":
                break
            commit_end = max(commit_end, block[1])
        keep = commit_end - start
        outcomes = []
        for branch in branches:
            ids = torch.tensor([branch.tokens[start:]])
            logits, grown = model.forward(ids, start, cache, keep)
            forwards += 1
            rows += ids.shape[1]
            row = logits[keep - 1].clone() if keep else saved
            first = logits[:1] if saved is None else saved[None]
            shifted = torch.cat([first, logits[:-1]])
            positions = sorted(branch.masked)
            probabilities = torch.softmax(shifted[[p - start for p in positions]], -1)
            probabilities[:, info.mask_token_id] = 0
            probabilities[:, info.tokenizer_size :] = 0
            best, tokens = probabilities.max(-1)
            score = float(best.mean()) if positions else 1.0
            predicted = dict(
                zip(positions, zip(best.tolist(), tokens.tolist(), strict=True), strict=True)
            )
            outcomes.append(_Outcome(branch, score, predicted, grown, row))
        winner = max(outcomes, key=lambda outcome: outcome.score)  # the first of equals
        anchor, predicted = winner.branch, winner.predicted
        if keep:
            cache, saved = winner.cache, winner.row
        _fill(anchor, predicted, confidence, info.pad_token_id)
        ranked = sorted(anchor.masked, key=lambda p: (-predicted[p][0], p))[:lookahead]
        _settle(anchor, commit_end)
        branches = []
        for position in ranked:
            branch = copy.deepcopy(anchor)
            _set(branch, position, predicted[position][1], info.pad_token_id)
            branches.append(branch)
        branches.append(anchor)
        steps += 1
    return EagerResult(anchor.tokens[len(prompt) :], steps, forwards, rows)


def _advance(
    branch: _Sequence,
    block_size: int,
    blocks: int,
    room: int,
    add_threshold: float,
    complete_threshold: float,
    mask_token_id: int,
) -> None:
    start = next(
        (b[0] for b, s in zip(branch.blocks, branch.states, strict=True) if s != "in_cache"),
        branch.blocks[-1][1],
    )
    fits = len(branch.tokens) + block_size - start <= room
    due = _progress(branch.blocks[-1]) >= add_threshold
    if len(branch.blocks) <= blocks and not branch.stopped and due and fits:
        end = len(branch.tokens)
        branch.tokens += [mask_token_id] * block_size
        branch.masked |= set(range(end, end + block_size))
        branch.blocks.append([end, end + block_size, block_size])
        branch.states.append("active")
        branch.complete.append(False)
    for index in range(1, len(branch.blocks)):
        if _progress(branch.blocks[index - 1]) >= complete_threshold:
            branch.complete[index] = True


def _progress(block: list[int]) -> float:
    size = block[1] - block[0]
    return (size - block[2]) / size


def _fill(
    branch: _Sequence,
    predicted: dict[int, tuple[float, int]],
    confidence: float,
    pad_token_id: int,
) -> None:
    for block, state, complete in zip(branch.blocks, branch.states, branch.complete, strict=True):
        inside = [p for p in range(block[0], block[1]) if p in branch.masked]
        if state != "active" or not inside:
            continue
        sure = [p for p in inside if predicted[p][0] > confidence]
        if not sure and complete:
            sure = [max(inside, key=lambda p: (predicted[p][0], -p))]
        for position in sure:
            _set(branch, position, predicted[position][1], pad_token_id)


def _set(branch: _Sequence, position: int, token: int, pad_token_id: int) -> None:
    branch.tokens[position] = token
    branch.masked.discard(position)
    for block in branch.blocks:
        if block[0] <= position < block[1]:
            block[2] -= 1
    branch.stopped = branch.stopped or token == pad_token_id


def _settle(branch: _Sequence, commit_end: int) -> None:
    for index, block in enumerate(branch.blocks):
        if branch.states[index] == "to_cache" and block[1] <= commit_end:
            branch.states[index] = "in_cache"
    for index, block in enumerate(branch.blocks):
        if branch.states[index] == "active":
            if block[2]:
                break
            branch.states[index] = "to_cache"

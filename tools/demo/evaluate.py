"""Held-out accuracy of the network by batched, greedy, cache-free D2F decoding."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .model import DreamNetwork, load_network
from .objective import BLOCK, Specials
from .problem import Problem
from .problems import TASKS, generate, grade, load_public
from .tokenizer import chat_text

CHECKPOINT = Path(__file__).parent / "checkpoint"


@dataclass(frozen=True)
class Decoding:
    """Thresholds of the D2F loop; `full_window` lets the rows of the window see all of it."""

    confidence: float = 0.9
    add_threshold: float = 0.1
    complete_threshold: float = 0.95
    max_blocks: int = 6
    full_window: bool = False


@dataclass
class Decode:
    """One prompt on its way: ids of prompt and blocks so far."""

    prompt: list[int]
    ids: list[int]
    complete: set[int] = field(default_factory=lambda: {1})
    ended: bool = False
    forwards: int = 0

    @property
    def blocks(self) -> int:
        """How many blocks follow the prompt."""
        return (len(self.ids) - len(self.prompt)) // BLOCK

    def span(self, block: int) -> range:
        """Absolute positions of block 1, 2, ..."""
        start = len(self.prompt) + (block - 1) * BLOCK
        return range(start, start + BLOCK)


def _grow(decode: Decode, decoding: Decoding, specials: Specials) -> None:
    """Adds a block when the last one is decoded enough, and marks blocks as complete."""
    progress = [1.0]
    for block in range(1, decode.blocks + 1):
        masks = sum(decode.ids[i] == specials.mask for i in decode.span(block))
        progress.append(1 - masks / BLOCK)
    room = decode.blocks < decoding.max_blocks and not decode.ended
    if room and progress[-1] >= decoding.add_threshold:
        decode.ids += [specials.mask] * BLOCK
    for block in range(1, decode.blocks):
        if progress[block] >= decoding.complete_threshold:
            decode.complete.add(block + 1)


def _fill(
    decode: Decode, best: Tensor, tokens: Tensor, decoding: Decoding, specials: Specials
) -> None:
    """Fills every sure position, and the surest one of a complete block that has none."""
    for block in range(1, decode.blocks + 1):
        masked = [i for i in decode.span(block) if decode.ids[i] == specials.mask]
        chosen = [i for i in masked if best[i - 1] > decoding.confidence]
        if masked and not chosen and block in decode.complete:
            chosen = [max(masked, key=lambda i: float(best[i - 1]))]
        for i in chosen:
            decode.ids[i] = int(tokens[i - 1])
            decode.ended |= decode.ids[i] == specials.eos


def _attention(decode: Decode, length: int, decoding: Decoding, specials: Specials) -> Tensor:
    """bool [length, length], padding rows see themselves."""
    count = len(decode.ids)
    groups = torch.zeros(count, dtype=torch.long)
    for block in range(1, decode.blocks + 1):
        groups[decode.span(block)] = block
    if decoding.full_window:
        first = decode.ids.index(specials.mask, len(decode.prompt))
        groups.clamp_(max=int(groups[first]))
    attend = torch.eye(length, dtype=torch.bool)
    attend[:count, :count] = groups[None, :] <= groups[:, None]
    return attend


@torch.no_grad()
def decode_all(
    net: DreamNetwork, prompts: Sequence[list[int]], decoding: Decoding, specials: Specials
) -> list[Decode]:
    """Decodes all prompts in one batch until no mask is left; each forward takes all that run."""
    decodes = [Decode(prompt, list(prompt)) for prompt in prompts]
    while True:
        for decode in decodes:
            _grow(decode, decoding, specials)
        running = [d for d in decodes if specials.mask in d.ids[len(d.prompt) :]]
        if not running:
            return decodes
        length = max(len(decode.ids) for decode in running)
        ids = torch.full((len(running), length), specials.eos)
        for row, decode in enumerate(running):
            ids[row, : len(decode.ids)] = torch.tensor(decode.ids)
        attend = torch.stack([_attention(d, length, decoding, specials) for d in running])
        logits = net(ids, attend, torch.arange(length).expand(len(running), -1))
        best, tokens = logits.float().softmax(-1).max(-1)
        for row, decode in enumerate(running):
            _fill(decode, best[row], tokens[row], decoding, specials)
            decode.forwards += 1


def completion_text(tokenizer: Tokenizer, decode: Decode, eos: int) -> str:
    """The decoded text up to the first end-of-text."""
    answer = decode.ids[len(decode.prompt) :]
    answer = answer[: answer.index(eos)] if eos in answer else answer
    text: str = tokenizer.decode(answer, skip_special_tokens=False)
    return text


def evaluate(
    net: DreamNetwork, tokenizer: Tokenizer, problems: Sequence[Problem], decoding: Decoding
) -> dict[str, float]:
    """Accuracy, tokens per forward (fillers counted) and forwards per answer."""
    specials = Specials.of(tokenizer)
    prompts = [tokenizer.encode(chat_text(problem.prompt)).ids for problem in problems]
    right = forwards = tokens = 0
    for start in range(0, len(prompts), 64):
        decodes = decode_all(net, prompts[start : start + 64], decoding, specials)
        for problem, decode in zip(problems[start:], decodes, strict=False):
            right += grade(problem, completion_text(tokenizer, decode, specials.eos))
            forwards += decode.forwards
            tokens += decode.blocks * BLOCK
    count = len(problems)
    return {
        "accuracy": round(right / count, 4),
        "count": count,
        "tpf": round(tokens / forwards, 2),
        "forwards": round(forwards / count, 2),
    }


def main() -> None:
    """Prints one JSON line per task, and per public file where given."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--weights", type=Path, default=CHECKPOINT, help="folder or state.pt")
    parser.add_argument("--tokenizer", type=Path, default=CHECKPOINT / "tokenizer.json")
    parser.add_argument("--count", type=int, default=64, help="held-out problems per task")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--public", type=Path, nargs="*", default=[], help="public test files")
    parser.add_argument("--public-count", type=int, help="first rows of each file (default: all)")
    parser.add_argument("--confidence", type=float, default=Decoding.confidence)
    parser.add_argument("--full-window", action="store_true", help="full attention in the window")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    decoding = Decoding(confidence=options.confidence, full_window=options.full_window)
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    net = load_network(options.weights)
    sets = {task: generate(task, options.seed, options.count, held_out=True) for task in TASKS}
    for path in options.public:
        sets[path.stem] = load_public(path)[: options.public_count]
    for name, problems in sets.items():
        result = evaluate(net, tokenizer, problems, decoding)
        print(json.dumps({"set": name, **result}), flush=True)


if __name__ == "__main__":
    main()

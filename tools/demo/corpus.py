"""The tokenised training corpus: generated once, read by random index."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .problems import generate, load_public
from .tokenizer import chat_text

GENERATED = ("words", "sudoku", "countdown", "functions", "drills")


@dataclass(frozen=True)
class Corpus:
    """Token ids of many problems, concatenated.

    tokens uint16 [total]; starts int64 [count + 1]; prompt_lengths int64 [count];
    tasks int64 [count], an index into GENERATED.
    """

    tokens: NDArray[np.uint16]
    starts: NDArray[np.int64]
    prompt_lengths: NDArray[np.int64]
    tasks: NDArray[np.int64]

    def problem(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Prompt (chat template applied) and answer ids of one problem."""
        ids = self.tokens[self.starts[index] : self.starts[index + 1]].astype(np.int64)
        return np.split(ids, [self.prompt_lengths[index]])  # type: ignore[return-value]

    def save(self, path: Path) -> None:
        """Writes one .npz file."""
        np.savez(path, **vars(self))

    @staticmethod
    def load(path: Path) -> Corpus:
        """Reads what `save` wrote."""
        with np.load(path) as data:
            return Corpus(**{name: data[name] for name in data.files})


def build_corpus(
    tokenizer: Tokenizer, counts: Mapping[str, int], seed: int, excluded: frozenset[str]
) -> Corpus:
    """Generates `counts[task]` problems per task; prompts in `excluded` are dropped."""
    rows: list[list[int]] = []
    lengths: list[int] = []
    tasks: list[int] = []
    for number, task in enumerate(GENERATED):
        problems = [
            problem
            for problem in generate(task, seed, counts.get(task, 0))
            if problem.prompt not in excluded
        ]
        prompts = tokenizer.encode_batch([chat_text(problem.prompt) for problem in problems])
        answers = tokenizer.encode_batch([problem.answer for problem in problems])
        for prompt, answer in zip(prompts, answers, strict=True):
            rows.append(prompt.ids + answer.ids)
            lengths.append(len(prompt.ids))
        tasks += [number] * len(problems)
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    tokens = np.fromiter((token for row in rows for token in row), np.uint16, count=starts[-1])
    return Corpus(tokens, starts, np.array(lengths), np.array(tasks))


def main() -> None:
    """Generates and tokenises the training corpus."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help=".npz file")
    parser.add_argument("--count", type=int, default=120_000, help="problems per task")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument(
        "--exclude",
        type=Path,
        nargs="*",
        default=[],
        help="public files whose prompts are left out",
    )
    options = parser.parse_args()
    excluded = frozenset(
        problem.prompt for path in options.exclude for problem in load_public(path)
    )
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    counts = dict.fromkeys(GENERATED, options.count)
    build_corpus(tokenizer, counts, options.seed, excluded).save(options.out)


if __name__ == "__main__":
    main()

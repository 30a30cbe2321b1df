"""Tokens per second of one decode and of several at the same time, with one engine.

    python -m lopa.tools.bench.parallel BUNDLE [--parallel N] [--threads N] [--repeats N]

Rounds take turns: a batch of prompts one after the other, then the same batch N at a time, with the
same number of engine threads. Printed are medians and the least and most of all rounds. Exit
status 1 when the tokens differ.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

from ...runtime.contract import LopaError
from ...runtime.session import Result, Session, open_bundle
from ..arguments import natural, positive
from ..parallel import GoOn, in_order
from ..paths import path

PROMPT_TOKENS = 16


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m lopa.tools.bench.parallel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=path)
    parser.add_argument("--parallel", metavar="N", type=positive, default=2)
    parser.add_argument("--threads", metavar="N", type=natural, default=1)
    parser.add_argument("--repeats", metavar="N", type=positive, default=7)
    parser.add_argument("--prompts", metavar="N", type=positive, default=8, help="of each round")
    parser.add_argument("--max-new-tokens", metavar="N", type=positive, default=64)
    args = parser.parse_args(argv)
    try:
        session = open_bundle(args.bundle, threads=args.threads, decodes=args.parallel)
        return compare(session, args.prompts, args.repeats, args.max_new_tokens)
    except LopaError as error:
        print("parallel: error:", error, file=sys.stderr)
        return 1


def compare(session: Session, prompts: int, repeats: int, max_new_tokens: int) -> int:
    """Time `repeats` rounds of each kind; returns the exit status."""
    batch = [[1 + (31 * n + 7 * i) % 200 for i in range(PROMPT_TOKENS)] for n in range(prompts)]
    if session.decodes == 1:
        raise LopaError("--parallel is 1, expected two or more to compare with one")
    rates: dict[int, list[float]] = {1: [], session.decodes: []}
    answers = set()
    for turn in range(repeats + 1):
        for parallel, found in rates.items():
            rate, tokens = timed(session, parallel, batch, max_new_tokens)
            answers.add(tokens)
            if turn:  # the first round allocates buffers
                found.append(rate)
    for parallel, found in rates.items():
        print(
            f"{parallel} at the same time: {statistics.median(found):.0f} tokens/s "
            f"({min(found):.0f} to {max(found):.0f}, {repeats} rounds)"
        )
    one, several = (statistics.median(found) for found in rates.values())
    pairs = [b / a for a, b in zip(*rates.values(), strict=True)]
    print(f"{several / one:.2f}x, round by round {min(pairs):.2f}x to {max(pairs):.2f}x")
    if len(answers) > 1:
        print("the tokens differ", file=sys.stderr)
        return 1
    return 0


def timed(
    session: Session, parallel: int, batch: Sequence[list[int]], max_new_tokens: int
) -> tuple[float, tuple[tuple[int, ...], ...]]:
    """Decode the batch; returns tokens per second of wall-clock time, and the tokens."""

    def work(prompt: list[int], go_on: GoOn | None) -> Result:
        return session.generate(prompt_ids=prompt, max_new_tokens=max_new_tokens)

    started = time.perf_counter()
    results = list(in_order(parallel, work, batch))
    seconds = time.perf_counter() - started
    tokens = sum(result.tokens for result in results)
    return tokens / seconds, tuple(result.token_ids for result in results)


if __name__ == "__main__":
    raise SystemExit(main())

"""Run contestants side by side on the same prompts, interleaved, and reduce to medians."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...runtime.contract import LopaError

_COLD_START = """
import time
started = time.perf_counter()
import sys
import lopa
session = lopa.open_bundle(sys.argv[1])
next(session.stream(prompt_ids=[int(token) for token in sys.argv[2].split(",")]))
print(time.perf_counter() - started)
"""


@dataclass(frozen=True)
class Measurement:
    """One contestant over all prompts; per-prompt seconds are medians over the repeats."""

    name: str
    tokens: int
    steps: int
    forwards: int
    rows: int
    seconds: float
    engine_seconds: float
    peak_bytes: int

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens per second of decoding."""
        return self.tokens / self.seconds

    @property
    def step_ms(self) -> float:
        """Milliseconds per step."""
        return 1e3 * self.seconds / self.steps


@dataclass(frozen=True)
class Comparison:
    """Engine against baseline: ratios are baseline seconds / engine seconds of one pair of runs."""

    engine: Measurement
    baseline: Measurement
    ratio: float  # median over all pairs
    ratio_low: float
    ratio_high: float
    identical: int  # prompts with identical tokens
    prompts: int


class Worker:
    """A contestant process."""

    def __init__(self, **request: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lopa.tools.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ask(request)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise LopaError("a benchmark process died; its message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(
    bundle: Path,
    checkpoint: Path,
    prompts: Sequence[list[int]],
    settings: dict[str, Any],
    *,
    window: int,
    repeats: int,
    threads: int,
    progress: Callable[[int, int], None],
) -> Comparison:
    """Decode every prompt `repeats` times with both contestants, one after the other."""
    workers = {
        "engine": Worker(kind="engine", path=str(bundle), threads=threads),
        "eager torch": Worker(kind="eager", path=str(checkpoint), threads=threads, window=window),
    }
    runs: dict[str, list[list[dict[str, Any]]]] = {name: [[] for _ in prompts] for name in workers}
    total = repeats * len(prompts)
    try:
        for worker in workers.values():  # warm up: allocations, thread pools, page cache
            worker.ask({"prompt_ids": prompts[0], "settings": {**settings, "max_new_tokens": 32}})
        for repeat in range(repeats):
            for index, prompt in enumerate(prompts):
                order = list(workers) if (repeat + index) % 2 == 0 else list(workers)[::-1]
                for name in order:
                    answer = workers[name].ask({"prompt_ids": prompt, "settings": settings})
                    runs[name][index].append(answer)
                progress(repeat * len(prompts) + index + 1, total)
    finally:
        for worker in workers.values():
            worker.close()
    return _reduce(runs)


def cold_start_seconds(bundle: Path, prompt: Sequence[int], repeats: int) -> list[float]:
    """Seconds from `import lopa` to the first token, each in a new process."""
    ids = ",".join(str(token) for token in prompt)
    command = [sys.executable, "-c", _COLD_START, str(bundle), ids]
    return [
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(repeats)
    ]


def _reduce(runs: dict[str, list[list[dict[str, Any]]]]) -> Comparison:
    engine, baseline = runs["engine"], runs["eager torch"]
    ratios = [
        slow["seconds"] / fast["seconds"]
        for fast_runs, slow_runs in zip(engine, baseline, strict=True)
        for fast, slow in zip(fast_runs, slow_runs, strict=True)
    ]
    identical = sum(
        all(run["token_ids"] == fast_runs[0]["token_ids"] for run in (*fast_runs, *slow_runs))
        for fast_runs, slow_runs in zip(engine, baseline, strict=True)
    )
    return Comparison(
        _measure("engine", engine),
        _measure("eager torch", baseline),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        identical,
        len(engine),
    )


def _measure(name: str, runs: list[list[dict[str, Any]]]) -> Measurement:
    def total(key: str) -> int:
        return sum(int(prompt[0][key]) for prompt in runs)

    def median(key: str) -> float:
        return sum(statistics.median(float(run[key]) for run in prompt) for prompt in runs)

    return Measurement(
        name=name,
        tokens=sum(len(prompt[0]["token_ids"]) for prompt in runs),
        steps=total("steps"),
        forwards=total("forwards"),
        rows=total("rows"),
        seconds=median("seconds"),
        engine_seconds=median("engine_seconds"),
        peak_bytes=max(run["peak_bytes"] for prompt in runs for run in prompt),
    )

"""One contestant of a benchmark in its own process, so that memory is told apart.

Speaks JSON lines on standard input and output: the first line opens a model, every further one
decodes a prompt; each is answered by one line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from ...runtime.contract import LopaError


class Contestant(Protocol):
    """Something that decodes prompts."""

    def decode(self, prompt: list[int], settings: dict[str, Any]) -> dict[str, Any]:
        """Decode `prompt`; returns token_ids, steps, forwards, rows, engine_seconds."""


class EngineContestant:
    """A bundle, run by the light runtime."""

    def __init__(self, path: Path, threads: int) -> None:
        from ...runtime.session import open_bundle

        self.session = open_bundle(path, threads=threads)
        self.seconds = 0.0
        with self.session.state() as state:
            run = state.run

        def timed(shape: Any) -> Any:
            started = time.perf_counter()
            outputs = run(shape)
            self.seconds += time.perf_counter() - started
            return outputs

        state.run = timed  # type: ignore[method-assign]

    def decode(self, prompt: list[int], settings: dict[str, Any]) -> dict[str, Any]:
        """Decode with the saved engine."""
        self.seconds = 0.0
        result = self.session.generate(prompt_ids=prompt, **settings)
        return {
            "token_ids": list(result.token_ids),
            "steps": result.steps,
            "forwards": result.forwards,
            "rows": result.rows,
            "engine_seconds": self.seconds,
        }


class EagerContestant:
    """The same checkpoint in eager torch, one forward per branch."""

    def __init__(self, path: Path, threads: int, window: int) -> None:
        import torch

        from .eager_decode import decode
        from .eager_model import EagerModel

        if threads:
            torch.set_num_threads(threads)
        self.window, self.decoder, self.model = window, decode, EagerModel(path)

    def decode(self, prompt: list[int], settings: dict[str, Any]) -> dict[str, Any]:
        """Decode branch by branch."""
        kept = {key: value for key, value in settings.items() if key != "strategy"}
        result = self.decoder(self.model, prompt, window=self.window, **kept)
        return {
            "token_ids": result.token_ids,
            "steps": result.steps,
            "forwards": result.forwards,
            "rows": result.rows,
            "engine_seconds": 0.0,
        }


def peak_bytes() -> int:
    """Largest resident size of this process so far (Linux)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Serve one benchmark run."""
    request = json.loads(sys.stdin.readline())
    path, threads = Path(request["path"]), request["threads"]
    contestant: Contestant = (
        EngineContestant(path, threads)
        if request["kind"] == "engine"
        else EagerContestant(path, threads, request["window"])
    )
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        started = time.perf_counter()
        answer = contestant.decode(job["prompt_ids"], job["settings"])
        answer["seconds"] = time.perf_counter() - started
        answer["peak_bytes"] = peak_bytes()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        main()
    except LopaError as error:
        sys.exit(f"lopa: error: {error}")

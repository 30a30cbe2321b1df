"""`--parallel` of generate and eval: the answers, traces and logs of one after the other."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from lopa.runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState
from lopa.tools import parallel

from .conftest import Lopa

COUNT = 9


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Later prompts are shorter, so that they are done first."""
    path = tmp_path / "prompts.jsonl"
    lines = [{"id": f"p{n}", "prompt_ids": [5 + n] * (3 * (COUNT - n))} for n in range(COUNT)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    rows = [{"input": f"{n},2,3,36", "output": "1+1=2"} for n in range(4, 10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that engines are opened with."""
    opened: list[int] = []
    init = OnnxRuntimeProgram.__init__

    def note(self: OnnxRuntimeProgram, *arguments: Any, **settings: Any) -> None:
        opened.append(arguments[3])
        init(self, *arguments, **settings)

    monkeypatch.setattr(OnnxRuntimeProgram, "__init__", note)
    monkeypatch.setattr(parallel, "_cores", lambda: 12)
    return opened


def steady(text: str) -> list[dict[str, Any]]:
    """Lines of JSON without what differs from run to run."""
    rows = [json.loads(line) for line in text.splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "parallel")} for row in rows]


def test_generate_gives_the_same_in_the_same_order(
    lopa: Lopa, tiny_bundle: Path, prompts: Path, tmp_path: Path, threads: list[int]
) -> None:
    command = ["generate", tiny_bundle, "--prompts", prompts, "--json", "--max-new-tokens", 24]
    traces = [tmp_path / "one.jsonl", tmp_path / "three.jsonl"]
    serial = lopa(*command, "--trace", traces[0])
    shown = lopa(*command, "--trace", traces[1], "--parallel", 3)
    assert (shown.status, shown.err) == (0, "")
    assert steady(shown.out) == steady(serial.out)
    assert [json.loads(line).get("parallel") for line in shown.out.splitlines()] == [3] * COUNT
    assert "parallel" not in serial.out
    assert traces[1].read_text() == traces[0].read_text()
    lopa(*command, "--parallel", 3, "--threads", 2)
    assert threads == [0, 12 // 3, 2]


def test_the_summary_says_how_many_at_the_same_time(
    lopa: Lopa, tiny_bundle: Path, prompts: Path
) -> None:
    command = ["generate", tiny_bundle, "--prompts", prompts, "--max-new-tokens", 16]
    serial, shown = lopa(*command), lopa(*command, "--parallel", 2)
    assert shown.out == serial.out
    *_, last = shown.err.splitlines()
    assert last.startswith(f"{COUNT} prompts: {16 * COUNT} tokens")
    assert last.endswith(" tokens/s, 2 at the same time")


def test_decodes_really_run_at_the_same_time(
    lopa: Lopa, tiny_bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three threads meet inside the engine before any of them may go on."""
    meet, run = threading.Barrier(3, timeout=20), OnnxRuntimeState.run
    first = threading.local()

    def wait(self: OnnxRuntimeState, *arguments: Any) -> Any:
        if not getattr(first, "met", False):
            first.met = True
            meet.wait()
        return run(self, *arguments)

    monkeypatch.setattr(OnnxRuntimeState, "run", wait)
    shown = lopa("generate", tiny_bundle, "--prompts", prompts, "--json", "--parallel", 3)
    assert (shown.status, len(shown.out.splitlines())) == (0, COUNT)


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, 130), (MemoryError, None)])
def test_an_interrupt_or_error_ends_all(
    lopa: Lopa,
    tiny_bundle: Path,
    prompts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    status: int | None,
) -> None:
    trace = tmp_path / "trace.jsonl"
    runs, run = iter(range(10**6)), OnnxRuntimeState.run

    def stop(self: OnnxRuntimeState, *arguments: Any) -> Any:
        if next(runs) == 7:
            raise error
        return run(self, *arguments)

    monkeypatch.setattr(OnnxRuntimeState, "run", stop)
    command = ["generate", tiny_bundle, "--prompts", prompts, "--parallel", 3, "--trace", trace]
    if status is None:
        with pytest.raises(error):
            lopa(*command)
    else:
        assert lopa(*command).status == status
    assert not trace.exists()
    assert threading.active_count() == 1 or all(
        not thread.name.startswith("ThreadPoolExecutor") for thread in threading.enumerate()
    )


def test_eval_logs_the_same_in_the_same_order(
    lopa: Lopa, tiny_bundle: Path, problems: Path, tmp_path: Path, threads: list[int]
) -> None:
    command = ["eval", tiny_bundle, "--task", f"countdown={problems}", "--max-new-tokens", 16]
    command += ["--raw", "--sweep", "lookahead=1,2"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert lopa(*command, "-o", one).status == 0
    shown = lopa(*command, "-o", two, "--parallel", 2)
    assert shown.status == 0
    assert "2 problems at the same time: their seconds overlap" in shown.err
    logs = [steady((folder / "samples.jsonl").read_text()) for folder in (one, two)]
    assert logs[0] == logs[1]
    assert len(logs[0]) == 12
    settings = [
        json.loads((folder / "summary.json").read_text())["settings"] for folder in (one, two)
    ]
    assert [item.get("parallel") for item in settings] == [None, 2]
    assert [item["threads"] for item in settings] == threads == [0, 6]
    lines = (two / "samples.jsonl").read_text().splitlines(keepends=True)
    (two / "samples.jsonl").write_text("".join(lines[:5]))
    refused = lopa(*command, "-o", two, "--resume")
    assert "settings.parallel was 2, is None" in refused.err
    assert lopa(*command, "-o", two, "--resume", "--parallel", 2).status == 0
    assert steady((two / "samples.jsonl").read_text()) == logs[0]


def test_results_come_in_order_and_a_closed_iterator_ends_the_rest() -> None:
    started, stopped = threading.Event(), threading.Event()

    def work(number: int, go_on: parallel.GoOn | None) -> int:
        assert go_on is not None
        if number == 2:
            started.set()
            try:
                for _ in range(2000):
                    time.sleep(0.01)
                    go_on()
            except parallel.StoppedError:
                stopped.set()
                raise
        return number * number

    results = parallel.in_order(2, work, range(100))
    assert [next(results), next(results)] == [0, 1]
    assert started.wait(timeout=20)
    results.close()  # type: ignore[attr-defined]
    assert stopped.is_set()

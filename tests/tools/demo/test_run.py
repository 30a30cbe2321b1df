"""The shipped model answers held-out problems, and half precision does not change its answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from lopa.graphs.bundle import build_bundle
from lopa.graphs.instances import plan_instances
from lopa.runtime.session import Session, open_bundle
from lopa.tools.demo import run
from lopa.tools.demo.problem import Problem, read_problems

from ...exported import Exports
from .grading import grade

SETTINGS = {"strategy": "lopa", "lookahead": 4, "max_new_tokens": 96}


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return list(read_problems(run.HELD_OUT))[::4]


def session_of(exports: Exports, out: Path, precision: str) -> Session:
    model = exports.model(f"demo-{precision}", run.CHECKPOINT, precision=precision)
    instances = plan_instances(4, [run.WINDOW], [run.CONTEXT], [run.CONTEXT])
    build_bundle(model, out, instances)
    return open_bundle(out, threads=1)


def test_held_out_problems_are_solved_the_same_in_half_precision(
    exports: Exports, tmp_path: Path, problems: list[Problem]
) -> None:
    full, half = (session_of(exports, tmp_path / name, name) for name in ("fp32", "fp16"))
    correct = same = total = 0
    for problem in problems:
        expected = full.generate(problem.prompt, **SETTINGS)  # type: ignore[arg-type]
        found = half.generate(problem.prompt, **SETTINGS)  # type: ignore[arg-type]
        correct += grade(problem, expected.text)
        pairs = zip(expected.token_ids, found.token_ids, strict=False)
        same += sum(one == two for one, two in pairs)
        total += max(expected.tokens, found.tokens)
    assert correct >= 0.7 * len(problems)
    assert same >= 0.99 * total


def test_demo_prints_answers_and_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(["--output", str(tmp_path / "bundle")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-5].split() == " ".join(run.HEAD).split()
    rows = {line.split()[0]: line.split()[1:] for line in lines[-4:]}
    assert list(rows) == ["vanilla", "d2f", "lopa", "nested"]
    steps = {name: int(cells[1]) for name, cells in rows.items()}
    assert steps["vanilla"] == 4 * run.MAX_NEW_TOKENS
    assert steps["nested"] < steps["lopa"] <= steps["d2f"] < steps["vanilla"]
    assert rows["vanilla"][2] == "1.00"
    assert "answer: 65" in "\n".join(lines)

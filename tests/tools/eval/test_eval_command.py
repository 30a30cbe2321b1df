from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import lopa as package
import pytest
from lopa.tools.cli import build_parser
from lopa.tools.eval import evaluate
from lopa.tools.eval.tasks.registry import GROUPS, TASKS

from ..cli.conftest import Lopa, lopa

__all__ = ["lopa"]

ROWS = tuple({"input": f"{n},2,3,36", "output": "1+1=2"} for n in range(4, 8))
FLAGS = ("--max-new-tokens", 16, "--raw")
VARYING = {"seconds", "started", "finished", "tokens_per_second"}


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "cd.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def steady(found: Any) -> Any:
    """The same without times."""
    if isinstance(found, dict):
        return {key: steady(value) for key, value in found.items() if key not in VARYING}
    return [steady(item) for item in found] if isinstance(found, list) else found


def test_a_run_killed_while_it_began_is_resumed(
    lopa: Lopa, tiny_bundle: Path, problems: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".summary.json.x1y2").write_text("{")
    command = ["eval", tiny_bundle, "--task", f"countdown={problems}", *FLAGS, "-o", run]
    shown = lopa(*command, "--limit", 1, "--resume")
    assert shown.status == 0, shown.err
    assert sorted(path.name for path in run.iterdir()) == ["samples.jsonl", "summary.json"]


def test_samples_are_the_sessions_and_the_summary_sums_them_up(
    lopa: Lopa, tiny_bundle: Path, problems: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = ["eval", tiny_bundle, "--task", f"countdown={problems}", *FLAGS, "-o", run]
    shown = lopa(*command, "--limit", 3, "--seed", 5)
    assert shown.status == 0
    assert shown.err.splitlines()[-1] == f"wrote {run}"
    head, row = shown.out.splitlines()
    assert head.split("  ")[0] == "task"
    assert head.endswith("correct  score %   TPF  useful TPF  rows/token  tokens/s")
    assert row.split()[:3] == ["countdown", "0/3", "0.0"]
    session = package.open_bundle(tiny_bundle)
    samples = read_lines(run / "samples.jsonl")
    assert [sample["id"] for sample in samples] == ["countdown-1", "countdown-2", "countdown-3"]
    for sample, source in zip(samples, ROWS, strict=False):
        prompt = f"Countdown:\n{source['input']}"
        expected = session.generate(prompt, raw=True, max_new_tokens=16, seed=5)
        assert (sample["prompt"], sample["text"]) == (prompt, expected.text)
        assert (sample["answer"], sample["correct"]) == (expected.text.strip(), False)
        for name in ("tokens", "useful_tokens", "steps", "forwards", "rows"):
            assert sample[name] == getattr(expected, name)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["complete"] is True
    assert summary["scores"]["countdown"]["steps"] == sum(s["steps"] for s in samples)
    digest = hashlib.sha256((tiny_bundle / "manifest.json").read_bytes()).hexdigest()
    assert summary["bundle"]["manifest_sha256"] == digest
    assert summary["settings"]["max_new_tokens"] == 16
    assert summary["seeds"] == {"sampling": 5, "selection": None}
    assert summary["tasks"]["countdown"]["available"] == 4
    assert {"lopa", "python", "numpy", "onnxruntime"} <= summary["versions"]["here"].keys()
    assert "sandbox" not in summary


def test_a_killed_run_is_continued(
    lopa: Lopa,
    tiny_bundle: Path,
    problems: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ["eval", tiny_bundle, "--task", f"countdown={problems}", *FLAGS]
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert lopa(*command, "-o", whole).status == 0
    decode, count = evaluate.decode, 0

    def stops(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return decode(*arguments)

    monkeypatch.setattr(evaluate, "decode", stops)
    stopped = lopa(*command, "-o", part)
    assert (stopped.status, stopped.err) == (
        130,
        "lopa: interrupted; what was finished is kept, the same command with --resume goes on\n",
    )
    assert json.loads((part / "summary.json").read_text())["complete"] is False
    with (part / "samples.jsonl").open("a") as file:
        file.write('{"task": "countdown", "id": "countd')
    assert lopa(*command, "-o", part).err == (
        f"lopa: error: {part} has a run; --resume continues it, --force replaces it\n"
    )
    changed = lopa(*command, "-o", part, "--resume", "--lookahead", 1)
    assert (changed.status, changed.out) == (1, "")
    assert "settings.lookahead was None, is 1" in changed.err
    assert lopa(*command, "-o", part, "--resume").status == 0
    assert count == 3 + 2  # two were there
    for name in ("samples.jsonl", "summary.json"):
        found, expected = (
            [json.loads(line) for line in text.splitlines()] if name.endswith("l") else
            json.loads(text)
            for text in ((folder / name).read_text("utf-8") for folder in (part, whole))
        )  # fmt: skip
        assert steady(found) == steady(expected)


def test_json_is_the_summary(lopa: Lopa, tiny_bundle: Path, problems: Path) -> None:
    shown = lopa("eval", tiny_bundle, "--task", f"countdown={problems}", *FLAGS, "--json")
    assert (shown.status, shown.err) == (0, "")
    summary = json.loads(shown.out)
    assert summary["scores"]["countdown"]["problems"] == 4
    assert summary["sweep"] is None


def test_a_sweep_compares_side_by_side(
    lopa: Lopa, tiny_bundle: Path, problems: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra report")
    run = tmp_path / "run"
    command = ["eval", tiny_bundle, "--task", f"countdown={problems}", *FLAGS, "-o", run]
    shown = lopa(*command, "--sweep", "lookahead=2,0", "--limit", 2)
    assert shown.status == 0
    order = [(s["id"], s["variant"]) for s in read_lines(run / "samples.jsonl")]
    assert order == [
        ("countdown-1", 0),
        ("countdown-1", 2),
        ("countdown-2", 2),
        ("countdown-2", 0),
    ]
    content = json.loads((run / "sweep.json").read_text())
    assert (content["field"], content["base"]) == ("lookahead", 0)
    session = package.open_bundle(tiny_bundle)
    for value in content["values"]:
        steps = sum(
            session.generate(
                f"Countdown:\n{row['input']}", raw=True, max_new_tokens=16,
                lookahead=value["value"],
            ).steps
            for row in ROWS[:2]
        )  # fmt: skip
        assert value["tasks"]["countdown"]["steps"] == steps
    assert (run / "sweep.png").stat().st_size > 10_000
    assert "speed-up (quartiles)" in shown.out
    assert json.loads((run / "summary.json").read_text())["comparison"] == content
    other = lopa(*command, "--sweep", "lookahead=0,1", "--limit", 2, "--resume")
    assert "sweep.values was [0, 2], is [0, 1]" in other.err


def test_a_replaced_run_leaves_nothing_of_the_old_one(
    lopa: Lopa, tiny_bundle: Path, problems: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("samples.jsonl", "sweep.json", "sweep.png"):
        (run / name).write_text("old", encoding="utf-8")
    (run / "notes.txt").write_text("mine", encoding="utf-8")
    command = ["eval", tiny_bundle, "--task", f"countdown={problems}", *FLAGS, "-o", run]
    assert lopa(*command, "--limit", 1, "--force").status == 0
    names = sorted(path.name for path in run.iterdir())
    assert names == ["notes.txt", "samples.jsonl", "summary.json"]
    assert len(read_lines(run / "samples.jsonl")) == 1


def test_a_folder_with_something_else_is_refused(
    lopa: Lopa, tiny_bundle: Path, problems: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    command = ["eval", tiny_bundle, "--task", f"countdown={problems}", *FLAGS, "-o", out]
    assert lopa(*command).err == (
        f"lopa: error: output folder {out} is not empty; choose another or add --force\n"
    )
    assert not (out / "summary.json").exists()


def test_a_picture_of_one_problem(
    lopa: Lopa, tiny_bundle: Path, problems: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra report")
    command = ["eval", tiny_bundle, "--task", f"countdown={problems}", *FLAGS, "-o", tmp_path / "p"]
    shown = lopa(*command, "--picture", "countdown-2", "--json")
    record = json.loads(shown.out)
    assert (record["id"], record["tokens"], record["correct"]) == ("countdown-2", 16, False)
    assert [Path(file).name for file in record["files"]] == ["countdown-2.png", "countdown-2.html"]
    assert all(Path(file).stat().st_size > 4000 for file in record["files"])
    assert lopa(*command, "--picture", "countdown-9").err == (
        "lopa: error: no problem 'countdown-9' among 4; ids are like: countdown-1, countdown-2, "
        "countdown-3, countdown-4\n"
    )


def test_bad_rows_are_all_named_before_anything_is_decoded(
    lopa: Lopa, tiny_bundle: Path, problems: Path, tmp_path: Path
) -> None:
    with problems.open("a") as file:
        file.write('{"input": "x", "output": "y"}\n{"input"\n')
    run = tmp_path / "run"
    shown = lopa("eval", tiny_bundle, "--task", f"countdown={problems}", *FLAGS, "-o", run)
    assert (shown.status, shown.out, run.exists()) == (1, "", False)
    assert f"{problems}:5: input is 'x'" in shown.err
    assert f"{problems}:6: not valid JSON" in shown.err
    assert len(shown.err.splitlines()) == 1


def test_problems_that_do_not_fit_are_named_or_left_out(
    lopa: Lopa, tiny_bundle: Path, problems: Path
) -> None:
    long = {"input": ",".join(["12"] * 80), "output": "1+1=2"}
    with problems.open("a") as file:
        file.write(json.dumps(long) + "\n")
    command = ["eval", tiny_bundle, "--task", f"countdown={problems}", *FLAGS, "--json"]
    shown = lopa(*command)
    assert shown.status == 1
    assert f"{problems}:5: a prompt of 250 tokens leaves no room for an answer" in shown.err
    summary = json.loads(lopa(*command, "--skip-long").out)
    assert summary["skipped"] == ["countdown/countdown-5"]
    assert summary["scores"]["countdown"]["problems"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "gsm"], "unknown task 'gsm', expected one of: words, sudoku"),
        (["--task", "gsm8k=none.jsonl"], "cannot read problems from none.jsonl: No such file"),
        (["--task", "words", "--resume"], "--resume needs --output DIR"),
        (["--task", "words", "--sweep", "lookahead=1", "-o", "run"], "--sweep lookahead: give at"),
        (["--task", "words", "--sweep", "lookahead=0,1"], "--sweep needs --output DIR"),
        (["--task", "words", "--strategy", "x"], "strategy is 'x', expected one of: lopa, d2f"),
        (
            ["--task", "words", "--strategy", "vanilla", "--add-threshold", "0.3"],
            "add threshold is for d2f, vanilla does not use it; leave it out",
        ),
    ],
)
def test_errors_are_one_line(
    lopa: Lopa, tiny_bundle: Path, arguments: list[str], message: str
) -> None:
    shown = lopa("eval", tiny_bundle, *arguments)
    assert (shown.status, shown.out) == (1, "")
    assert shown.err.startswith(f"lopa: error: {message}")
    assert len(shown.err.splitlines()) == 1


def test_missing_matplotlib_names_the_extra(
    lopa: Lopa, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = lopa(
        "eval", tiny_bundle, "--task", "words", "--sweep", "lookahead=0,1", "-o", tmp_path / "r"
    )
    assert (shown.status, shown.err) == (
        1,
        "lopa: error: lopa eval needs matplotlib, which is not installed; "
        "install it with: pip install 'lopa[report]'\n",
    )


def test_the_help_names_every_task() -> None:
    listed = build_parser(["eval"]).format_help()
    assert "Score a bundle on tasks" in listed
    from lopa.tools.commands import eval as command

    assert all(name in (command.__doc__ or "") for name in (*TASKS, *GROUPS))

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from lopa.runtime.contract import LopaError
from lopa.tools.eval.rows import read_rows
from lopa.tools.eval.suite import Selection, load_suite


def write(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def gsm(number: int) -> dict[str, str]:
    return {"question": f"What is {number}?", "answer": f"It is {number}.\n#### {number}"}


def test_rows_of_every_kind_of_file(tmp_path: Path) -> None:
    lines = write(tmp_path / "a.jsonl", {"a": "\u2028"}, "", {"a": 2})
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    for path in (lines, packed):
        assert [(row.where, row.number) for row in read_rows(path).rows] == [
            (f"{path}:1", 1),
            (f"{path}:3", 3),
        ]
    array = write(tmp_path / "a.json", json.dumps([{"a": 1}, 5, {"a": 2}]))
    found = read_rows(array)
    assert [(row.where, row.data["a"]) for row in found.rows] == [
        (f"{array}#1", 1),
        (f"{array}#3", 2),
    ]
    assert found.faults == (f"{array}#2: int, expected an object",)
    folder = tmp_path / "folder" / "deep"
    folder.mkdir(parents=True)
    write(folder / "1.json", {"a": 1})
    write(folder / "2.json", "{")
    found = read_rows(folder.parent)
    assert [(row.where, row.number) for row in found.rows] == [(str(folder / "1.json"), 1)]
    assert len(found.faults) == 1


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"plain")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe")
    for name, message in (
        ("a.gz", "not a complete gzip file"),
        ("b.jsonl", r"not UTF-8 text \(byte 0\)"),
        ("none.jsonl", "cannot read problems from .*none.jsonl: No such file"),
    ):
        with pytest.raises(LopaError, match=message):
            read_rows(tmp_path / name)


def test_limit_takes_the_first_or_draws_by_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "gsm.jsonl", *map(gsm, range(20)))

    def ids(**settings: Any) -> list[str]:
        (found,) = load_suite([f"gsm8k={path}"], Selection(**settings))
        assert found.record["available"] == 20
        return [problem.id for problem in found.problems]

    assert ids(limit=3) == ["gsm8k-1", "gsm8k-2", "gsm8k-3"]
    assert len(ids()) == 20
    drawn = ids(limit=3, seed=1)
    assert drawn == ids(limit=3, seed=1) != ids(limit=3, seed=2)
    assert drawn == sorted(drawn, key=lambda name: int(name.removeprefix("gsm8k-")))


def test_prompts_have_instruction_examples_and_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "test.jsonl", gsm(7))
    train = write(tmp_path / "train.jsonl", gsm(1), gsm(2), gsm(3))
    shots = (f"gsm8k={train}",)
    (found,) = load_suite([f"gsm8k={path}"], Selection(shots=shots, shot_count=2, raw=True))
    assert found.problems[0].prompt == (
        "Question: What is 1?\nAnswer:\nIt is 1.\n#### 1\n\n"
        "Question: What is 2?\nAnswer:\nIt is 2.\n#### 2\n\n"
        "Question: What is 7?\nAnswer:"
    )
    assert found.record["shots"] == ["gsm8k-1", "gsm8k-2"]
    (found,) = load_suite([f"gsm8k={path}"], Selection())
    assert found.problems[0].prompt.startswith("Solve the problem step by step.")
    assert found.problems[0].prompt.endswith("\n\nQuestion: What is 7?\nAnswer:")
    with pytest.raises(LopaError, match=r"expected TASK=FILE with a task of this run \(gsm8k\)"):
        load_suite([f"gsm8k={path}"], Selection(shots=(f"math={train}",)))


def test_all_bad_rows_of_all_files_are_in_one_error(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", gsm(1), "{", {"question": "a"})
    two = write(tmp_path / "two.jsonl", {"problem": "p", "solution": "s"}, "[1]")
    with pytest.raises(LopaError) as caught:
        load_suite([f"gsm8k={one}", f"math={two}"], Selection(limit=1))
    message = str(caught.value)
    for part in (
        f"{one}:2: not valid JSON",
        f"{one}:3: expected answer",
        f"{two}:1: no answer",
        f"{two}:2: list, expected an object",
    ):
        assert message.count(part) == 1


def test_ids_are_told_apart(tmp_path: Path) -> None:
    row = {"problem": "p", "answer": "1", "unique_id": "same"}
    path = write(tmp_path / "math.jsonl", row, row)
    with pytest.raises(LopaError, match=f"math.jsonl:2: id 'same' is also at {path}:1"):
        load_suite([f"math={path}"], Selection())


def test_demo_tasks_come_with_problems() -> None:
    suite = load_suite(["demo"], Selection(limit=2))
    assert [item.label for item in suite] == ["words", "sudoku", "countdown", "functions"]
    assert all(len(item.problems) == 2 for item in suite)
    assert all(problem.prompt == problem.item.prompt for problem in suite[0].problems)


def test_files_of_one_task_have_their_own_labels(tmp_path: Path) -> None:
    row = {"input": "0300\n4200\n3040\n2030", "output": "1324\n4213\n3142\n2431"}
    one, two = write(tmp_path / "s4.jsonl", row), write(tmp_path / "s5.jsonl", row)
    suite = load_suite([f"sudoku={one}", f"sudoku={two}", "words"], Selection())
    assert [item.label for item in suite] == ["sudoku:s4", "sudoku:s5", "words"]
    with pytest.raises(LopaError, match="words:heldout is asked for twice"):
        load_suite(["demo", "words"], Selection())


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (
            "gsm",
            "unknown task 'gsm', expected one of: words, sudoku, countdown, functions, gsm8k, "
            "math, humaneval, mbpp, demo",
        ),
        ("gsm8k", "task gsm8k needs a file: --task gsm8k=FILE"),
        ("gsm8k=", "--task gsm8k= names no file; write gsm8k=FILE"),
    ],
)
def test_wrong_flags(flag: str, message: str) -> None:
    with pytest.raises(LopaError) as caught:
        load_suite([flag], Selection())
    assert str(caught.value) == message


def test_a_file_without_the_task_is_named(tmp_path: Path) -> None:
    row = {"task": "sudoku", "prompt": "p", "answer": "a", "check": {"givens": "0"}}
    path = write(tmp_path / "p.jsonl", row)
    assert [item.label for item in load_suite([f"demo={path}"], Selection())] == ["sudoku"]
    with pytest.raises(LopaError, match="has no problems of task words"):
        load_suite([f"words={path}"], Selection())

from __future__ import annotations

from typing import Any

import pytest
from lopa.tools.demo.problem import read_problems
from lopa.tools.demo.problems import TASKS as DEMO_TASKS
from lopa.tools.demo.run import HELD_OUT
from lopa.tools.eval.rows import read_rows
from lopa.tools.eval.tasks.protocol import Item, RowError
from lopa.tools.eval.tasks.registry import GROUPS, TASKS

SUDOKU = {"input": "0300\n4200\n3040\n2030", "output": "1324\n4213\n3142\n2431"}
COUNTDOWN = {"input": "24,40,28,36", "output": "40-28=12,24+12=36"}


def item_of(task: str, row: dict[str, Any]) -> Item:
    item = TASKS[task].item(row)
    assert item is not None
    return item


def test_the_group_demo_has_all_demo_tasks() -> None:
    assert GROUPS["demo"] == DEMO_TASKS


@pytest.mark.parametrize("task", ["words", "sudoku", "countdown", "functions"])
def test_reference_answers_are_right_and_others_are_not(task: str) -> None:
    problems = {problem.id: problem for problem in read_problems(HELD_OUT)}
    texts = {"words": "1+1=2\nanswer: 100", "sudoku": "1234", "countdown": "1+2=3"}
    found = 0
    for row in read_rows(HELD_OUT).rows:
        item = TASKS[task].item(row.data)
        if item is None or found == 5:
            continue
        found += 1
        problem = problems[row.data["id"]]
        assert (item.id, item.prompt) == (problem.id, problem.prompt)
        assert TASKS[task].grade(item, item.solution).correct
        wrong = texts.get(task, item.solution.replace("return ", "return not "))
        assert TASKS[task].grade(item, wrong).correct is False
    assert found == 5


def test_words_keeps_the_last_answer() -> None:
    item = Item("a", "p", "answer: 5", {"answer": 5})
    verdict = TASKS["words"].grade(item, "answer: 4\nanswer: 5 apples")
    assert (verdict.answer, verdict.correct) == ("5", True)
    assert TASKS["words"].grade(item, "5").detail == "no 'answer:'"


def test_public_sudoku() -> None:
    item = item_of("sudoku", SUDOKU)
    assert item.prompt == "Sudoku:\n0300\n4200\n3040\n2030"
    verdict = TASKS["sudoku"].grade(item, f"\n{SUDOKU['output']}\n")
    assert (verdict.answer, verdict.correct) == (SUDOKU["output"], True)
    assert not TASKS["sudoku"].grade(item, "1342\n4213\n3124\n2431").correct
    with pytest.raises(RowError, match="expected four rows"):
        TASKS["sudoku"].item({**SUDOKU, "input": "0300"})


def test_public_countdown_accepts_any_valid_solution() -> None:
    item = item_of("countdown", COUNTDOWN)
    assert item.check == {"numbers": [24, 40, 28], "target": 36}
    assert TASKS["countdown"].grade(item, "24-28=-4,40+-4=36").correct is False
    assert TASKS["countdown"].grade(item, " 40-28=12,12+24=36 ").correct
    assert not TASKS["countdown"].grade(item, "40-28=12").correct
    with pytest.raises(RowError, match="expected 'a,b,c,target'"):
        TASKS["countdown"].item({**COUNTDOWN, "input": "24;40"})


def test_demo_rows_of_other_tasks_are_left_and_bad_ones_named() -> None:
    row = {"task": "words", "prompt": "p", "answer": "a", "check": {"answer": 1}}
    assert TASKS["sudoku"].item(row) is None
    with pytest.raises(RowError, match=r"check\.answer is '1', expected int"):
        TASKS["words"].item({**row, "check": {"answer": "1"}})
    with pytest.raises(RowError, match="expected task, found prompt"):
        TASKS["words"].item({"prompt": "p"})

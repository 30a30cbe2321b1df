import random
from pathlib import Path

import pytest
from lopa.tools.demo import countdown, sudoku
from lopa.tools.demo.problem import Problem, is_held_out, read_problems, write_problems
from lopa.tools.demo.problems import TASKS, generate, load_public
from lopa.tools.demo.publish import HELD_OUT_COUNT, HELD_OUT_SEED, held_out_problems

from .grading import grade


@pytest.mark.parametrize("task", [*TASKS, "drills"])
def test_same_seed_gives_the_same_problems(task: str) -> None:
    assert generate(task, 3, 20) == generate(task, 3, 20)
    assert generate(task, 3, 20) != generate(task, 4, 20)


@pytest.mark.parametrize("task", TASKS)
def test_split_keeps_held_out_prompts_out_of_training(task: str) -> None:
    training = generate(task, 5, 300)
    held_out = generate(task, 5, 40, held_out=True)
    assert not any(is_held_out(problem.prompt) for problem in training)
    assert all(is_held_out(problem.prompt) for problem in held_out)
    assert len({problem.prompt for problem in held_out}) == 40
    assert not {p.prompt for p in training} & {p.prompt for p in held_out}


def test_held_out_is_about_one_sixteenth_of_all_prompts() -> None:
    assert sum(is_held_out(f"prompt {i}") for i in range(1600)) in range(70, 130)


@pytest.mark.parametrize("task", ["words", "sudoku", "countdown"])
def test_reference_answers_are_accepted(task: str) -> None:
    for problem in generate(task, 1, 50):
        assert grade(problem, problem.answer), problem
        assert not grade(problem, "")


def test_problems_survive_json(tmp_path: Path) -> None:
    problems = [problem for task in TASKS for problem in generate(task, 2, 3)]
    write_problems(tmp_path / "problems.jsonl", problems)
    assert list(read_problems(tmp_path / "problems.jsonl")) == problems


def test_published_problem_files_are_held_out_and_reproducible() -> None:
    folder = Path(countdown.__file__).parent
    samples = list(read_problems(folder / "samples.jsonl"))
    held_out = list(read_problems(folder / "heldout.jsonl"))
    assert [problem.task for problem in samples] == list(TASKS)
    assert [sum(p.task == task for p in held_out) for task in TASKS] == [25] * 4
    assert all(is_held_out(problem.prompt) for problem in samples + held_out)
    assert held_out == held_out_problems(HELD_OUT_COUNT, HELD_OUT_SEED)
    assert samples == held_out_problems(1, HELD_OUT_SEED + 1)


def test_words_reads_the_last_answer_line() -> None:
    problem = Problem("words", "", "", {"answer": 14})
    assert grade(problem, "12+7=19\n19-5=14\nanswer: 14")
    assert not grade(problem, "12+7=19\n19-5=14\nanswer: 15")
    assert not grade(problem, "12+7=19\n19-5=14")
    assert not grade(problem, "answer: 14\nanswer: 1")
    assert not grade(problem, "answer: 144")


def test_word_values_stay_in_range_and_answers_have_two_or_three_steps() -> None:
    for problem in generate("words", 9, 200):
        *steps, last = problem.answer.split("\n")
        assert len(steps) in (2, 3)
        for step in steps:
            left, right = step.split("=")
            assert eval(left.replace("/", "//")) == int(right)
            assert 1 <= int(right) <= 99
        assert last == f"answer: {steps[-1].split('=')[1]}"


def test_there_are_288_solved_grids() -> None:
    assert sudoku.solved_grids().shape == (288, 16)


def test_sudoku_puzzles_have_one_solution_and_4_to_12_givens() -> None:
    counts = set()
    for problem in generate("sudoku", 8, 60):
        rows = problem.prompt.removeprefix("Sudoku:\n").split("\n")
        counts.add(sum(digit != "0" for digit in "".join(rows)))
        assert [len(row) for row in rows] == [4] * 4
    assert counts <= set(range(4, 13))
    assert len(counts) > 5


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("1234\n3412\n4123\n2341", True),
        ("1234\n3412\n2143\n4321", False),  # obeys the rules, not the givens
        ("1234\n3412\n4123\n2314", False),
        ("1234\n3412\n4123", False),
        ("1234\n3412\n4123\n234x", False),
        ("1234 3412 4123 2341", False),
    ],
)
def test_sudoku_grader(completion: str, right: bool) -> None:
    row = {"input": "1000\n0002\n4003\n0000", "output": "1234\n3412\n4123\n2341"}
    assert grade(sudoku.from_public_row(row), completion) is right


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("44-15=29,79-29=50", True),
        ("79+15=94,94-44=50", True),  # another solution
        ("44-15=29,79-29=51", False),  # wrong sum
        ("44-15=28,79-28=51", False),
        ("44-15=29,80-30=50", False),  # numbers not at hand
        ("44-15=29,29+29=58", False),  # a result used twice
        ("79-29=50", False),
        ("44-15=29", False),  # a number left over
        ("44-15=29,", False),
        ("nonsense", False),
    ],
)
def test_countdown_grader(completion: str, right: bool) -> None:
    row = {"input": "15,44,79,50", "output": "44-15=29,79-29=50"}
    assert grade(countdown.from_public_row(row), completion) is right


def test_countdown_division_must_be_exact() -> None:
    problem = countdown.make_problem([7, 2, 9], 12, "")
    assert not grade(problem, "7/2=3,9+3=12")
    assert not grade(countdown.make_problem([0, 5, 9], 9, ""), "5/0=0,9+0=9")


def test_countdown_prefers_sums_and_differences() -> None:
    assert countdown.solutions([15, 44, 79])[50] in ("44-15=29,79-29=50", "79-44=35,35+15=50")
    assert countdown.solutions([84, 2])[42] == "84/2=42"


def test_public_rows_become_problems(tmp_path: Path) -> None:
    path = tmp_path / "cd3_test.jsonl"
    path.write_text('{"input": "65,34,56,25", "output": "65-34=31,56-31=25"}\n')
    (problem,) = load_public(path)
    assert problem.prompt == "Countdown:\n65,34,56,25"
    assert grade(problem, problem.answer)
    with pytest.raises(ValueError, match="sudoku or cd"):
        load_public(tmp_path / "gsm8k.jsonl")


def test_countdown_prompts_have_the_public_form() -> None:
    problem = countdown.draw(random.Random(0))
    body = problem.prompt.removeprefix("Countdown:\n").split(",")
    assert [int(x) for x in body] == [*problem.check["numbers"], problem.check["target"]]

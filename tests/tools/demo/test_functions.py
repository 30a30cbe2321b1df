from lopa.tools.demo.problem import Problem
from lopa.tools.demo.problems import generate

from .grading import grade

DOUBLE = Problem("functions", "", "", {"entry": "f", "tests": [[1, 2], [4, 8]]})


def test_references_pass_their_own_tests() -> None:
    for problem in generate("functions", 1, 8):
        assert grade(problem, problem.answer), problem


def test_any_correct_text_passes_and_wrong_results_fail() -> None:
    assert grade(DOUBLE, "def f(x):\n    return x + x")
    assert grade(DOUBLE, "f = lambda n: 2 * n")
    assert not grade(DOUBLE, "def f(x):\n    return x * x")
    assert not grade(DOUBLE, "def g(x):\n    return 2 * x")
    assert not grade(DOUBLE, "def f(x:\n    return")
    assert not grade(DOUBLE, "def f(x):\n    return print")
    assert not grade(DOUBLE, "import sys\nsys.exit(0)")


def test_types_count() -> None:
    problem = Problem("functions", "", "", {"entry": "f", "tests": [[1, True]]})
    assert grade(problem, "def f(x):\n    return x == 1")
    assert not grade(problem, "def f(x):\n    return 1")


def test_printing_does_not_disturb_the_results() -> None:
    assert grade(DOUBLE, "def f(x):\n    print('[9]')\n    return 2 * x")

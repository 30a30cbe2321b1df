"""Problems of the demo, graded as `lopa eval` does."""

from __future__ import annotations

from lopa.tools.demo.problem import Problem
from lopa.tools.eval.tasks.protocol import Item
from lopa.tools.eval.tasks.registry import TASKS


def grade(problem: Problem, text: str) -> bool:
    """Whether the text solves the problem."""
    item = Item(problem.id, problem.prompt, problem.answer, problem.check)
    return TASKS[problem.task].grade(item, text).correct

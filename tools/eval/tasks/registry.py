"""All tasks by name."""

from __future__ import annotations

from ....runtime.contract import LopaError
from .competition import Competition
from .countdown import Countdown
from .functions import Functions
from .gsm8k import Gsm8k
from .humaneval import HumanEval
from .mbpp import Mbpp
from .protocol import Task
from .sudoku import Sudoku
from .words import Words

_ALL: tuple[Task, ...] = (
    Words(),
    Sudoku(),
    Countdown(),
    Functions(),
    Gsm8k(),
    Competition(),
    HumanEval(),
    Mbpp(),
)
TASKS = {task.name: task for task in _ALL}
GROUPS = {"demo": ("words", "sudoku", "countdown", "functions")}


def find_tasks(name: str) -> list[Task]:
    """The task of that name, or the tasks of that group; raises LopaError with the list."""
    if name not in TASKS and name not in GROUPS:
        listed = ", ".join([*TASKS, *GROUPS])
        raise LopaError(f"unknown task {name!r}, expected one of: {listed}")
    return [TASKS[member] for member in GROUPS.get(name, (name,))]

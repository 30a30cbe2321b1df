"""The problems of a run: `--task NAME[=FILE]` flags read, checked and cut to a limit."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...runtime.contract import LopaError
from ..prompt_lines import PromptLineError
from .rows import Rows, read_rows
from .tasks.protocol import Item, Task
from .tasks.registry import GROUPS, find_tasks


@dataclass(frozen=True)
class Problem:
    """One problem with its id, its place in the file and the whole prompt."""

    id: str
    where: str
    prompt: str
    item: Item


@dataclass(frozen=True)
class TaskSet:
    """The problems of one task, under the label they are reported by."""

    label: str
    task: Task
    problems: tuple[Problem, ...]
    record: dict[str, Any]  # file, sha256, counts, examples: what a resumed run must share


@dataclass(frozen=True)
class Selection:
    """Which problems, and how they are asked."""

    limit: int | None = None  # problems of each task
    seed: int | None = None  # draws them; None takes the first
    shots: tuple[str, ...] = ()  # NAME=FILE of worked examples
    shot_count: int = 4  # first rows of such a file
    raw: bool = False


def load_suite(flags: Sequence[str], selection: Selection) -> list[TaskSet]:
    """Read every file before anything is decoded; raises one error with all bad rows."""
    wanted = [pair for flag in flags for pair in _wanted(flag)]
    examples = dict(
        _example_file(flag, [task for task, _, _ in wanted]) for flag in selection.shots
    )
    reader = _Reader()
    labels = _labels([(task, path) for task, path, _ in wanted])
    sets = []
    for (task, path, grouped), label in zip(wanted, labels, strict=True):
        found = reader.items(task, path)
        if not found and grouped:
            continue
        record = {
            "task": task.name,
            "file": str(path),
            "sha256": reader.rows(path).sha256,
            "available": len(found),
        }
        shots: list[Item] = []
        if task.name in examples:
            rows = reader.items(task, examples[task.name])[: selection.shot_count]
            shots = [item for _, _, item in rows]
            record["shots"] = [name for name, _, _ in rows]
            record["shots_sha256"] = reader.rows(examples[task.name]).sha256
        problems = _ask(task, _select(found, selection), shots, selection.raw)
        sets.append(TaskSet(label, task, problems, {**record, "problems": len(problems)}))
    if reader.faults:
        raise PromptLineError(list(dict.fromkeys(reader.faults)))
    for item in sets:
        if not item.problems:
            raise LopaError(f"{item.record['file']} has no problems of task {item.task.name}")
    if not sets:
        raise LopaError(f"no problems in: {', '.join(flags)}")
    return sets


@dataclass
class _Reader:
    """Reads each file once and collects what is wrong in all of them."""

    read: dict[Path, Rows] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def rows(self, path: Path) -> Rows:
        if path not in self.read:
            self.read[path] = read_rows(path)
            self.faults += self.read[path].faults
        return self.read[path]

    def items(self, task: Task, path: Path) -> list[tuple[str, str, Item]]:
        """Id, place and item of every row of the task."""
        found: list[tuple[str, str, Item]] = []
        places: dict[str, str] = {}
        for row in self.rows(path).rows:
            try:
                item = task.item(row.data)
            except LopaError as error:
                self.faults.append(f"{row.where}: {error}")
                continue
            if item is None:
                continue
            name = item.id or f"{task.name}-{row.number}"
            if name in places:
                self.faults.append(f"{row.where}: id {name!r} is also at {places[name]}")
            places[name] = row.where
            found.append((name, row.where, item))
        return found


def _wanted(flag: str) -> list[tuple[Task, Path, bool]]:
    """Task, file, and whether the file need not have problems of this task."""
    name, given, file = flag.partition("=")
    tasks = find_tasks(name)
    if given and not file:
        raise LopaError(f"--task {flag} names no file; write {name}=FILE")
    pairs = []
    for task in tasks:
        path = Path(file) if file else task.file
        if path is None:
            raise LopaError(f"task {task.name} needs a file: --task {task.name}=FILE")
        pairs.append((task, path, name in GROUPS))
    return pairs


def _example_file(flag: str, tasks: Sequence[Task]) -> tuple[str, Path]:
    name, _, file = flag.partition("=")
    if not file or name not in {task.name for task in tasks}:
        known = ", ".join(dict.fromkeys(task.name for task in tasks))
        raise LopaError(f"--shots {flag}: expected TASK=FILE with a task of this run ({known})")
    return name, Path(file)


def _labels(wanted: Sequence[tuple[Task, Path]]) -> list[str]:
    """The task's name, with the file's where a task is asked of several files."""
    count = Counter(task.name for task, _ in wanted)
    labels = [
        task.name if count[task.name] == 1 else f"{task.name}:{path.name.partition('.')[0]}"
        for task, path in wanted
    ]
    twice = [label for label, times in Counter(labels).items() if times > 1]
    if twice:
        raise LopaError(f"{twice[0]} is asked for twice; give each task and file name once")
    return labels


def _select(
    found: Sequence[tuple[str, str, Item]], selection: Selection
) -> Sequence[tuple[str, str, Item]]:
    if selection.limit is None or selection.limit >= len(found):
        return found
    if selection.seed is None:
        return found[: selection.limit]
    drawn = random.Random(selection.seed).sample(range(len(found)), selection.limit)
    return [found[index] for index in sorted(drawn)]


def _ask(
    task: Task, chosen: Sequence[tuple[str, str, Item]], shots: Sequence[Item], raw: bool
) -> tuple[Problem, ...]:
    """Put the instruction and the worked examples before every problem."""
    head = [] if raw or not task.instruction else [task.instruction]
    head += [f"{item.prompt}\n{item.solution}" for item in shots]
    return tuple(
        Problem(name, where, "\n\n".join([*head, item.prompt]), item)
        for name, where, item in chosen
    )

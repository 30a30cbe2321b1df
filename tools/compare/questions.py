"""The prompts of a comparison: from a file of prompts or problems, or those that are shipped."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from ...runtime.contract import LopaError
from ...runtime.manifest import BundleManifest
from ...runtime.options import DecodeOptions
from ...runtime.session import Session
from ..eval.suite import Problem, Selection, TaskSet, load_suite
from ..prompt_lines import Prompt, check_prompts, read_prompts
from .decodes import Question

DEMO = "demo"  # tasks of a file of problems that names none


def read_questions(
    session: Session,
    args: argparse.Namespace,
    options: DecodeOptions,
    manifests: Sequence[BundleManifest],
) -> list[Question]:
    """Encode what `args` asks with the tokenizer of A and check that they fit every manifest.

    Raises LopaError with every fault.
    """
    raw, problems, prompts = args.raw, args.problems, args.prompts

    def encode(prompt: Prompt) -> list[int]:
        ids = session.encode(prompt.text, prompt.ids, raw)
        for manifest in manifests:
            options.check_prompt(len(ids), manifest)
        return ids

    if problems is not None:
        flag = problems if "=" in problems else f"{DEMO}={problems}"
        suite = load_suite([flag], Selection(raw=raw))
        asked = [(item, problem) for item in suite for problem in item.problems]
        lines = [Prompt(problem.id, problem.prompt, None, problem.where) for _, problem in asked]
        return [
            Question(f"{item.label}/{problem.id}", ids, _grader(item, problem))
            for (item, problem), ids in zip(asked, check_prompts(lines, encode), strict=True)
        ]
    if prompts is None:
        from ..demo.run import SAMPLES

        _check_tokenizer(session.folder)
        prompts = str(SAMPLES)
    lines = read_prompts(prompts, args.max_prompt_bytes)
    encoded = check_prompts(lines, encode)
    return [Question(str(line.id), ids) for line, ids in zip(lines, encoded, strict=True)]


def _grader(item: TaskSet, problem: Problem) -> Callable[[str], bool]:
    return lambda text: item.task.grade(problem.item, text).correct


def _check_tokenizer(folder: Path) -> None:
    if not (folder / "tokenizer.json").is_file():
        raise LopaError(
            f'{folder} has no tokenizer; give --prompts FILE with lines {{"prompt_ids": [...]}}'
        )

"""The flags of a run over tasks, shared by every command that scores a bundle."""

from __future__ import annotations

import argparse

from .arguments import positive
from .paths import path, task_file, work_folder


def add_problem_flags(parser: argparse.ArgumentParser) -> None:
    """Add the bundle and what it is asked."""
    parser.add_argument("bundle", metavar="BUNDLE", type=path, help="folder made by lopa build")
    parser.add_argument(
        "--task",
        metavar="NAME[=FILE]",
        type=task_file,
        action="extend",
        nargs="+",
        required=True,
        help="tasks, with your file of problems (JSON lines, also .gz; a JSON array; a folder)",
    )
    parser.add_argument("--limit", metavar="N", type=positive, help="problems of each task")
    parser.add_argument("--raw", action="store_true", help="no chat template, no instruction")


def add_output_flags(parser: argparse.ArgumentParser, required: bool, content: str) -> None:
    """Add the folder of the run; `content` is what it gets."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=work_folder,
        required=required,
        help=f"folder of {content}",
    )
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--resume", action="store_true", help="continue the run in --output")
    kept.add_argument("--force", action="store_true", help="replace what --output has")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")

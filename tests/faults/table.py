"""The table of what the drill ran and how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

ENDS = ("refused", "right", "any", "fault")
HEAD = "| folder and command | case | run | refused with one line | right result | ran | fault |"


def table_lines(rows: Iterable[tuple[str, str, dict[str, int]]]) -> list[str]:
    """Lines of a Markdown table: one per folder, command and kind of case."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for subject, kind, ends in rows:
        counts.setdefault((subject, kind), Counter()).update(ends)
    lines = [HEAD, "|---|---|---:|---:|---:|---:|---:|"]
    for (subject, kind), ends in sorted(counts.items()):
        numbers = " | ".join(str(ends[end]) for end in ENDS)
        lines.append(f"| {subject} | {kind} | {ends.total()} | {numbers} |")
    total = Counter[str]()
    for ends in counts.values():
        total += ends
    numbers = " | ".join(str(total[end]) for end in ENDS)
    return [*lines, f"| all | | {total.total()} | {numbers} |"]

"""Messages of a TensorRT build as one readable list.

The library raises nothing: its calls return None or False and the reason goes to the logger, mixed
with source locations and with the same fault told again by every caller.
"""

from __future__ import annotations

import re
from typing import Any

_NOISE = (
    (re.compile(r"\s+"), " "),
    (re.compile(r"\(?In \w+ at /\S+:\d+"), ""),  # where in the library's source
    (re.compile(r"\[\w+\.cpp(::\w+)*:+\d+(: \w+)?\]\s*"), ""),
    (re.compile(r"^\w+\.cpp:\d+: "), ""),
    (re.compile(r"\bI?\w+::\w+: (?=Error Code)"), ""),
    (re.compile(r"Error Code \d+: (API Usage Error|Internal Error|Myelin|Cuda Runtime)\s*"), ""),
    (re.compile(r"\s+(?=[).;]|$)"), ""),
    (re.compile(r"^\((.*)\)$"), r"\1"),
)
# What every call says where there is no GPU, and the parser's picture of a failing node: the same
# fault comes from the parser's error list, with the node's name.
_SIDE_EFFECTS = re.compile(r"cudaError 35|ModelImporter\.cpp:\d+: (While parsing|---|ERROR:)")
# Said of every graph with a TopK; the contract's outputs are int32.
_HARMLESS = re.compile(r"Make sure (in|out)put \S+ has Int64 binding")


def readable(message: str) -> str:
    """One line of a message of the library, without its source locations."""
    for pattern, replacement in _NOISE:
        message = pattern.sub(replacement, message)
    return message.strip(" ;")


def make_build_log(library: Any) -> Any:
    """Return a logger for `library` that keeps errors and warnings, each once.

    `errors` and `warnings` are lists of lines, `count()` their number, and `reason()` joins the
    errors; `clear()` forgets all.
    """
    severity = library.ILogger

    class BuildLog(library.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            library.ILogger.__init__(self)
            self.errors: list[str] = []
            self.warnings: list[str] = []
            self._side_effects: list[str] = []

        def log(self, level: Any, msg: str) -> None:
            if level in (severity.INTERNAL_ERROR, severity.ERROR):
                kept = self._side_effects if _SIDE_EFFECTS.search(msg) else self.errors
            elif level == severity.WARNING and not _HARMLESS.search(msg):
                kept = self.warnings
            else:
                return
            line = readable(msg)
            if line and line not in kept:
                kept.append(line)

        def count(self) -> int:
            return len(self.errors) + len(self.warnings) + len(self._side_effects)

        def clear(self) -> None:
            for kept in (self.errors, self.warnings, self._side_effects):
                kept.clear()

        def reason(self) -> str:
            found = self.errors or self._side_effects
            return "; ".join(found) or "the library gave no reason"

    return BuildLog()


def parser_faults(parser: Any) -> list[str]:
    """What an ONNX parser could not take, each with name and operator of the node."""
    found = []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        text = error.desc()
        lines = [line for line in text.splitlines() if not _SIDE_EFFECTS.search(line)]
        line = readable("\n".join(lines or [text]))
        said = "the library does not know it" if line in ("", "false") else line
        place = f"node {error.node_name()} ({error.node_operator()}): "
        line = (place if error.node_name() or error.node_operator() else "") + said
        if line not in found:
            found.append(line)
    return found

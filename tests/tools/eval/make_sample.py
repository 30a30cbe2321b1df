"""Samples for tests."""

from __future__ import annotations

from typing import Any

from lopa.tools.eval.samples import Sample


def make_sample(name: str, **changes: Any) -> Sample:
    """A sample of task "a" with 10 tokens (8 useful), 4 steps, 100 rows and 2 seconds."""
    fields: dict[str, Any] = {
        "task": "a",
        "id": name,
        "variant": None,
        "prompt": "p",
        "text": "t",
        "answer": "t",
        "correct": True,
        "detail": "",
        "prompt_tokens": 3,
        "tokens": 10,
        "useful_tokens": 8,
        "steps": 4,
        "forwards": 12,
        "rows": 100,
        "seconds": 2.0,
        "limited": False,
    }
    return Sample(**{**fields, **changes})

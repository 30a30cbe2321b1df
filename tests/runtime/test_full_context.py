"""Decodes that fill a bundle's context to its last slot give what a larger one gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import lopa
import pytest
from lopa.runtime.contract import LopaError
from lopa.runtime.options import DecodeOptions
from lopa.runtime.session import Session

from ..exported import Exports

CONTEXT = 48  # six blocks of 8
CASES: list[tuple[int, dict[str, Any]]] = [
    (0, {"base": "block-diffusion"}),
    (1, {"base": "block-diffusion"}),
    (0, {"base": "block-diffusion", "cache": "none"}),
    (1, {"base": "block-diffusion", "cache": "none"}),
    (1, {"base": "block-diffusion", "cache": "dual", "small_block_size": 4}),
    (1, {"base": "d2f"}),
    (1, {"base": "vanilla", "steps": 12}),
    (1, {"base": "fast-dllm", "cache": "dual"}),
]


def trained(session: Session, base: str, shift: int) -> Session:
    """The session with the traits that `base` needs; the engine serves any."""
    attention = "block-causal" if base == "block-diffusion" else "full"
    model = replace(
        session.manifest.model,
        logit_shift=shift,
        window_attention=attention,
        stop_token_ids=(),
    )
    return Session(session.folder, replace(session.manifest, model=model), session.program)


@pytest.fixture(scope="module")
def sizes(exports: Exports, tiny_model: Path) -> list[Session]:
    """The tiny model with a context of six blocks, and with a larger one."""
    return [
        lopa.open_bundle(
            exports.bundle(f"tiny-{context}", tiny_model, 2, (24, context), (context,)), threads=1
        )
        for context in (CONTEXT, 2 * CONTEXT)
    ]


@pytest.mark.parametrize("prompt", [1, 8, 11])
@pytest.mark.parametrize(("shift", "settings"), CASES)
def test_all_that_fits_is_decoded(
    sizes: list[Session], shift: int, settings: dict[str, Any], prompt: int
) -> None:
    small, large = (trained(session, settings["base"], shift) for session in sizes)
    ids = list(range(3, 3 + prompt))
    stop: dict[str, Any] = {} if settings["base"] in ("vanilla", "fast-dllm") else {"stop": "none"}
    result = small.generate(prompt_ids=ids, **settings, **stop)
    ahead = settings["base"] == "block-diffusion" and shift and "none" not in settings.values()
    whole = (CONTEXT - prompt) // 8 * 8 if settings["base"] == "d2f" else CONTEXT - prompt
    assert len(result.token_ids) == whole + bool(ahead)
    budget = small_budget(small, prompt, settings)
    same = large.generate(prompt_ids=ids, max_new_tokens=budget, **settings, **stop)
    assert (result.token_ids, result.steps) == (same.token_ids, same.steps)


def small_budget(session: Session, prompt: int, settings: dict[str, Any]) -> int:
    """The token budget that the context holds; one block more is refused or waits in vain."""
    budget = DecodeOptions(**settings).room(prompt, session.manifest)
    if settings["base"] != "d2f":
        more = DecodeOptions(**settings, max_new_tokens=budget + 8)
        with pytest.raises(LopaError, match="--context"):
            more.check_prompt(prompt, session.manifest)
    return budget

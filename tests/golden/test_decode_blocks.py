"""Trajectories of the published block-wise loops, on the saved engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lopa.runtime.decoder import StepEvent
from lopa.runtime.session import Session

from .cases import BLOCK_FILES, PARTS, assert_none, part_of, read_file
from .conftest import OpenGolden

Settings = dict[str, Any]
SDAR_FILLS = {
    "low_confidence_static": "quota",
    "low_confidence_dynamic": "threshold",
    "sequential": "sequential",
}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("file", BLOCK_FILES)
def test_trajectories(golden: Path, open_golden: OpenGolden, file: str, part: int) -> None:
    data = read_file(golden, file)
    session = _with_stop(open_golden(data["checkpoint"]), data.get("stop_token_id"))
    assert_none(
        f"case {case['id']}: {fault}"
        for case in part_of(data, part)
        for fault in _faults(session, data, case, OPTIONS[data["loop"]](data, case["settings"]))
    )


def _with_stop(session: Session, stop: int | None) -> Session:
    """The session with the one stop token that the reference was given, if it was given one."""
    if stop is None:
        return session
    model = replace(session.manifest.model, stop_token_ids=(stop,))
    return Session(session.folder, replace(session.manifest, model=model), session.program)


def _llada_vanilla(data: dict[str, Any], settings: Settings) -> Settings:
    return {
        "strategy": "vanilla",
        "block_size": settings["block_length"],
        "max_new_tokens": settings["gen_length"],
        "steps": settings["steps"],
    }


def _fast_dllm(data: dict[str, Any], settings: Settings) -> Settings:
    threshold, factor = settings["threshold"], settings.get("factor")
    if factor is not None:
        fill: Settings = {"factor": factor}
    elif threshold is not None:
        fill = {"confidence": threshold}
    else:
        fill = {"fill": "quota"}
    return {
        "strategy": "fast-dllm",
        "block_size": settings["block_length"],
        "max_new_tokens": settings["gen_length"],
        "steps": settings["steps"],
        "cache": settings["cache"],
        "revision": data["revision"],
        **fill,
    }


def _fast_dllm_dream(data: dict[str, Any], settings: Settings) -> Settings:
    quota = {"fill": "quota", "measure": "entropy"}
    return {
        "strategy": "fast-dllm",
        "block_size": settings["block_length"],
        "max_new_tokens": settings["max_new_tokens"],
        "steps": settings["steps"],
        "cache": settings["cache"],
        "top_k": settings["top_k"],
        **(quota if settings["alg"] == "entropy" else {"confidence": settings["threshold"]}),
    }


def _sdar(data: dict[str, Any], settings: Settings) -> Settings:
    fill = SDAR_FILLS[settings["remasking_strategy"]]
    by_confidence = {"confidence": settings["confidence_threshold"]} if fill == "threshold" else {}
    return {
        "strategy": "block-diffusion",
        "block_size": settings["block_length"],
        "max_new_tokens": settings["gen_length"],
        "block_steps": settings["denoising_steps"],
        "fill": fill,
        **by_confidence,
        "stop": "block" if settings["stop"] else "none",
    }


def _fast_dllm_v2(data: dict[str, Any], settings: Settings) -> Settings:
    return {
        "strategy": "block-diffusion",
        "block_size": data["block_size"],
        "small_block_size": settings["small_block_size"],
        "max_new_tokens": settings["max_new_tokens"],
        "confidence": settings["threshold"],
        "cache": "dual" if settings["use_block_cache"] else "prefix",
        "stop": "token" if settings["stop"] else "none",
        "revision": "legacy",
    }


def _llada2(data: dict[str, Any], settings: Settings) -> Settings:
    return {
        "strategy": "block-diffusion",
        "block_size": settings["block_length"],
        "max_new_tokens": settings["gen_length"],
        "block_steps": settings["steps"],
        "confidence": settings["threshold"],
        "cache": "none",
        "stop": "token" if settings["eos_early_stop"] else "block",
    }


OPTIONS = {
    "llada_generate": _llada_vanilla,
    "fast_dllm_llada": _fast_dllm,
    "fast_dllm_dream_block": _fast_dllm_dream,
    "sdar_block_diffusion_generate": _sdar,
    "fast_dllm_v2_generate": _fast_dllm_v2,
    "llada2_moe_generate": _llada2,
}


def _faults(
    session: Session, data: dict[str, Any], case: dict[str, Any], options: Settings
) -> list[str]:
    """Decode one case; list what differs, up to the first step that does."""
    prompt, steps, count = case["prompt_ids"], 0, case["model_forwards"]
    output: list[int] = []
    for event in session.stream(prompt_ids=prompt, **options):
        if steps == count:
            return [f"step {event.step} is one too many"]
        if found := list(_step_faults(event, case["steps"][steps])):
            return found
        steps, output = event.step, event.tokens[len(prompt) :].tolist()
    if steps != count:
        return [f"{steps} steps, expected {count}"]
    expected = case["output_ids"]
    if case.get("includes_prompt") and expected[: len(prompt)] == prompt:
        expected = expected[len(prompt) :]
    found_output = _published_output(data, case["settings"], output, len(expected))
    return [] if found_output == expected else [f"output is {found_output}, expected {expected}"]


def _step_faults(event: StepEvent, step: dict[str, Any]) -> Iterator[str]:
    filled = step.get("filled")
    if step.get("appended"):
        filled = [
            [fill[0], token] for fill, token in zip(event.filled, step["appended"], strict=True)
        ]
    found: dict[str, Any] = {"input_len": event.window}
    expected = {"input_len": step.get("input_len", event.window)}
    if filled is not None:
        found["filled"], expected["filled"] = [list(fill) for fill in event.filled], filled
    if "cache_len" in step and step.get("kind") != "sub_block":
        found["cache_len"], expected["cache_len"] = event.cached, step["cache_len"]
    if step.get("kind") in ("prefill", "denoise", "store"):
        found["stored"], expected["stored"] = event.committed > 0, step["kind"] != "denoise"
    for name, value in found.items():
        if value != expected[name]:
            yield f"step {event.step}: {name} is {value}, expected {expected[name]}"


def _published_output(
    data: dict[str, Any], settings: Settings, output: Sequence[int], length: int
) -> list[int]:
    """What the published loop returns for `output`: cut, or filled up with masks."""
    output = list(output)
    if data["loop"] == "llada2_moe_generate":
        output = output[: settings["gen_length"]]
        eos = data["eos_token_id"]
        return output[: output.index(eos) + 1] if eos in output else output
    if data["loop"] == "sdar_block_diffusion_generate":
        return output + [data["mask_token_id"]] * (length - len(output))
    return output

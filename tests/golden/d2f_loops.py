"""Settings of the published D2F and LoPA loops, and a decode compared with theirs step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lopa.runtime.decoder import StepEvent
from lopa.runtime.session import Session

TOLERANCE = 2e-4
SCORE_MEASURES = {"default": "probability", "margin": "margin", "neg_entropy": "entropy"}
RANKINGS = {"maskgit_plus": "probability", "topk_margin": "margin", "entropy": "entropy"}


def published_options(file: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Map the settings of a published loop to decode options."""
    if file.startswith("dream_vanilla"):
        return {
            "strategy": "vanilla",
            "max_new_tokens": settings["max_new_tokens"],
            "steps": settings["steps"],
            "top_k": settings["top_k"],
            "measure": RANKINGS[settings["alg"]],
        }
    options = {
        "strategy": "d2f",
        "block_size": settings["block_size"],
        "max_new_tokens": settings["max_new_tokens"],
        "add_threshold": settings["block_add_threshold"],
        "complete_threshold": settings["decoded_token_threshold"],
        "confidence": settings["skip_threshold"],
    }
    if file.startswith("d2f"):
        return options
    branching = settings["branching_factor"]
    competes = branching > 1 and settings["base_branch_competition"]
    return {
        **options,
        "strategy": "lopa",
        "lookahead": branching if competes else 0,
        "window_attention": "full" if settings["use_full_attention"] else "block-causal",
        "score": "mixed",
        "score_alpha": settings["selection_conf_alpha"],
        "score_fraction": settings["branch_topp"],
        "measure": SCORE_MEASURES[settings["sampling_strategy"]],
        "anchor_wins": settings["verification_force_base_winner"],
    }


def decode_faults(session: Session, case: dict[str, Any], options: dict[str, Any]) -> list[str]:
    """Decode one case; list what differs, up to the first step that does."""
    prompt, expected = case["prompt_ids"], case["steps"]
    count = case.get("forward_steps", case["model_forwards"])
    steps, branches, output = 0, 0, []
    for event in session.stream(prompt_ids=prompt, **options):
        if steps == count:
            return [f"step {event.step} is one too many"]
        if found := list(_step_faults(event, expected, steps)):
            return found
        steps, branches = event.step, branches + len(event.scores)
        output = event.tokens[len(prompt) :].tolist()
    faults = []
    if output != case["output_ids"]:
        faults.append(f"after step {steps}: output is {output}, expected {case['output_ids']}")
    if (steps, branches) != (count, case["model_forwards"]):
        faults.append(
            f"{steps} steps and {branches} forwards, expected {count} and {case['model_forwards']}"
        )
    return faults


def _step_faults(event: StepEvent, steps: list[dict[str, Any]], index: int) -> Iterator[str]:
    step = steps[index]
    found: dict[str, Any] = {"filled": [list(fill) for fill in sorted(event.filled)]}
    if "seq" in step:
        found |= {
            "seq": event.tokens.tolist(),
            "cache_len": event.cached,
            "update_kvcache": event.committed,
            "input_len": event.window,
        }
    expected = {name: step.get(name) for name in found}
    if "branches" in step:
        forward = step["branches"]
        found["winner"], expected["winner"] = event.winner, step["winner"]
        expected["input_len"] = max(branch["input_len"] for branch in forward)
        found["extras"], expected["extras"] = event.extras, _extras(steps, index)
        yield from _differences(event, "score", event.scores, forward)
        yield from _differences(event, "creation_conf", event.confidences, forward)
    for name, value in found.items():
        if value != expected[name]:
            yield f"step {event.step}: {name} is {value}, expected {expected[name]}"


def _extras(steps: list[dict[str, Any]], index: int) -> tuple[tuple[int, int], ...]:
    """Position and token that the winning lookahead was made with, in the step before."""
    step = steps[index]
    if step["winner"] == len(step["branches"]) - 1:
        return ()
    winner = step["branches"][step["winner"]]
    return tuple(
        (position, token)
        for identity, position, token, _ in steps[index - 1]["lookaheads"]
        if identity == winner["id"]
    )


def _differences(
    event: StepEvent, name: str, found: tuple[float, ...], branches: list[dict[str, Any]]
) -> Iterator[str]:
    # A lookahead may share its id with the base; the reference then wrote the base's creation_conf.
    marked = [name == "creation_conf" and branch["is_base"] for branch in branches[:-1]] + [False]
    expected = [branch[name] for branch in branches]
    same = len(found) == len(expected) and all(
        skipped or abs(one - other) < TOLERANCE
        for skipped, one, other in zip(marked, found, expected, strict=True)
    )
    if not same:
        yield f"step {event.step}: {name} of the branches {found}, expected {expected}"

"""Single engine steps on explicit inputs, with copies of everything the step gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lopa.runtime.contract import Instance
from lopa.runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState
from lopa.runtime.manifest import read_bundle
from lopa.runtime.session import Session
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Step:
    """Head outputs [R, ...] and window keys and values [L, H, B * W, D]."""

    token_ids: NDArray[np.int32]
    log_probs: Floats
    entropy: Floats
    keys: Floats
    values: Floats


def open_engine(bundle: Path) -> OnnxRuntimeState:
    """Open a bundle's engine on one thread of the CPU."""
    return OnnxRuntimeProgram(bundle, read_bundle(bundle), "cpu", threads=1).decode_state()


def state_of(session: Session) -> Any:
    """The state that the next decode of a session of one will use."""
    with session.state() as state:
        return state


def run_step(
    engine: OnnxRuntimeState,
    ids: NDArray[Any],
    positions: NDArray[Any],
    visible: NDArray[np.bool_],
    cache_mask: NDArray[np.bool_] | None = None,
    head_rows: NDArray[Any] | None = None,
    shape: Instance | None = None,
    temperature: float = 1.0,
) -> Step:
    """Run `ids` [B, W]; without `shape` the step's own, without `head_rows` all rows."""
    branches, window = ids.shape
    rows = np.arange(branches * window) if head_rows is None else head_rows
    slots = 1 if cache_mask is None else len(cache_mask)
    shape = shape or engine.shape_for(Instance(branches, window, slots, len(rows)))
    inputs = engine.inputs(shape)
    inputs.input_ids[:] = 0
    inputs.position_ids[:] = 0
    inputs.isolation_mask[:] = np.eye(shape.window_rows, dtype=np.bool_)
    inputs.input_ids[:branches, :window] = ids
    inputs.position_ids[:branches, :window] = positions
    flat = flat_rows(branches, window, shape.window)
    inputs.isolation_mask[np.ix_(flat, flat)] = visible
    inputs.cache_mask[:] = False
    if cache_mask is not None:
        inputs.cache_mask[:slots] = cache_mask
    inputs.head_rows[:] = 0
    inputs.head_rows[: len(rows)] = flat[rows]
    inputs.temperature[:] = temperature
    outputs = engine.run(shape)
    keys, values = engine.window()
    return Step(
        outputs.token_ids[: len(rows)].copy(),
        outputs.log_probs[: len(rows)].copy(),
        outputs.entropy[: len(rows)].copy(),
        keys[:, :, flat].copy(),
        values[:, :, flat].copy(),
    )


def flat_rows(branches: int, window: int, width: int) -> NDArray[np.intp]:
    """Flat indices of `window` rows of each branch in a step of window width `width`."""
    return (np.arange(branches)[:, None] * width + np.arange(window)).reshape(-1)


def by_branch(*masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Block-diagonal isolation mask of branches that each have their own square mask."""
    sizes = [len(mask) for mask in masks]
    whole = np.zeros((sum(sizes), sum(sizes)), np.bool_)
    start = 0
    for mask in masks:
        whole[start : start + len(mask), start : start + len(mask)] = mask
        start += len(mask)
    return whole


def cache(engine: OnnxRuntimeState, slots: int) -> tuple[Floats, Floats]:
    """Copy the first `slots` cache slots: keys and values [L, H, slots, D]."""
    keys, values = engine.cache()
    return keys[:, :, :slots].copy(), values[:, :, :slots].copy()


def gap(one: Step, other: Step) -> float:
    """Largest absolute difference of two steps; infinite when clear candidates differ."""
    if not same_candidates(one, other, np.arange(len(one.token_ids))):
        return float("inf")
    pairs = (
        (one.log_probs, other.log_probs),
        (one.entropy, other.entropy),
        (one.keys, other.keys),
        (one.values, other.values),
    )
    return max(float(np.abs(first - second).max(initial=0)) for first, second in pairs)


def same_candidates(one: Step, other: Step, rows: NDArray[Any]) -> bool:
    """Compare token ids of head rows; candidates within 1e-4 of a neighbour may trade places."""
    log_probs = one.log_probs[rows]
    apart = np.pad(np.abs(np.diff(log_probs, axis=1)) > 1e-4, ((0, 0), (1, 1)))
    apart[:, 0] = True  # the last candidate's next one is unknown
    clear = apart[:, :-1] & apart[:, 1:]
    return bool(np.all((one.token_ids[rows] == other.token_ids[rows]) | ~clear))


def is_finite(step: Step) -> bool:
    """Tell whether every output is finite."""
    parts = (step.log_probs, step.entropy, step.keys, step.values)
    return all(bool(np.isfinite(part).all()) for part in parts)

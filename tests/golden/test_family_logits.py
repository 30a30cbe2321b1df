"""Saved engines of every other family against reference logits, with and without a cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState
from numpy.typing import NDArray

from ..exported import Exports
from ..runtime.engine_steps import open_engine, state_of
from .conftest import OpenGolden
from .test_logits import Fields, Gap, compare_rows, read_cases

Check = Callable[["Calls", str, Fields], None]


@dataclass(frozen=True)
class Calls:
    """One engine with the block length its windows are block-causal by; None: full attention."""

    engine: OnnxRuntimeState
    gap: Gap
    block: int | None

    def visible(self, count: int) -> NDArray[np.bool_]:
        """Window mask of `count` positions that start at a block's first."""
        blocks = np.arange(count) // (self.block or count)
        mask: NDArray[np.bool_] = blocks[:, None] >= blocks
        return mask

    def step(
        self,
        name: str,
        ids: NDArray[np.int64],
        start: int,
        seen: NDArray[np.bool_] | int,
        logits: NDArray[np.float32] | None,
        visible: NDArray[np.bool_] | None = None,
    ) -> None:
        """Run `ids` from position `start` on, seeing the first or the given cache slots.

        There is a slot for every position up to the last of `ids`.
        """
        first = np.ones(seen, np.bool_) if isinstance(seen, int) else seen
        slots = np.pad(first, (0, max(start + len(ids) - len(first), 0)))
        shown = self.visible(len(ids)) if visible is None else visible
        positions = start + np.arange(len(ids))
        compare_rows(self.engine, self.gap, name, ids, positions, shown, slots, logits)

    def keep(self, start: int, count: int) -> None:
        """Commit the first `count` rows of the last step to the slots from `start` on."""
        self.engine.commit(np.arange(count), np.arange(start, start + count))


def whole(calls: Calls, name: str, case: Fields) -> None:
    """One forward without a cache."""
    ids = case["input_ids"][0]
    visible = calls.visible(len(ids))
    if "attention_mask" in case:
        assert (case["attention_mask"] == visible).all(), name
    calls.step(name, ids, 0, 0, case["logits"][0], visible)


def prefix(calls: Calls, name: str, case: Fields) -> None:
    """A full forward, then everything after the prefix against the prefix's keys and values."""
    length = int(case["prefix_len"][0])
    calls.step(f"{name}.p1", case["p1_input_ids"][0], 0, 0, case["p1_logits"][0])
    calls.keep(0, length)
    calls.step(f"{name}.p2", case["p2_input_ids"][0], length, length, case["p2_logits"][0])


def dual(calls: Calls, name: str, case: Fields) -> None:
    """A full forward whose keys and values stay, but for those of one block, which is rerun."""
    start, ids, block = int(case["start"][0]), case["p1_input_ids"][0], case["p2_input_ids"][0]
    calls.step(f"{name}.p1", ids, 0, 0, None)
    calls.keep(0, len(ids))
    slots = np.arange(len(ids))
    others = (slots < start) | (slots >= start + len(block))
    calls.step(f"{name}.p2", block, start, others, case["p2_logits"][0])


def next_block(calls: Calls, name: str, case: Fields) -> None:
    """A stored block-causal forward, then the next block, which sees all of it and itself."""
    first, block = case["p1_input_ids"][0], case["p2_input_ids"][0]
    logits = case["p1_logits"][0] if "p1_logits" in case else None
    calls.step(f"{name}.p1", first, 0, 0, logits)
    calls.keep(0, len(first))
    calls.step(f"{name}.p2", block, len(first), len(first), case["p2_logits"][0])


def sub_block(calls: Calls, name: str, case: Fields) -> None:
    """A block kept in the cache, of which a few positions are run again."""
    first, block, part = (case[f"p{call}_input_ids"][0] for call in (1, 2, 3))
    start = len(first) + int(case["replace_position"][0])
    calls.step(f"{name}.p1", first, 0, 0, None)
    calls.keep(0, len(first))
    calls.step(f"{name}.p2", block, len(first), len(first), None)
    calls.keep(len(first), len(block))
    slots = np.arange(len(first) + len(block))
    others = (slots < start) | (slots >= start + len(part))
    visible = np.ones((len(part), len(part)), np.bool_)
    calls.step(f"{name}.p3", part, start, others, case["p3_logits"][0], visible)


LLADA: dict[str, Check] = {"full": whole, "prefix": prefix, "dual": dual}
SDAR: dict[str, Check] = {"block": whole, "cache": next_block}
FAMILIES: dict[str, tuple[str, dict[str, Check]]] = {
    "llada-tiny": ("full", LLADA),
    "sdar-tiny": ("block-causal", SDAR),
    "sdar-moe-tiny": ("block-causal", {"block": whole}),
    "llada2-moe-tiny": ("block-causal", {"full": whole, "block": whole}),
    "fast-dllm-v2-tiny": ("block-causal", {**SDAR, "subblock": sub_block}),
}


KINDS = [(name, kind) for name, (_, kinds) in FAMILIES.items() for kind in kinds]
EXPERTS = [(name, kind) for name, kind in KINDS if "-moe-" in name]


@pytest.mark.parametrize(("checkpoint", "kind"), KINDS)
def test_reference_logits(
    golden: Path, open_golden: OpenGolden, checkpoint: str, kind: str
) -> None:
    session = open_golden(checkpoint)
    assert session.manifest.model.window_attention == FAMILIES[checkpoint][0]
    engine = state_of(session)
    assert isinstance(engine, OnnxRuntimeState)
    _compare(golden, engine, session.manifest.model.block_size, checkpoint, kind)


@pytest.mark.parametrize(("checkpoint", "kind"), EXPERTS)
def test_reference_logits_of_the_portable_graph(
    golden: Path, exports: Exports, open_golden: OpenGolden, checkpoint: str, kind: str
) -> None:
    """The exported graph of routed experts, before the target puts its own operator in."""
    session = open_golden(checkpoint)

    def unfuse(out: Path) -> None:
        shutil.copytree(session.folder, out)
        for name in ("step.onnx", "weights.data"):
            shutil.copyfile(exports.root / f"{checkpoint}-model" / name, out / name)

    engine = open_engine(exports.once(f"{checkpoint}-portable", unfuse))
    _compare(golden, engine, session.manifest.model.block_size, checkpoint, kind)


def _compare(
    golden: Path, engine: OnnxRuntimeState, block_size: int, checkpoint: str, kind: str
) -> None:
    attention, kinds = FAMILIES[checkpoint]
    cases = read_cases(golden, checkpoint)
    assert {name.rstrip("0123456789") for name in cases} == kinds.keys()
    gap = Gap()
    for name, case in cases.items():
        if name.rstrip("0123456789") != kind:
            continue
        engine.reset()
        full = attention == "full" or kind == "full"
        block = None if full else _block_length(case, block_size)
        kinds[kind](Calls(engine, gap, block), name, case)
    gap.check()


def _block_length(case: Fields, default: int) -> int:
    stated = [int(case[key][0]) for key in ("block_length", "block_size") if key in case]
    return stated[0] if stated else default

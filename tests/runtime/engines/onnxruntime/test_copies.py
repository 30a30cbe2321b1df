"""How the device path moves a step's tensors, driven on the CPU: the calls are the same there."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime
import pytest
from lopa.runtime.contract import HEAD_OUTPUT_NAMES, HOST_INPUT_NAMES, Instance
from lopa.runtime.engines.onnxruntime import state as state_module
from lopa.runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState
from lopa.runtime.engines.packing import ALIGNMENT
from lopa.runtime.engines.protocol import StepOutputs
from lopa.runtime.manifest import read_bundle

STEPS = 4


class CountedValue(onnxruntime.OrtValue):  # type: ignore[misc]
    """A value that counts the copies to and from it."""

    copies: ClassVar[Counter[str]] = Counter()

    def update_inplace(self, data: Any) -> None:
        self.copies["sent"] += 1
        super().update_inplace(data)

    def numpy(self) -> Any:
        self.copies["received"] += 1
        return super().numpy()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    monkeypatch.setattr(onnxruntime, "OrtValue", CountedValue)
    CountedValue.copies.clear()
    return CountedValue.copies


def open_resident(folder: Path) -> OnnxRuntimeState:
    return OnnxRuntimeProgram(folder, read_bundle(folder), threads=1, resident=True).decode_state()


def run(engine: OnnxRuntimeState, shape: Instance, seed: int) -> StepOutputs:
    """Run a step whose every input is random."""
    random = np.random.default_rng(seed)
    inputs = engine.inputs(shape)
    inputs.input_ids[...] = random.integers(1, 50, inputs.input_ids.shape)
    inputs.position_ids[...] = random.integers(0, 90, inputs.position_ids.shape)
    inputs.isolation_mask[...] = random.random(inputs.isolation_mask.shape) < 0.5
    np.fill_diagonal(inputs.isolation_mask, True)
    inputs.cache_mask[...] = random.random(inputs.cache_mask.shape) < 0.5
    inputs.head_rows[...] = random.permutation(shape.window_rows)[: shape.rows]
    inputs.temperature[...] = 0.5 + random.random()
    return engine.run(shape)


def test_one_copy_goes_each_way_per_step(tiny_bundle: Path, copies: Counter[str]) -> None:
    engine = open_resident(tiny_bundle)
    for seed in range(STEPS):
        for shape in (item for item in engine.instances if item.context == 64):
            engine.inputs(shape)
            copies.clear()
            run(engine, shape, seed)
            assert copies == {"sent": 1, "received": 1}


def test_one_copy_carries_a_commit(tiny_bundle: Path, copies: Counter[str]) -> None:
    engine = open_resident(tiny_bundle)
    shape = engine.instances[0]
    for seed in range(STEPS):
        run(engine, shape, seed)
        copies.clear()
        engine.commit(np.array([3, 1]), np.array([2 * seed, 2 * seed + 1]))
        assert copies == {"sent": 1}, "the slots of keys and values alike"


def test_packed_steps_are_bit_by_bit_those_of_host_arrays(tiny_bundle: Path) -> None:
    manifest = read_bundle(tiny_bundle)
    packed = open_resident(tiny_bundle)
    fixed = replace(manifest, engine=replace(manifest.engine, dynamic=False))
    plain = OnnxRuntimeProgram(tiny_bundle, fixed, threads=1).decode_state()
    for shape in sorted(manifest.instances, key=lambda item: item.context):
        for seed in range(2):
            found, expected = run(packed, shape, seed), run(plain, shape, seed)
            for name in HEAD_OUTPUT_NAMES:
                assert np.array_equal(getattr(found, name), getattr(expected, name))
            rows, slots = np.array([5, 0, 7]), np.array([4, 9, 10 + seed])
            for engine in (packed, plain):
                engine.commit(rows, slots)
            for one, two in zip(packed.window(), plain.window(), strict=True):
                assert np.array_equal(one, two)
            for one, two in zip(packed.cache(), plain.cache(), strict=True):
                assert np.array_equal(one, two)
                assert one[:, :, slots].any()


def test_addresses_never_change(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured graphs read and write the addresses that were bound first."""
    monkeypatch.setattr(state_module, "KEPT_SHAPES", 1)  # a limit of exact shapes alone
    bound: list[tuple[str, int]] = []
    for kind in ("bind_input", "bind_output"):
        real = getattr(onnxruntime.IOBinding, kind)

        def note(self: Any, name: str, *settings: Any, real: Any = real) -> None:
            bound.append((name, settings[-1]))
            real(self, name, *settings)

        monkeypatch.setattr(onnxruntime.IOBinding, kind, note)
    engine = open_resident(tiny_bundle)
    views: dict[Instance, list[int]] = {}
    for seed in range(STEPS):
        engine.reset()
        for shape in sorted(engine.instances, key=lambda item: item.context):
            outputs = run(engine, shape, seed)
            engine.commit(np.array([0]), np.array([seed]))
            arrays = [*vars(engine.inputs(shape)).values(), *vars(outputs).values()]
            found = [array.ctypes.data for array in arrays]
            assert views.setdefault(shape, found) == found
    assert len(bound) == 13 * len(engine.instances), "every tensor of an instance is bound once"


def test_tensors_of_an_instance_lie_in_one_block_each_way(tiny_bundle: Path) -> None:
    engine = open_resident(tiny_bundle)
    for shape in engine.instances:
        engine.reset()
        inputs = vars(engine.inputs(shape))
        step = engine._bound[shape]
        outputs = vars(step.outputs)
        for block, views, names in (
            (step.sent, inputs, HOST_INPUT_NAMES),
            (step.received, outputs, HEAD_OUTPUT_NAMES),
        ):
            assert tuple(block.addresses) == names
            bases = {block.addresses[name] - views[name].ctypes.data for name in names}
            assert len(bases) == 1, "host and device have the same layout"
            first = block.addresses[names[0]]
            assert all((address - first) % ALIGNMENT == 0 for address in block.addresses.values())

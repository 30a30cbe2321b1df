from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lopa.runtime.contract import Instance, input_specs, output_specs
from lopa.runtime.engines.onnxruntime.buffers import HostBuffers
from lopa.runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from lopa.runtime.engines.warm_up import warm_up
from lopa.runtime.manifest import FileRecord, read_bundle
from lopa.runtime.memory import bundle_memory, decode_memory, slot_bytes, smaller

from .manifests import INSTANCES, bundle_manifest


def test_windows_cache_and_host_bytes_are_those_of_the_contract() -> None:
    manifest = bundle_manifest()
    info, dims = manifest.model, (2, 2, 16)
    memory = bundle_memory(manifest)
    assert memory.weights == manifest.files["step.onnx"].bytes
    for item in memory.instances:
        inputs = {s.name: s for s in input_specs(item.instance, *dims, "float32")}
        outputs = {
            s.name: s for s in output_specs(item.instance, *dims, info.candidates, "float32")
        }
        assert item.windows == sum(outputs[name].bytes for name in ("window_keys", "window_values"))
        caches = ("cache_keys", "cache_values")
        assert memory.cache == sum(inputs.pop(name).bytes for name in caches)
        heads = ("token_ids", "log_probs", "entropy")
        assert item.host == sum(s.bytes for s in inputs.values()) + sum(
            outputs[name].bytes for name in heads
        )
    assert memory.total > memory.weights + memory.cache


def test_half_precision_halves_cache_and_windows() -> None:
    full = bundle_manifest()
    half = replace(full, graph=replace(full.graph, precision="bf16"))
    assert slot_bytes(full.model, "float32") == 2 * slot_bytes(full.model, "bfloat16")
    assert bundle_memory(full).cache == 2 * bundle_memory(half).cache
    assert (
        bundle_memory(half).instances[0].activations < bundle_memory(full).instances[0].activations
    )


def test_the_files_of_an_engine_count_as_weights() -> None:
    files = {"step.engine": FileRecord(7, "ab" * 32), "tokenizer.json": FileRecord(9, "cd" * 32)}
    manifest = bundle_manifest()
    manifest = replace(manifest, graph=replace(manifest.graph, file="step.engine"), files=files)
    assert bundle_memory(manifest).weights == 7


def test_low_memory_keeps_the_smallest_window_that_holds_two_blocks() -> None:
    assert [item.window for item in INSTANCES] == [24, 24, 40]
    assert smaller(bundle_manifest()).instances == INSTANCES[:2]  # blocks of 8
    wide = bundle_manifest(instances=(*INSTANCES, Instance(5, 40, 64, 200)))
    assert bundle_memory(smaller(wide)).total < bundle_memory(wide).total
    assert smaller(bundle_manifest(block_size=16)).instances == INSTANCES[2:]
    assert smaller(bundle_manifest(block_size=32)).instances == INSTANCES[2:]
    one = bundle_manifest(instances=(Instance(1, 8, 16, 8),))
    assert smaller(one) == one


def test_each_further_decode_needs_exactly_what_the_manifest_says(tiny_bundle: Path) -> None:
    """The static instances of the tiny bundle on the CPU, all of them run once."""
    manifest = read_bundle(tiny_bundle)
    static = replace(manifest, engine=replace(manifest.engine, dynamic=False))
    program = OnnxRuntimeProgram(tiny_bundle, static, threads=1)
    found = decode_memory(manifest)
    # Keys and values of 2 layers x 2 heads x 16 numbers in float32: 512 bytes a slot.
    assert (found.cache, found.windows) == (512 * 96, 512 * 240)
    assert found.host == 240 * 240 + 96 + 3 * 4 * 240 + 4 + 240 * (16 * 8 + 4)
    assert sum(program.status().decode_memory.values()) == found.total
    for _ in range(2):
        state = program.decode_state()
        warm_up(state, program.instances)
        assert isinstance(state._buffers, HostBuffers)
        assert sum(array.nbytes for array in state._buffers._flat.values()) == found.total
    resident = OnnxRuntimeProgram(tiny_bundle, manifest, threads=1, resident=True).status()
    assert resident.decode_memory["cache"] == 512 * (64 + 96)
    assert resident.decode_memory["windows"] == sum(
        512 * instance.window_rows for instance in manifest.instances
    )

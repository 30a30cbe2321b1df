"""Rules of the device path, and the CUDA provider where there is a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from lopa.runtime.contract import LopaError
from lopa.runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from lopa.runtime.manifest import read_bundle
from lopa.runtime.session import Session, open_bundle

from ...engine_steps import state_of

PROMPT = [5, 17, 42, 8, 99, 3]
SETTINGS: dict[str, Any] = {"block_size": 8, "max_new_tokens": 32, "confidence": 0.2}


def resident_session(folder: Path, provider: str = "cpu") -> Session:
    manifest = read_bundle(folder)
    program = OnnxRuntimeProgram(folder, manifest, provider, threads=1, resident=True)
    return Session(folder, manifest, program)


def test_resident_engine_runs_static_instances_only(tiny_bundle: Path) -> None:
    session = resident_session(tiny_bundle)
    shapes = {e.shape for e in session.stream(prompt_ids=PROMPT, strategy="lopa", **SETTINGS)}
    assert shapes <= set(session.manifest.instances)


def test_addresses_stay_fixed_per_instance(tiny_bundle: Path) -> None:
    session = resident_session(tiny_bundle)
    engine = state_of(session)
    shape = session.manifest.instances[0]
    first = engine.inputs(shape)
    session.generate(prompt_ids=PROMPT, **SETTINGS)
    engine.reset()
    again = engine.inputs(shape)
    assert again.input_ids.ctypes.data == first.input_ids.ctypes.data
    assert np.shares_memory(again.isolation_mask, first.isolation_mask)


def test_cuda_without_a_gpu_says_what_to_install(tiny_bundle: Path) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has the CUDA provider")
    with pytest.raises(LopaError, match=r"needs onnxruntime-gpu and an NVIDIA GPU.*lopa\[cuda\]"):
        open_bundle(tiny_bundle, provider="cuda")


def test_cuda_decodes_the_same_tokens(tiny_bundle: Path) -> None:
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("needs onnxruntime-gpu and an NVIDIA GPU")
    expected = open_bundle(tiny_bundle).generate(prompt_ids=PROMPT, **SETTINGS)
    cuda = open_bundle(tiny_bundle, provider="cuda", strict=True)
    for _ in range(3):  # the first runs warm up and capture, later ones replay
        assert cuda.generate(prompt_ids=PROMPT, **SETTINGS).token_ids == expected.token_ids

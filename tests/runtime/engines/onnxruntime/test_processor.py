from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lopa.runtime.engines.onnxruntime import processor, program
from lopa.runtime.engines.onnxruntime.library import load_library
from lopa.runtime.engines.onnxruntime.processor import integers_saturate, processor_saturates
from lopa.runtime.manifest import read_bundle
from lopa.runtime.quantization import Quantization


@pytest.mark.parametrize(
    ("cpuinfo", "saturates"),
    [
        ("processor : 0\nflags\t\t: fpu sse4_1 avx2 fma\n", True),
        ("processor : 0\nflags\t\t: avx2 avx512f avx512_vnni\n", False),
        ("processor : 0\nflags\t\t: avx2 avx_vnni\nprocessor : 1\n", False),
        ("processor : 0\nmodel name : made for avx_vnni\nflags : avx2\n", True),
        ("processor : 0\nFeatures : fp asimd asimddp\n", False),
        ("", True),
    ],
)
def test_processors(cpuinfo: str, saturates: bool) -> None:
    assert integers_saturate(cpuinfo) is saturates


def test_unknown_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "absent")
    assert processor_saturates()
    (tmp_path / "cpuinfo").write_text("flags : avx_vnni\n")
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    assert not processor_saturates()


def test_quantised_bundles_ask_for_exact_integers(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: list[tuple[str, str]] = []
    library = load_library()

    class Options(library.SessionOptions):  # type: ignore[misc, name-defined]
        def add_session_config_entry(self, key: str, value: str) -> None:
            entries.append((key, value))
            super().add_session_config_entry(key, value)

    monkeypatch.setattr(library, "SessionOptions", Options)
    monkeypatch.setattr(program, "processor_saturates", lambda: True)
    manifest = read_bundle(tiny_bundle)
    program.OnnxRuntimeProgram(tiny_bundle, manifest)
    assert entries == []
    quantization = Quantization("r", (), {}, 1.0, 1, "", "")
    program.OnnxRuntimeProgram(tiny_bundle, replace(manifest, quantization=quantization))
    assert entries == [("session.x64quantprecision", "1")]

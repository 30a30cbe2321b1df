from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from lopa.export import model_folder
from lopa.export.model_folder import export_model
from lopa.runtime.contract import LopaError
from lopa.runtime.manifest import GraphInfo, read_model, verify_files

from ..exported import Exports
from ..runtime.engine_steps import open_engine, run_step
from .test_backbone import write_large_checkpoint
from .tiny_checkpoint import IM_END, MASK, PAD, TOKENIZER_SIZE, write_adapter


def test_the_manifest_describes_the_folder(tiny_model: Path, tiny_checkpoint: Path) -> None:
    manifest = read_model(tiny_model)
    verify_files(tiny_model, manifest.files)
    assert {path.name for path in tiny_model.iterdir()} == {*manifest.files, "model.json"}
    assert set(manifest.files) == {
        "special_tokens_map.json",
        "step.onnx",
        "tokenizer.json",
        "tokenizer_config.json",
        "weights.data",
    }
    assert manifest.graph == GraphInfo("step.onnx", "fp32", 18)
    info = manifest.model
    assert (info.layers, info.kv_heads, info.head_dim, info.block_size) == (2, 2, 16, 8)
    assert (info.vocab_size, info.tokenizer_size, info.candidates) == (320, TOKENIZER_SIZE, 16)
    assert (info.mask_token_id, info.pad_token_id) == (MASK, PAD)
    assert info.stop_token_ids == (PAD, IM_END)
    assert manifest.source.checkpoint == tiny_checkpoint.name
    assert len(manifest.source.fingerprint) == 64
    assert (manifest.source.adapter, manifest.source.adapter_fingerprint) == (None, None)
    assert {"lopa", "torch", "onnx", "onnxscript"} <= manifest.versions.keys()


def test_an_adapter_is_merged_and_recorded(
    exports: Exports, tiny_checkpoint: Path, tiny_model: Path
) -> None:
    adapter = exports.once("lora", lambda out: write_adapter(out, tiny_checkpoint))
    merged = exports.model("merged", tiny_checkpoint, adapter=adapter, candidates=16)
    manifest, base = read_model(merged), read_model(tiny_model)
    assert manifest.source.adapter == "lora"
    assert manifest.source.fingerprint == base.source.fingerprint
    assert len(manifest.source.adapter_fingerprint or "") == 64
    assert manifest.files["step.onnx"] == base.files["step.onnx"]
    assert manifest.files["weights.data"].sha256 != base.files["weights.data"].sha256


def test_half_precision_survives_large_activations(exports: Exports) -> None:
    """The saved fp16 graph; residuals of 1e4 would overflow a float16 norm."""
    checkpoint = exports.once("large-checkpoint", write_large_checkpoint)
    model = exports.model("large", checkpoint, precision="fp16")
    assert read_model(model).graph.precision == "fp16"
    engine = open_engine(exports.bundle("large", model, 0, (24,), (32,)))
    ids = np.arange(24)[None]
    step = run_step(engine, ids, np.arange(24), np.ones((24, 24), np.bool_))
    assert step.keys.dtype == step.values.dtype == np.float16
    for part in (step.log_probs, step.entropy, step.keys, step.values):
        assert np.isfinite(part).all()
    assert step.entropy.max() > 0.01


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"precision": "int3"}, "precision is 'int3', expected one of: bf16, fp16, fp32"),
        ({"candidates": 0}, "candidates is 0, expected 1 to 293"),
        ({"candidates": TOKENIZER_SIZE}, "candidates is 294, expected 1 to 293"),
    ],
)
def test_settings_are_checked_before_any_work(
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    fault: str,
) -> None:
    monkeypatch.setattr(model_folder, "trace", lambda *arguments: pytest.fail("traced"))
    with pytest.raises(LopaError, match=fault):
        export_model(tiny_checkpoint, tmp_path / "out", **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_used_output_is_refused_before_any_work(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "open_source", lambda *arguments: pytest.fail("opened"))
    (tmp_path / "precious").write_text("", encoding="utf-8")
    with pytest.raises(LopaError, match="is not empty; choose another or add --force"):
        export_model(tiny_checkpoint, tmp_path)


def test_a_full_disk_keeps_the_old_folder(
    tiny_checkpoint: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    shutil.copytree(tiny_model, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "weights.data")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(model_folder, "trace", lambda *arguments: _traced(tiny_model))
    with pytest.raises(LopaError, match=r"failed at weights.data: No space left on device"):
        export_model(tiny_checkpoint, out, candidates=16, force=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert list(tmp_path.iterdir()) == [out]


def test_stages_are_reported(
    tiny_checkpoint: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "trace", lambda *arguments: _traced(tiny_model))
    seen: list[tuple[str, int, int]] = []
    export_model(
        tiny_checkpoint,
        tmp_path / "out",
        candidates=16,
        progress=lambda stage, done, total: seen.append((stage, done, total)),
    )
    assert list(dict.fromkeys(stage for stage, _, _ in seen)) == ["reading", "tracing", "writing"]
    assert all(0 <= done <= total for _, done, total in seen)
    assert seen[-1][1] == seen[-1][2]
    verify_files(tmp_path / "out", read_model(tiny_model).files)


def _traced(model: Path) -> Any:
    """The graph of a finished export, in place of another trace."""
    return ir.load(model / "step.onnx")

"""Hand-made manifests for tests that need no engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lopa.runtime.contract import CONTRACT_VERSION, Instance
from lopa.runtime.engine_info import EngineInfo
from lopa.runtime.manifest import (
    BUNDLE_FILE,
    SCHEMA_VERSION,
    BundleManifest,
    FileRecord,
    GraphInfo,
    ModelInfo,
    Source,
    write_manifest,
)
from lopa.runtime.seal import sealed

INSTANCES = (Instance(1, 24, 64, 24), Instance(5, 24, 64, 120), Instance(1, 40, 64, 40))


def model_info(**changes: Any) -> ModelInfo:
    values: dict[str, Any] = {
        "family": "dream",
        "model_type": "Dream",
        "layers": 2,
        "hidden_size": 64,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 320,
        "tokenizer_size": 294,
        "max_positions": 2048,
        "candidates": 8,
        "mask_token_id": 293,
        "pad_token_id": 290,
        "stop_token_ids": (290, 292),
        "logit_shift": 1,
        "window_attention": "full",
        "block_size": 8,
    }
    return ModelInfo(**(values | changes))


def bundle_manifest(instances: tuple[Instance, ...] = INSTANCES, **model: Any) -> BundleManifest:
    return BundleManifest(
        schema=SCHEMA_VERSION,
        contract=CONTRACT_VERSION,
        model=model_info(**model),
        graph=GraphInfo("step.onnx", "fp32", 18),
        engine=EngineInfo("onnxruntime", True, {"onnxruntime": "1.2.3"}),
        instances=instances,
        source=Source("checkpoint", "ab" * 32, None, None),
        versions={"lopa": "0.1.0"},
        files={"step.onnx": FileRecord(5, "cd" * 32)},
    )


def write_edited(folder: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """Write a bundle manifest that went through `edit` and was sealed again; returns the folder."""
    path = write_manifest(folder, bundle_manifest())
    assert path == folder / BUNDLE_FILE
    data = json.loads(path.read_text(encoding="utf-8"))
    edit(data)
    path.write_text(json.dumps(sealed(data)), encoding="utf-8")
    return folder

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lopa.runtime.contract import ContractError
from lopa.runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from lopa.runtime.manifest import read_bundle


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"candidates": 8}, "token_ids is [any, 16], the manifest says [any, 8]"),
        ({"layers": 3}, "window_values is [2, 2, any, 16], the manifest says [3, 2, any, 16]"),
        ({"head_dim": 8}, "cache_keys is [2, 2, any, 16], the manifest says [2, 2, any, 8]"),
    ],
)
def test_an_engine_of_other_sizes_is_refused(
    tiny_bundle: Path, changes: dict[str, Any], said: str
) -> None:
    manifest = read_bundle(tiny_bundle)
    manifest = replace(manifest, model=replace(manifest.model, **changes))
    with pytest.raises(ContractError) as caught:
        OnnxRuntimeProgram(tiny_bundle, manifest)
    assert str(caught.value).startswith(f"{tiny_bundle / 'step.onnx'} is not the engine of this")
    assert said in str(caught.value)


def test_a_commit_graph_of_another_type_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    import onnx
    from lopa.graphs.targets.onnxruntime.build import commit_graph

    manifest: Any = read_bundle(tiny_bundle)
    half = replace(manifest, graph=replace(manifest.graph, precision="fp16"))
    for name in manifest.files:
        (tmp_path / name).write_bytes((tiny_bundle / name).read_bytes())
    onnx.save(commit_graph(half), tmp_path / "commit.onnx")
    with pytest.raises(ContractError, match=r"commit.onnx .*: cache is float16, .* says float32"):
        OnnxRuntimeProgram(tmp_path, manifest, resident=True)

"""The builder against a double of its library: what a bundle holds, what the library is told."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import onnx
import pytest
from lopa.graphs.bundle import build_bundle
from lopa.graphs.targets.tensorrt import build as tensorrt
from lopa.graphs.targets.tensorrt.settings import TensorRtSettings
from lopa.runtime.contract import INPUT_NAMES, LopaError
from lopa.runtime.manifest import read_bundle, read_model, verify_files

from .builds import INSTANCES, build
from .recording_library import Flag, Level, Library, Pool, RtxLibrary, Verbosity


def test_a_bundle_holds_the_engine_and_its_stamp(
    library: Library, tiny_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    built = build(tiny_model, out, workspace=1 << 30, optimization_level=5)
    assert read_bundle(out) == built
    verify_files(out, built.files)
    assert (out / "step.engine").read_bytes() == library.ENGINE
    assert built.graph.file == "step.engine"
    assert library.network.name == tensorrt.graph_sha256(read_model(tiny_model))
    assert not any(name.endswith((".onnx", ".data")) for name in built.files)
    assert (built.engine.target, built.engine.dynamic) == ("tensorrt", False)
    assert built.engine.versions == {"tensorrt": library.__version__}
    stamp = built.engine.stamp
    assert stamp is not None
    assert stamp.compute_capabilities == (89,)
    assert stamp.platform == f"{platform.system().lower()}-{platform.machine().lower()}"
    assert (stamp.hardware_compatibility, stamp.version_compatible) == ("none", False)
    assert stamp.profiles == tuple(item.name for item in built.instances)
    assert stamp.graph_sha256 == tensorrt.graph_sha256(read_model(tiny_model))
    assert stamp.settings == {
        "workspace_bytes": "1073741824",
        "optimization_level": "5",
        "gpu": "NVIDIA L4",
    }


def test_types_come_from_the_graph_in_every_version(
    library: Library, tiny_model: Path, tmp_path: Path
) -> None:
    """TensorRT 10 must be told, TensorRT 11 deprecates the flag; implicit batch is neither's."""
    build(tiny_model, tmp_path / "bundle")
    assert library.network_flags == (2 if library.__version__.startswith("10.") else 0)


def test_one_profile_for_each_instance(library: Library, tiny_model: Path, tmp_path: Path) -> None:
    build(tiny_model, tmp_path / "bundle")
    profiles = library.config.profiles
    assert len(profiles) == len(INSTANCES) == 5
    for profile, instance in zip(profiles, INSTANCES, strict=True):
        assert tuple(profile.shapes) == INPUT_NAMES
        assert profile.shapes["input_ids"] == (instance.branches, instance.window)
        assert profile.shapes["isolation_mask"] == (instance.window_rows,) * 2
        assert profile.shapes["cache_keys"][2] == instance.context
        assert profile.shapes["head_rows"] == (instance.rows,)


def test_the_parser_gets_the_rewritten_graph_and_where_its_weights_are(
    library: Library, tiny_model: Path, tmp_path: Path
) -> None:
    build(tiny_model, tmp_path / "bundle")
    assert library.parsed is not None
    graph = onnx.load_from_string(library.parsed[0]).graph
    assert library.parsed[1] == str(tiny_model / "step.onnx")
    assert any(node.op_type == "ReduceSum" for node in graph.node)
    assert all(dim.dim_param for dim in graph.input[0].type.tensor_type.shape.dim)


def test_settings_reach_the_builder(library: Library, tiny_model: Path, tmp_path: Path) -> None:
    build(
        tiny_model,
        tmp_path / "bundle",
        workspace=123,
        optimization_level=0,
        profiling_verbosity="none",
        hardware_compatibility="ampere+",
        version_compatible=True,
    )
    config = library.config
    assert config.pools == {Pool.WORKSPACE: 123}
    assert vars(config)["builder_optimization_level"] == 0
    assert vars(config)["profiling_verbosity"] is Verbosity.NONE
    assert vars(config)["hardware_compatibility_level"] is Level.AMPERE_PLUS
    assert config.flags == {Flag.VERSION_COMPATIBLE}
    assert config.capabilities == {}
    stamp = read_bundle(tmp_path / "bundle").engine.stamp
    assert stamp is not None
    assert (stamp.hardware_compatibility, stamp.version_compatible) == ("ampere+", True)


def test_what_is_not_set_is_left_to_the_library(
    library: Library, tiny_model: Path, tmp_path: Path
) -> None:
    build(tiny_model, tmp_path / "bundle")
    config = library.config
    assert (config.flags, config.pools, config.cache) == (set(), {}, None)
    assert not {"builder_optimization_level", "profiling_verbosity"} & vars(config).keys()


@pytest.mark.parametrize(
    ("asked", "named"), [((), (80, 86, 89, 120)), ((75,), (75,)), ((121, 86), (86, 121))]
)
def test_rtx_is_told_the_gpus_it_builds_for(
    rtx_double: RtxLibrary,
    tiny_model: Path,
    tmp_path: Path,
    asked: tuple[int, ...],
    named: tuple[int, ...],
) -> None:
    settings = TensorRtSettings(compute_capabilities=asked)
    built = build_bundle(
        tiny_model, tmp_path / "b", INSTANCES, target="tensorrt-rtx", settings=settings
    )
    assert rtx_double.network_flags == 0
    assert set(rtx_double.config.capabilities.values()) == {f"SM{number}" for number in named}
    assert vars(rtx_double.config)["num_compute_capabilities"] == len(named)
    assert built.engine.stamp is not None
    assert built.engine.stamp.compute_capabilities == named
    assert built.engine.stamp.settings == {}


def test_layer_information_is_saved(library: Library, tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "info" / "layers.json"
    with pytest.raises(LopaError, match=r"cannot write .*layers\.json: there is no folder info"):
        build(tiny_model, tmp_path / "bundle", layer_info=file)
    assert library.parsed is None
    file.parent.mkdir()
    build(tiny_model, tmp_path / "bundle", layer_info=file)
    assert json.loads(file.read_text(encoding="utf-8")) == {"Layers": ["conv"]}
    assert vars(library.config)["profiling_verbosity"] is Verbosity.DETAILED
    assert [path.name for path in file.parent.iterdir()] == ["layers.json"]
    library.fail["deserialize"] = "no memory"
    with pytest.raises(LopaError, match="TensorRT cannot load the engine: no memory"):
        build(tiny_model, tmp_path / "other", layer_info=file)
    assert not (tmp_path / "other").exists()

"""The builder against a double of its library: what only a GPU machine could show otherwise."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from lopa.graphs.bundle import build_bundle
from lopa.graphs.instances import plan_instances
from lopa.graphs.targets import check_target, tensorrt
from lopa.graphs.targets.listener import BuildListener
from lopa.graphs.targets.tensorrt_settings import TensorRtSettings
from lopa.runtime.contract import INPUT_NAMES, LopaError
from lopa.runtime.engines.cuda import Gpu
from lopa.runtime.manifest import (
    Quantization,
    read_bundle,
    read_model,
    verify_files,
    write_manifest,
)

from .recording_library import Flag, Level, Library, Pool, RtxLibrary, Verbosity

INSTANCES = plan_instances(4, [8, 16], [32], [64])
GPU = Gpu(0, "NVIDIA L4", 89, 24 << 30)


@pytest.fixture(params=["10.13.3.9", "11.4.0.106"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    """TensorRT of either major version, on a machine with a GPU."""
    made = Library(request.param)
    monkeypatch.setattr(tensorrt, "load_library", lambda target: made)
    monkeypatch.setattr(tensorrt, "Cuda", lambda: SimpleNamespace(gpus=lambda: (GPU,)))
    return made


@pytest.fixture
def rtx_double(monkeypatch: pytest.MonkeyPatch) -> RtxLibrary:
    """TensorRT for RTX."""
    made = RtxLibrary("1.7.1.116")
    monkeypatch.setattr(tensorrt, "load_library", lambda target: made)
    return made


def build(model: Path, out: Path, **settings: Any) -> Any:
    return build_bundle(
        model, out, INSTANCES, target="tensorrt", settings=TensorRtSettings(**settings)
    )


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


class TestTimingCache:
    def test_is_read_and_written_back(
        self, library: Library, tiny_model: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "timing.cache"
        build(tiny_model, tmp_path / "first", timing_cache=file)
        assert file.read_bytes() == b"+measured"
        build(tiny_model, tmp_path / "second", timing_cache=file, strict_timing_cache=True)
        assert file.read_bytes() == b"+measured+measured"
        assert library.config.flags == {Flag.ERROR_ON_TIMING_CACHE_MISS}

    @pytest.mark.parametrize("call", ["create_timing_cache", "set_timing_cache"])
    def test_that_does_not_serve_is_replaced_with_a_warning(
        self, library: Library, tiny_model: Path, tmp_path: Path, call: str
    ) -> None:
        file = tmp_path / "timing.cache"
        file.write_bytes(b"of another GPU")
        library.fail[call] = "mismatch"
        warnings: list[str] = []
        build_bundle(
            tiny_model,
            tmp_path / "bundle",
            INSTANCES,
            target="tensorrt",
            settings=TensorRtSettings(timing_cache=file),
            listener=BuildListener(warn=warnings.append),
        )
        assert warnings == [
            f"timing cache {file} is not of this library and GPU: kernels are timed again and it "
            "is replaced"
        ]
        assert file.read_bytes() == b"+measured"

    def test_that_does_not_serve_is_an_error_when_strict(
        self, library: Library, tiny_model: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "timing.cache"
        file.write_bytes(b"of another GPU")
        library.fail["set_timing_cache"] = "mismatch"
        with pytest.raises(LopaError, match="is not of this library and GPU; remove it and build"):
            build(tiny_model, tmp_path / "b", timing_cache=file, strict_timing_cache=True)
        assert file.read_bytes() == b"of another GPU"
        assert [path.name for path in tmp_path.iterdir()] == ["timing.cache"]

    def test_that_cannot_be_written_does_not_cost_the_engine(
        self, library: Library, tiny_model: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "timing.cache"
        library.during_build = file.mkdir
        warnings: list[str] = []
        build_bundle(
            tiny_model,
            tmp_path / "bundle",
            INSTANCES,
            target="tensorrt",
            settings=TensorRtSettings(timing_cache=file),
            listener=BuildListener(warn=warnings.append),
        )
        assert warnings == [f"timing cache {file} is not kept: Is a directory"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "timing.cache"]
        with pytest.raises(LopaError, match=r"timing\.cache is a folder, expected the name"):
            build(tiny_model, tmp_path / "other", timing_cache=file)

    def test_of_a_failed_build_is_not_written(
        self, library: Library, tiny_model: Path, tmp_path: Path
    ) -> None:
        library.fail["build"] = "no kernel"
        with pytest.raises(LopaError):
            build(tiny_model, tmp_path / "bundle", timing_cache=tmp_path / "timing.cache")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("Builder", "TensorRT cannot start: no device"),
        ("profile", "TensorRT refuses b1-w8-c64-r8: no device"),
        ("build", r"TensorRT cannot build .*step\.onnx: no device"),
    ],
)
def test_a_fault_of_the_library_is_one_line(
    library: Library, tiny_model: Path, tmp_path: Path, call: str, message: str
) -> None:
    library.fail[call] = "IBuilder::build: Error Code 4: API Usage Error (no device)"
    with pytest.raises(LopaError, match=message):
        build(tiny_model, tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_parser_errors_name_the_nodes(library: Library, tiny_model: Path, tmp_path: Path) -> None:
    library.parser_errors = [
        SimpleNamespace(
            desc="Found unsupported input type", node_name="mm", node_operator="MatMul"
        ),
        SimpleNamespace(desc="false", node_name="odd", node_operator="Strange"),
    ]
    with pytest.raises(
        LopaError,
        match=r"TensorRT cannot parse .*step\.onnx: node mm \(MatMul\): Found unsupported input "
        r"type; node odd \(Strange\): the library does not know it$",
    ):
        build(tiny_model, tmp_path / "bundle")


def test_warnings_and_progress_reach_the_listener(
    library: Library, tiny_model: Path, tmp_path: Path
) -> None:
    library.warnings = ["Slow kernel. In pick at /src/tactic.cpp:12", "Slow kernel."]
    warnings: list[str] = []
    shares: list[float] = []
    build_bundle(
        tiny_model,
        tmp_path / "bundle",
        INSTANCES,
        target="tensorrt",
        listener=BuildListener(shares.append, warnings.append),
    )
    assert warnings == ["Slow kernel."]
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_an_interrupt_stops_the_library_and_is_raised(
    library: Library, tiny_model: Path, tmp_path: Path
) -> None:
    shares: list[float] = []

    def stop(share: float) -> None:
        shares.append(share)
        if share >= 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_bundle(
            tiny_model,
            tmp_path / "bundle",
            INSTANCES,
            target="tensorrt",
            listener=BuildListener(stop),
        )
    assert shares == [0.25, 0.5]
    assert list(tmp_path.iterdir()) == []


def test_a_signal_stops_the_library_and_is_raised(
    library: Library, tiny_model: Path, tmp_path: Path
) -> None:
    """Ctrl-C while the library works: what is raised in its own frames it prints and forgets."""
    library.during_build = lambda: os.kill(os.getpid(), signal.SIGINT)
    # A shell that starts the tests in the background has them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            build(tiny_model, tmp_path / "bundle")
    finally:
        signal.signal(signal.SIGINT, before)
    assert library.canceled
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_cannot_be_built_is_refused_before_the_library_sees_it(
    rtx_double: RtxLibrary, tiny_checkpoint: Path, exports: Any, tmp_path: Path
) -> None:
    model = exports.model("tiny-bfloat", tiny_checkpoint, precision="bf16", candidates=16)
    settings = TensorRtSettings(compute_capabilities=(75, 86))
    with pytest.raises(
        LopaError,
        match=r"TensorRT for RTX cannot build .*: the graph holds bf16, which SM 75 lacks "
        r"\(SM 80 and later have it\)",
    ):
        build_bundle(
            model, tmp_path / "bundle", INSTANCES, target="tensorrt-rtx", settings=settings
        )
    assert rtx_double.parsed is None


def test_precisions_that_a_gpu_lacks_are_refused_before_an_export(
    rtx_double: RtxLibrary, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    turing = Gpu(0, "NVIDIA T4", 75, 16 << 30)
    monkeypatch.setattr(tensorrt, "Cuda", lambda: SimpleNamespace(gpus=lambda: (turing,)))
    for target, settings in (
        ("tensorrt-rtx", TensorRtSettings(compute_capabilities=(75, 89))),
        ("tensorrt", None),
    ):
        with pytest.raises(LopaError, match="cannot build this: the graph holds bf16, which SM 75"):
            check_target(target, "bf16", settings)
        check_target(target, "fp16", settings)


@pytest.mark.parametrize(("capabilities", "warned"), [((75, 89), True), ((89,), False)])
def test_integers_for_turing_are_a_warning(
    rtx_double: RtxLibrary,
    tiny_model: Path,
    tmp_path: Path,
    capabilities: tuple[int, ...],
    warned: bool,
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    quantization = Quantization("int8", (), {}, 1.0, 1, "ab" * 32, "cd" * 32)
    write_manifest(model, replace(read_model(model), quantization=quantization))
    warnings: list[str] = []
    build_bundle(
        model,
        tmp_path / "bundle",
        INSTANCES,
        target="tensorrt-rtx",
        settings=TensorRtSettings(compute_capabilities=capabilities),
        listener=BuildListener(warn=warnings.append),
    )
    assert any("integers compile, but may not run there" in line for line in warnings) == warned


def test_no_gpu(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def gpus() -> tuple[Gpu, ...]:
        raise LopaError("no driver")

    for found, reason in ((gpus, r"is usable here \(no driver\)"), (tuple, "is here")):
        monkeypatch.setattr(tensorrt, "Cuda", lambda found=found: SimpleNamespace(gpus=found))
        with pytest.raises(
            LopaError,
            match=f"no NVIDIA GPU {reason}: TensorRT builds on the GPU that will run the engine, "
            "--target tensorrt-rtx on any machine",
        ):
            check_target("tensorrt", "fp16", None)


@pytest.mark.parametrize(
    ("target", "settings", "said"),
    [
        ("tensorrt", {"compute_capabilities": (86,)}, r"--sm \(the engine is built for the GPU"),
        ("tensorrt", {"strict_timing_cache": True}, "--errorOnTimingCacheMiss without --timing"),
        ("tensorrt-rtx", {"compute_capabilities": (86, 90)}, r"--sm 90 \(it builds for 75, 80"),
        ("tensorrt-rtx", {"version_compatible": True}, r"--versionCompatible \(its engines need"),
        ("tensorrt-rtx", {"hardware_compatibility": "ampere+"}, r"--hardwareCompatibilityLevel \("),
        ("tensorrt-rtx", {"strict_timing_cache": True}, r"--errorOnTimingCacheMiss \(it has no"),
        ("tensorrt-rtx", {"timing_cache": Path("x")}, r"--timingCacheFile \(no kernel is timed"),
    ],
)
def test_settings_that_a_target_has_no_use_for(
    target: str, settings: dict[str, Any], said: str
) -> None:
    """Said without the library: nothing has to be installed for it."""
    with pytest.raises(LopaError, match=f"TensorRT.* does not take {said}.*; leave it out"):
        check_target(target, "fp16", TensorRtSettings(**settings))


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_a_missing_library_names_the_extra(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(LopaError, match=rf"is not installed; .*pip install 'lopa\[{target}\]'"):
        check_target(target, "fp16", None)


def test_onnxruntime_has_no_bfloat16() -> None:
    with pytest.raises(LopaError, match="onnxruntime runs fp32 and fp16 graphs, not bf16; choose"):
        check_target("onnxruntime", "bf16", None)

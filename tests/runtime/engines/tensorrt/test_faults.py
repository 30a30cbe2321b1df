"""What goes wrong with a TensorRT bundle: one clear error, or the documented way on."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lopa.runtime.contract import ContractError, LopaError
from lopa.runtime.engines.cuda import Cuda, CudaError
from lopa.runtime.engines.status import EngineWarning
from lopa.runtime.engines.tensorrt.library import load_library
from lopa.runtime.engines.tensorrt.program import TensorRtProgram
from lopa.runtime.engines.tensorrt.stamp import StampError, this_platform
from lopa.runtime.manifest import read_bundle, record_files, write_manifest
from lopa.runtime.session import open_bundle

from ...engine_steps import state_of
from ..cuda_double import Error
from .bundle import ENGINE, GRAPH, VERSION, Doubles, install, write_bundle
from .double import write_plan

PROMPT = [3, 1, 4, 1, 5]
SETTINGS: dict[str, Any] = {"lookahead": 3, "max_new_tokens": 24}
Break = Callable[[Doubles], object]


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path) -> Doubles:
    return install(monkeypatch)


@pytest.fixture
def bundle(tmp_path: Path, tiny_bundle: Path) -> Path:
    write_bundle(tmp_path / "bundle", tiny_bundle)
    return tmp_path / "bundle"


def one_line(error: pytest.ExceptionInfo[LopaError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        (
            {"compute_capabilities": (80, 86)},
            "it was built for SM 8.0, 8.6, the GPU here (Double GPU) has SM 8.9",
        ),
        (
            {"platform": "windows-x86_64"},
            f"it was built for windows-x86_64, this machine is {this_platform()}",
        ),
    ],
)
def test_an_engine_for_another_machine_is_refused(
    doubles: Doubles, tmp_path: Path, tiny_bundle: Path, stamp: dict[str, Any], expected: str
) -> None:
    write_bundle(tmp_path / "bundle", tiny_bundle, **stamp)
    with pytest.raises(StampError) as error:
        open_bundle(tmp_path / "bundle")
    text = one_line(error)
    assert text == f"this bundle cannot run here: {expected}; build it again for this machine"
    assert not +doubles.cuda.used(), "something was allocated before the check"


@pytest.mark.parametrize(
    ("installed", "compatible", "runs"),
    [
        (VERSION, False, True),
        ("11.4.0.107", False, False),
        ("11.10.0.1", True, True),
        ("11.3.9.1", True, False),
        ("10.16.0.1", True, False),
    ],
)
def test_the_library_version_must_fit(
    doubles: Doubles,
    tmp_path: Path,
    tiny_bundle: Path,
    installed: str,
    compatible: bool,
    runs: bool,
) -> None:
    write_bundle(tmp_path / "bundle", tiny_bundle, version_compatible=compatible)
    doubles.library.__version__ = installed
    instances = read_bundle(tiny_bundle).instances
    engine = tmp_path / "bundle" / ENGINE
    write_plan(engine, tiny_bundle, instances, installed, GRAPH, lean=compatible)
    if runs:
        assert open_bundle(tmp_path / "bundle", verify=False).generate(
            prompt_ids=PROMPT, **SETTINGS
        )
        return
    with pytest.raises(StampError) as error:
        open_bundle(tmp_path / "bundle", verify=False)
    newer = " or newer" if compatible else ""
    assert (
        f"it was built with TensorRT {VERSION} and needs that version{newer}, "
        f"installed is {installed};" in one_line(error)
    )


def test_ampere_compatible_engines_run_from_sm_80_on(
    doubles: Doubles, tmp_path: Path, tiny_bundle: Path
) -> None:
    stamp: dict[str, Any] = {"hardware_compatibility": "ampere+", "compute_capabilities": (86,)}
    write_bundle(tmp_path / "bundle", tiny_bundle, **stamp)
    assert open_bundle(tmp_path / "bundle")
    doubles.cuda.compute_capability = 75
    with pytest.raises(StampError, match=r"built for SM 8.0 and later, .* has SM 7.5"):
        open_bundle(tmp_path / "bundle")


def test_a_changed_engine_file_is_refused(doubles: Doubles, bundle: Path) -> None:
    (bundle / ENGINE).write_text((bundle / ENGINE).read_text() + " ")
    with pytest.raises(LopaError, match=f"{ENGINE} has .* bytes, manifest says .*build it again"):
        open_bundle(bundle)


def test_the_engine_of_another_model_is_refused(
    doubles: Doubles, tmp_path: Path, bundle: Path
) -> None:
    """Even unverified: its tensors are compared with the manifest."""
    manifest = read_bundle(bundle)
    other = replace(manifest, model=replace(manifest.model, head_dim=8))
    with pytest.raises(ContractError) as error:
        TensorRtProgram(bundle, other).decode_state()
    assert (
        "profile 0 takes no cache_keys of shape [2, 2, 64, 8], cache_values of shape [2, 2, 64, 8]"
        in one_line(error)
    )
    other = replace(manifest, model=replace(manifest.model, candidates=4))
    with pytest.raises(ContractError) as error:
        TensorRtProgram(bundle, other).decode_state()
    assert (
        "token_ids is [24, 16], the manifest says [24, 4] at profile 0; "
        "log_probs is [24, 16], the manifest says [24, 4] at profile 0; build it again"
        in one_line(error)
    )
    other = replace(manifest, graph=replace(manifest.graph, precision="fp16"))
    with pytest.raises(ContractError, match=r"cache_keys is float32, .* says float16"):
        TensorRtProgram(bundle, other).decode_state()


def test_the_engine_of_a_model_of_the_same_shape_is_refused(
    doubles: Doubles, tmp_path: Path, tiny_bundle: Path, bundle: Path
) -> None:
    """Two bundles whose engine files were exchanged, hashes and all."""
    write_bundle(tmp_path / "other", tiny_bundle, graph_sha256="cd" * 32)
    write_plan(
        tmp_path / "other" / ENGINE,
        tiny_bundle,
        read_bundle(bundle).instances,
        VERSION,
        "cd" * 32,
        lean=False,
    )
    assert open_bundle(tmp_path / "other", verify=False)
    (bundle / ENGINE).write_bytes((tmp_path / "other" / ENGINE).read_bytes())
    manifest = read_bundle(bundle)
    files = record_files(bundle, list(manifest.files))
    write_manifest(bundle, replace(manifest, files=files))
    with pytest.raises(ContractError) as error:
        open_bundle(bundle)
    assert one_line(error) == (
        f"{bundle / ENGINE} is the engine of another model: it was built from graph "
        "'cdcdcdcdcdcd', the manifest says 'abababababab'; build it again"
    )


def test_a_manifest_without_version_or_stamp_is_refused(
    doubles: Doubles, tmp_path: Path, tiny_bundle: Path
) -> None:
    manifest = write_bundle(tmp_path / "bundle", tiny_bundle, version_compatible=True)
    for engine, said in (
        (replace(manifest.engine, versions={}), "does not say which version of the library"),
        (replace(manifest.engine, stamp=None), "has no engine stamp; build it again"),
    ):
        write_manifest(tmp_path / "bundle", replace(manifest, engine=engine))
        with pytest.raises(StampError, match=said):
            open_bundle(tmp_path / "bundle")


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_a_missing_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_bundle: Path, target: str
) -> None:
    write_bundle(tmp_path / "bundle", tiny_bundle, target=target)
    for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LopaError) as error:
        open_bundle(tmp_path / "bundle")
    assert one_line(error).endswith(
        f"is not installed; install it with: pip install 'lopa[{target}]'"
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            OSError("libnvinfer.so.11: cannot open"),
            r"is installed but .*\(libnvinfer.so.11: cannot",
        ),
        (ImportError("undefined symbol"), r"is installed but .*\(undefined symbol\)"),
        (ModuleNotFoundError("no", name="tensorrt_bindings"), "lacks the module tensorrt_bindings"),
    ],
)
def test_a_broken_installation_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, said: str
) -> None:
    def broken(name: str) -> Any:
        raise fault

    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(LopaError, match=rf"^TensorRT {said}.*install it with: pip install"):
        load_library("tensorrt")


def test_missing_cuda_python_names_the_extra(
    doubles: Doubles, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    with pytest.raises(LopaError, match=r"cuda-python is not installed.*'lopa\[tensorrt\]'"):
        open_bundle(bundle)


OPENING = (
    "cudaStreamCreateWithFlags",
    "cudaMalloc",
    "cudaMallocHost",
    "cudaMemsetAsync",
)
RUNNING = ("cudaMemcpyAsync", "cudaStreamSynchronize", "cudaGraphLaunch", "cudaMemcpy2DAsync")


@pytest.mark.parametrize(
    ("call", "later"), [*((call, 0) for call in OPENING), ("cudaMalloc", 2), ("cudaMallocHost", 2)]
)
def test_a_failing_call_while_opening_leaves_nothing_behind(
    doubles: Doubles, bundle: Path, call: str, later: int
) -> None:
    doubles.cuda.failures[call] = later
    with pytest.raises(CudaError) as error:
        open_bundle(bundle)
    expected = f"{call} failed with cudaErrorInvalidValue (1): what the double says"
    assert one_line(error) == expected
    doubles.library.contexts.clear()
    gc.collect()
    assert not +doubles.cuda.used()


def test_too_little_memory_says_what_helps(doubles: Doubles, bundle: Path) -> None:
    doubles.cuda.failures["cudaMalloc"] = 1
    doubles.cuda.fault = Error.cudaErrorMemoryAllocation
    with pytest.raises(CudaError) as error:
        open_bundle(bundle)
    assert one_line(error) == (
        "cudaMalloc failed with cudaErrorMemoryAllocation (2): what the double says; free memory "
        "of the GPU, use --low-memory, or build smaller instances"
    )


@pytest.mark.parametrize("call", RUNNING)
def test_a_failing_call_while_running_is_one_line(
    doubles: Doubles, bundle: Path, call: str
) -> None:
    session = open_bundle(bundle)
    doubles.cuda.failures[call] = 1
    with pytest.raises(CudaError, match=f"^{call} failed with cudaErrorInvalidValue"):
        session.generate(prompt_ids=PROMPT, **SETTINGS)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("deserialize_cuda_engine", "cannot load .*: Error Code 1: the plan is damaged; build"),
        ("create_execution_context", "no context for profile 0: out of memory"),
        ("set_tensor_address", "refused the address of input_ids: address .* is not aligned"),
        ("execute_async_v3", "could not run instance b1-w24-c64-r24: the device is gone"),
    ],
)
def test_what_the_library_refuses_is_told_with_its_reason(
    doubles: Doubles, bundle: Path, call: str, expected: str
) -> None:
    doubles.library.failures.add(call)
    with pytest.raises(LopaError, match=expected):
        open_bundle(bundle).generate(prompt_ids=PROMPT, **SETTINGS)


CAPTURE_FAULTS: dict[str, tuple[Break, str]] = {
    "begin": (
        lambda doubles: doubles.cuda.failures.update(cudaStreamBeginCapture=0),
        "cudaStreamBeginCapture failed",
    ),
    "enqueue": (
        lambda doubles: setattr(doubles.library, "uncapturable", True),
        "cudaStreamEndCapture failed with cudaErrorStreamCaptureInvalidated .*"
        "; operation not permitted when stream is capturing",
    ),
    "end": (
        lambda doubles: doubles.cuda.failures.update(cudaStreamEndCapture=0),
        "cudaStreamEndCapture failed",
    ),
    "instantiate": (
        lambda doubles: doubles.cuda.failures.update(cudaGraphInstantiate=0),
        "cudaGraphInstantiate failed",
    ),
}


@pytest.mark.parametrize("fault", CAPTURE_FAULTS)
def test_without_a_graph_steps_are_plain_and_right(
    doubles: Doubles, bundle: Path, tiny_bundle: Path, fault: str
) -> None:
    expected = open_bundle(tiny_bundle).generate(prompt_ids=PROMPT, **SETTINGS)
    session = open_bundle(bundle)
    spoil, reason = CAPTURE_FAULTS[fault]
    spoil(doubles)
    with pytest.warns(EngineWarning, match=f"instance b.* runs without a CUDA graph: {reason}"):
        found = session.generate(prompt_ids=PROMPT, **SETTINGS)
    assert found.token_ids == expected.token_ids
    plain = [graph for graph in state_of(session).status().graphs if graph.state == "plain"]
    assert plain
    assert all(graph.text.startswith("plain: ") for graph in plain)
    calls = doubles.cuda.calls
    assert calls.count("cudaStreamEndCapture") == calls.count("cudaStreamBeginCapture") - (
        fault == "begin"
    )
    assert "cudaGetLastError" in calls
    assert doubles.cuda.used()["graphs"] == 0


@pytest.mark.parametrize("fault", CAPTURE_FAULTS)
def test_strict_refuses_to_run_without_a_graph(doubles: Doubles, bundle: Path, fault: str) -> None:
    session = open_bundle(bundle, strict=True)
    spoil, reason = CAPTURE_FAULTS[fault]
    spoil(doubles)
    with pytest.raises(LopaError, match=f"{reason}.*; decode without --strict") as error:
        session.generate(prompt_ids=PROMPT, **SETTINGS)
    one_line(error)


@pytest.mark.parametrize(
    "call", ["cudaGetDeviceCount", "cudaDeviceGetAttribute", "cudaGetDeviceProperties"]
)
def test_without_a_gpu_the_way_to_a_cpu_is_named(doubles: Doubles, bundle: Path, call: str) -> None:
    doubles.cuda.failures[call] = 0
    with pytest.raises(LopaError) as error:
        open_bundle(bundle)
    assert one_line(error) == (
        "a tensorrt bundle needs an NVIDIA GPU and its driver "
        f"({call} failed with cudaErrorInvalidValue (1): what the double says); "
        "build the model for --target onnxruntime to decode on a CPU"
    )


def test_no_driver_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real cuda-python, on a machine without a GPU."""
    pytest.importorskip("cuda.bindings.runtime")
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    with pytest.raises(CudaError, match=r"^cudaGetDeviceCount failed with cudaError\w+ \(\d+\): "):
        Cuda().gpus()

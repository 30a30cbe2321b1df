"""Parts of the TensorRT engine on their own: areas, cache layout, capture, runtime cache."""

from __future__ import annotations

import gc
import stat
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lopa.runtime.contract import LopaError, TensorSpec
from lopa.runtime.engine_info import EngineStamp
from lopa.runtime.engines.cuda import Cuda
from lopa.runtime.engines.packing import Packing
from lopa.runtime.engines.status import EngineWarning
from lopa.runtime.engines.tensorrt.buffers import InputAreas, Memory
from lopa.runtime.engines.tensorrt.cuda_graphs import StepRunner
from lopa.runtime.engines.tensorrt.device_cache import DeviceCache, runs
from lopa.runtime.engines.tensorrt.engine_file import EngineFile
from lopa.runtime.engines.tensorrt.kernel_cache import RuntimeCacheFile
from lopa.runtime.engines.tensorrt.library import PRODUCTS, load_library, make_log
from lopa.runtime.session import open_bundle
from numpy.typing import NDArray

from ...engine_steps import state_of
from ..cuda_double import CudaDouble
from .bundle import install, write_bundle
from .double import TensorRtDouble

PROMPT = [3, 1, 4, 1, 5]


def cuda_over(double: CudaDouble) -> Cuda:
    cuda = object.__new__(Cuda)
    cuda._api = double
    return cuda


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=20))
def test_runs_cover_every_pair_once_in_order(pairs: list[tuple[int, int]]) -> None:
    rows = np.array([row for row, _ in pairs], np.intp)
    slots = np.array([slot for _, slot in pairs], np.intp)
    found = [
        (row + index, slot + index)
        for row, slot, count in runs(rows, slots)
        for index in range(count)
    ]
    assert found == pairs


def test_runs_are_as_long_as_they_can_be() -> None:
    rows, slots = np.array([4, 5, 6, 9, 10, 2]), np.array([0, 1, 2, 3, 4, 5])
    assert runs(rows, slots) == [(4, 0, 3), (9, 3, 2), (2, 5, 1)]


@given(data=st.data())
def test_the_device_cache_does_what_an_array_does(data: st.DataObject) -> None:
    """Any sequence of growing and committing, in [planes, context, size] float32."""
    planes, size, window = 3, 2, 5
    contexts = data.draw(st.lists(st.integers(4, 12), min_size=1, max_size=3, unique=True))
    double = CudaDouble()
    cuda = cuda_over(double)
    stream = cuda.stream()
    cache = DeviceCache(cuda, Memory(cuda), stream, tuple(contexts), planes, size * 4)
    source = [cuda.allocate(planes * window * size * 4) for _ in range(2)]
    expected: list[NDArray[Any]] = []
    for context in sorted(contexts):
        cache.reserve(context)
        kept, expected = expected, [np.zeros((planes, context, size), np.float32) for _ in "kv"]
        for before, after in zip(kept, expected, strict=False):
            after[:, : before.shape[1]] = before
        count = data.draw(st.integers(0, 4))
        rows = np.array(data.draw(st.permutations(range(window)))[:count], np.intp)
        slots = np.array(data.draw(st.permutations(range(context)))[:count], np.intp)
        for address, into in zip(source, expected, strict=True):
            values = np.random.default_rng(context).random((planes, window, size), np.float32)
            double.resolve(address, values.nbytes)[:] = values.reshape(-1).view(np.uint8)
            into[:, slots] = values[:, rows]
        cache.commit((source[0], source[1]), window, rows, slots)
        cuda.synchronize(stream)
    used = np.zeros(cache.context, np.bool_)
    for array in expected:
        used |= array.any(axis=(0, 2))
    for address, array in zip((cache.keys, cache.values), expected, strict=True):
        found = double.resolve(address, array.nbytes).view(np.float32).reshape(array.shape)
        assert np.isfinite(double.resolve(address, cache.size).view(np.float32)).all()
        np.testing.assert_array_equal(found[:, used], array[:, used])
    assert bool(cache._scratch) == (len(contexts) > 1)


def test_device_time_is_that_of_the_work_between_two_events() -> None:
    double = CudaDouble()
    cuda = cuda_over(double)
    stream = cuda.stream()
    address = cuda.allocate(8)
    cuda.clear(address, 8, stream)

    def work() -> None:
        for _ in range(3):
            cuda.clear(address, 8, stream)

    assert cuda.elapsed(work, stream) == 3 + 1  # and recording the first event
    assert not double.events


def test_tensors_of_a_block_are_aligned_and_apart() -> None:
    specs = (TensorSpec("a", "bool", (3,)), TensorSpec("b", "int32", (65,)))
    packing = Packing.of((*specs, TensorSpec("c", "float32", ())))
    assert (packing.offsets, packing.size) == ({"a": 0, "b": 256, "c": 768}, 1024)
    views = packing.views(np.zeros(1024, np.uint8))
    views["b"][:] = -1
    assert not views["a"].any()
    assert not views["c"].any()


def test_areas_in_flight_are_never_handed_out() -> None:
    areas = InputAreas(Packing.of((TensorSpec("a", "int32", (2,)),)), lambda n: np.zeros(n, "u1"))
    flying = areas.fill()
    spare = {areas.prepare("one"), areas.prepare("two")}
    assert spare == {0, 1, 2} - {flying}
    assert areas.prepare("two") is None, "it is there already"
    address = areas.address
    assert areas.take("three") is None
    assert areas.address == address
    taken = areas.take("one")
    assert taken in spare
    assert areas.address != address
    assert areas.prepare("three") == flying  # least recently used; "two" was asked for later
    assert areas.take("two") is not None
    areas.fill()  # its contents are the caller's now
    assert areas.take("two") is None


class Context:
    """An execution context that copies one float from `input` to `output`."""

    def __init__(self, cuda: CudaDouble) -> None:
        self.cuda, self.addresses = cuda, dict[str, int]()

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        into, out_of = self.addresses["output"], self.addresses["input"]

        def copy() -> None:
            self.cuda.resolve(into, 4)[:] = self.cuda.resolve(out_of, 4)

        self.cuda.enqueue(stream, copy)
        return True


def test_a_graph_is_captured_again_when_an_address_changes() -> None:
    double = CudaDouble()
    cuda = cuda_over(double)
    stream = cuda.stream()
    runner = StepRunner("b1", cuda, Context(double), None, False, True, nullcontext())
    source, first, second = (cuda.allocate(4) for _ in range(3))
    double.resolve(source, 4)[:] = 7
    for output, captures in ((first, 1), (first, 1), (second, 2), (second, 2), (first, 3)):
        for address in (first, second):
            double.resolve(address, 4)[:] = 0
        runner.enqueue({"input": source, "output": output}, stream)
        cuda.synchronize(stream)
        assert double.resolve(output, 4).tolist() == [7] * 4
        assert double.resolve(second if output == first else first, 4).tolist() == [0] * 4
        assert double.calls.count("cudaStreamBeginCapture") == captures
    assert len(double.executables) == 1, "old graphs are freed"
    runner.free()
    assert not double.executables


def test_tensorrt_rtx_uses_its_own_graphs_and_keeps_its_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_bundle: Path
) -> None:
    expected = open_bundle(tiny_bundle).generate(prompt_ids=PROMPT, max_new_tokens=16)
    doubles = install(monkeypatch, rtx=True)
    write_bundle(tmp_path / "bundle", tiny_bundle, target="tensorrt-rtx", platform="windows-x86_64")
    session = open_bundle(tmp_path / "bundle")
    assert session.generate(prompt_ids=PROMPT, max_new_tokens=16).token_ids == expected.token_ids
    states = {graph.text for graph in state_of(session).status().graphs}
    assert states == {"unused", "captured and replayed by the library"}
    assert "cudaStreamBeginCapture" not in doubles.cuda.calls
    kept = tmp_path / "bundle.runtime-cache"
    assert kept.read_bytes() == doubles.library.compiled
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", kept.name]
    kept.write_bytes(b"of another GPU")
    named = tmp_path / "named"
    other = open_bundle(tmp_path / "bundle", runtime_cache=named)
    other.generate(prompt_ids=PROMPT, max_new_tokens=8)
    assert named.read_bytes() == doubles.library.compiled
    assert kept.read_bytes() == b"of another GPU"
    open_bundle(tmp_path / "bundle").generate(prompt_ids=PROMPT, max_new_tokens=8)
    assert kept.read_bytes() == doubles.library.compiled, "a stale cache is replaced"


def test_tensorrt_rtx_that_cannot_capture_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_bundle: Path
) -> None:
    doubles = install(monkeypatch, rtx=True)
    doubles.library.uncapturable = True
    write_bundle(tmp_path / "bundle", tiny_bundle, target="tensorrt-rtx")
    with pytest.warns(EngineWarning, match="the library cannot capture this engine"):
        open_bundle(tmp_path / "bundle").generate(prompt_ids=PROMPT, max_new_tokens=8)


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (b"no engine" * 100, "cannot run .* here: it is damaged or not an engine of this library"),
        (b"", r"step\.engine is empty; build it again"),
    ],
)
def test_what_the_real_library_refuses_is_told(tmp_path: Path, contents: bytes, said: str) -> None:
    """TensorRT for RTX where its wheel is installed: a GPU is not needed to refuse a file."""
    pytest.importorskip("tensorrt_rtx_bindings")
    library = load_library("tensorrt-rtx")
    plan = tmp_path / "step.engine"
    plan.write_bytes(contents)
    kept = RuntimeCacheFile(tmp_path / "cache")
    product, log = PRODUCTS["tensorrt-rtx"], make_log(library)
    stamp = EngineStamp((89,), "linux-x86_64", "none", False, (), "", {})
    with pytest.raises(LopaError, match=said):
        EngineFile(library, product, log, plan, stamp, kept)


def validity_of(library: TensorRtDouble, validity: str, *found: str) -> None:
    """Let the library double say this of every engine."""
    kinds = library.EngineInvalidityDiagnostics
    bits = sum(getattr(kinds, name) for name in found)
    library.validity = (getattr(library.EngineValidity, validity), bits)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (("VERSION_MISMATCH",), "another version of the library built it, build it again"),
        (
            ("UNSUPPORTED_CC", "OLD_CUDA_DRIVER"),
            "it has no kernels for this GPU, build it again with its --sm; the NVIDIA driver is "
            "too old for it, update the driver",
        ),
        ((), "it gives no reason"),
    ],
)
def test_tensorrt_rtx_is_asked_before_it_gets_the_engine(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tiny_bundle: Path,
    found: tuple[str, ...],
    said: str,
) -> None:
    doubles = install(monkeypatch, rtx=True)
    folder = tmp_path / "bundle"
    write_bundle(folder, tiny_bundle, target="tensorrt-rtx")
    validity_of(doubles.library, "INVALID", *found)
    doubles.library.failures.add("deserialize_cuda_engine")
    with pytest.raises(LopaError) as error:
        open_bundle(folder)
    assert str(error.value) == (
        f"TensorRT for RTX {doubles.library.__version__} cannot run {folder / 'step.engine'} here: "
        f"{said}"
    )
    gc.collect()
    assert not +doubles.cuda.used()


def test_an_engine_that_runs_slowly_here_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_bundle: Path
) -> None:
    doubles = install(monkeypatch, rtx=True)
    write_bundle(tmp_path / "bundle", tiny_bundle, target="tensorrt-rtx")
    validity_of(doubles.library, "SUBOPTIMAL")
    with pytest.warns(EngineWarning, match="can run .*step.engine here, but not at full speed$"):
        assert open_bundle(tmp_path / "bundle")


def test_a_runtime_cache_is_replaced_whole(tmp_path: Path) -> None:
    file = RuntimeCacheFile(tmp_path / "cache")
    assert file.load() == b""
    file.save(b"one")
    stamp = file.path.stat().st_ino
    file.save(b"one")
    assert file.path.stat().st_ino == stamp, "nothing new, nothing written"
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o644
    file.save(b"two")
    assert RuntimeCacheFile(file.path).load() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    missing = RuntimeCacheFile(tmp_path / "missing" / "cache")
    with pytest.warns(EngineWarning, match="kernels are not kept: .*--runtime-cache"):
        missing.save(b"one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        missing.save(b"one")

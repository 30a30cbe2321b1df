"""Steps with random weights made on a device, and the rates of its products: what is timed."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.contract import Instance, LopaError, TensorSpec, input_specs, output_specs
from ...runtime.engines.cuda import Cuda
from ...runtime.engines.onnxruntime.library import load_library
from ...runtime.manifest import ModelInfo

PRECISIONS = {"fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True)
class Size:
    """Dimensions of the timed model, and of the product whose rates are the floors."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    precision: str
    product: int  # its rows, columns and inner size

    def model(self) -> ModelInfo:
        """A Dream model of this size."""
        return ModelInfo(
            family="dream",
            model_type="Dream",
            layers=self.layers,
            hidden_size=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.hidden // self.heads,
            intermediate_size=self.intermediate,
            vocab_size=self.vocab,
            tokenizer_size=self.vocab,
            max_positions=4096,
            candidates=8,
            mask_token_id=self.vocab - 1,
            pad_token_id=0,
            stop_token_ids=(0,),
            logit_shift=1,
            window_attention="full",
            block_size=32,
        )


SIZES = {
    "7b": Size(3584, 28, 28, 4, 18944, 152064, "fp16", 8192),
    "tiny": Size(64, 2, 4, 2, 128, 512, "fp32", 256),
}


class Stream:
    """The stream that the provider works on, and events on it; without a GPU only the clock."""

    def __init__(self, provider: str) -> None:
        self._cuda = Cuda() if provider == "cuda" else None
        self.handle = 0 if self._cuda is None else self._cuda.stream()

    def times(self, run: Callable[[], object], repeats: int) -> tuple[float | None, float]:
        """Median milliseconds of `run` by device events and by the clock."""
        events, clock = [], []
        for _ in range(repeats):
            started = time.perf_counter()
            if self._cuda is None:
                run()
            else:
                events.append(self._cuda.elapsed(run, self.handle))
            clock.append((time.perf_counter() - started) * 1000)
        return (statistics.median(events) if events else None), statistics.median(clock)


class Device:
    """Sessions and values of one provider."""

    def __init__(self, provider: str, stream: Stream) -> None:
        self.provider, self._stream = provider, stream
        self._library = load_library()

    def session(self, model: str | bytes, graphs: bool, profile: Path | None = None) -> Any:
        """Open a model, with CUDA graph capture if asked for, writing a profile if asked for."""
        options = self._library.SessionOptions()
        options.log_severity_level = 3
        if profile is not None:
            options.enable_profiling, options.profile_file_prefix = True, str(profile)
        if self.provider == "cpu":
            return self._library.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        settings = {
            "enable_cuda_graph": "1" if graphs else "0",
            "has_user_compute_stream": "1",
            "user_compute_stream": str(self._stream.handle),
        }
        providers = [("CUDAExecutionProvider", settings)]
        session = self._library.InferenceSession(model, options, providers=providers)
        if session.get_providers()[0] != "CUDAExecutionProvider":
            raise LopaError(
                "onnxruntime could not start its CUDA provider: no usable GPU or driver"
            )
        return session

    def value(self, array: np.ndarray[Any, Any]) -> Any:
        """Copy an array to the device."""
        return self._library.OrtValue.ortvalue_from_numpy(array, self.provider, 0)

    def options(self, graph: int) -> Any:
        """Run options that capture and replay the graph of that id."""
        options = self._library.RunOptions()
        if self.provider == "cuda":
            options.add_run_config_entry("gpu_graph_id", str(graph))
        return options

    def random(self, shape: Sequence[int], dtype: str, center: float, spread: float) -> Any:
        """Uniform random numbers made on the device; nothing of their size is on the host."""
        from onnx import helper

        low, high, kind = center - spread, center + spread, _element_type(dtype)
        nodes = [
            helper.make_node("RandomUniform", [], ["x"], shape=shape, low=low, high=high, seed=1.0),
            helper.make_node("Cast", ["x"], ["y"], to=kind),
        ]
        session = self.session(_model(nodes, kind, {}, {"y": shape}), graphs=False)
        binding = session.io_binding()
        binding.bind_output("y", self.provider, 0)
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    def product_ms(self, rows: int, size: int, dtype: str, repeats: int) -> float:
        """Median milliseconds of a product [rows, size] x [size, size]."""
        from onnx import helper

        inputs, output = {"a": [rows, size], "b": [size, size]}, {"c": [rows, size]}
        node = helper.make_node("MatMul", ["a", "b"], ["c"])
        model = _model([node], _element_type(dtype), inputs, output)
        session = self.session(model, graphs=False)
        binding = session.io_binding()
        for name, shape in inputs.items():
            binding.bind_ortvalue_input(name, self.random(shape, dtype, 0.0, 1.0))
        binding.bind_ortvalue_output("c", self.random(output["c"], dtype, 0.0, 1.0))
        run = functools.partial(session.run_with_iobinding, binding)
        self._stream.times(run, 3)
        device, clock = self._stream.times(run, repeats)
        return clock if device is None else device


@dataclass(frozen=True)
class Graph:
    """A step graph whose weights are inputs: (shape, NumPy dtype name) by name."""

    path: Path
    info: ModelInfo
    dtype: str
    weights: dict[str, tuple[tuple[int, ...], str]]


def trace_graph(size: Size, path: Path) -> Graph:
    """Trace the step of a model of that size; no weight is made."""
    import onnx_ir as ir

    from ...export.spec import DecoderSpec, parameter_shapes
    from ...export.trace import trace

    spec = DecoderSpec(size.model(), 1e-6, 1e6, qkv_bias=True, tied_head=False)
    model = trace(spec, size.precision)
    weights = {}
    for name, shape in parameter_shapes(spec).items():
        value = model.graph.initializers.pop(name)
        assert value.dtype is not None
        weights[name] = (shape, value.dtype.numpy().name)
        value.const_value = None
        model.graph.inputs.append(value)
    ir.save(model, path)
    return Graph(path, spec.info, PRECISIONS[size.precision], weights)


class TimedModel:
    """A step graph with random weights on the device."""

    def __init__(self, graph: Graph, device: Device, profile: Path | None = None) -> None:
        self.info, self.dtype, self._device = graph.info, graph.dtype, device
        self.weights: dict[str, Any] = {}
        self.weight_bytes = self.body_weights = 0
        for name, (shape, dtype) in graph.weights.items():
            vector = len(shape) == 1
            spread = 0.1 if vector else math.sqrt(3 / shape[0])
            center = 1.0 if name.endswith("norm") else 0.0
            self.weights[name] = device.random(shape, dtype, center, spread)
            if name != "embed":  # a step reads a few rows of the embedding
                self.weight_bytes += math.prod(shape) * np.dtype(dtype).itemsize
            if not vector and name not in ("embed", "head"):
                self.body_weights += math.prod(shape)
        self.session = device.session(str(graph.path), graphs=True, profile=profile)

    def step(self, instance: Instance, graph: int) -> Callable[[], None]:
        """A call that runs one step of `instance` on fixed buffers of the device."""
        info = self.info
        dims = (info.layers, info.kv_heads, info.head_dim)
        binding = self.session.io_binding()
        for name, value in self.weights.items():
            binding.bind_ortvalue_input(name, value)
        for spec in input_specs(instance, *dims, self.dtype):
            binding.bind_ortvalue_input(spec.name, self._device.value(self._contents(spec)))
        for spec in output_specs(instance, *dims, info.candidates, self.dtype):
            blank = np.zeros(spec.shape, spec.dtype)
            binding.bind_ortvalue_output(spec.name, self._device.value(blank))
        options = self._device.options(graph)
        return lambda: self.session.run_with_iobinding(binding, options)

    def floors(
        self, instance: Instance, read_rate: float, product_rate: float
    ) -> tuple[float, ...]:
        """Milliseconds of reading the weights, and of the matrix products, at these rates."""
        head = self.info.hidden_size * self.info.vocab_size
        body = 2 * instance.window_rows * self.body_weights
        return (
            self.weight_bytes / read_rate * 1000,
            (body + 2 * instance.rows * head) / product_rate * 1000,
        )

    def _contents(self, spec: TensorSpec) -> np.ndarray[Any, Any]:
        if spec.name == "isolation_mask":
            return np.eye(spec.shape[0], dtype=np.bool_)
        if spec.name == "temperature":
            return np.ones(1, np.float32)
        array = np.zeros(spec.shape, spec.dtype)
        if spec.name == "cache_mask":
            array[: len(array) // 2] = True
        return array


def _element_type(dtype: str) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _model(
    nodes: Sequence[Any],
    kind: int,
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
) -> bytes:
    """A serialised ONNX model whose inputs and outputs are all of one element type."""
    from onnx import helper

    given, made = (
        [helper.make_tensor_value_info(name, kind, list(shape)) for name, shape in infos.items()]
        for infos in (inputs, outputs)
    )
    model = helper.make_model(
        helper.make_graph(list(nodes), "check", given, made),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )
    return bytes(model.SerializeToString())

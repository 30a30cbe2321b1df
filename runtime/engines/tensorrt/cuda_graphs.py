"""One instance's execution context: its addresses, and the CUDA graph its steps are replayed from.

What is captured is the library's enqueue alone; copies stay outside, since their host addresses
change from step to step.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from typing import Any

from ...contract import LopaError
from ..cuda import Cuda, CudaError
from ..status import EngineWarning, GraphStatus


class StepRunner:
    """Puts steps of one instance on a stream, by graph where one can be captured.

    With `own_graphs` the library captures and replays inside its enqueue, and nothing is captured
    here. With `strict` a graph that cannot be captured is an error, else a warning. First runs hold
    `lock`: the library compiles in them, and what it logs meanwhile is about them.
    """

    def __init__(
        self,
        name: str,
        cuda: Cuda,
        context: Any,
        log: Any,
        own_graphs: bool,
        strict: bool,
        lock: AbstractContextManager[Any],
    ) -> None:
        self._name, self._cuda, self._context, self._log = name, cuda, context, log
        self._own_graphs, self._strict, self._lock = own_graphs, strict, lock
        self._bound: dict[str, int] = {}
        self._graph: Any = None
        self._warm = False
        self._reason: str | None = None
        self._replays = 0

    @property
    def status(self) -> GraphStatus:
        """How steps are launched so far."""
        if not self._warm:
            return GraphStatus(self._name, "unused")
        if self._reason is not None:
            return GraphStatus(self._name, "plain", reason=self._reason)
        state = "library" if self._own_graphs else "captured"
        return GraphStatus(self._name, state, self._replays)

    def enqueue(self, addresses: dict[str, int], stream: int) -> bool:
        """Put one step on `stream`; returns whether it was the first (which compiles and captures).

        A graph is captured again when an address differs from the one it was captured with.
        """
        moved = addresses != self._bound
        if moved:
            self._bind(addresses)
        first = not self._warm
        if moved or first:
            with self._lock:
                self._prepare(stream)
        if self._graph is None:
            self._enqueue(stream)
        else:
            self._cuda.launch(self._graph, stream)
            self._replays += 1
        return first

    def free(self) -> None:
        """Free the graph and let the context go."""
        self._drop_graph()
        self._context = None

    def _bind(self, addresses: dict[str, int]) -> None:
        for name, address in addresses.items():
            if not self._context.set_tensor_address(name, address):
                raise LopaError(f"TensorRT refused the address of {name}: {self._log.take()}")
        self._bound = dict(addresses)

    def _prepare(self, stream: int) -> None:
        """Run once outside a graph, since first-time work must not be captured; then capture."""
        self._drop_graph()
        self._enqueue(stream)
        self._cuda.synchronize(stream)
        self._warm, self._reason = True, None
        if self._own_graphs:
            if not self._context.is_stream_capturable(stream):
                self._reason = "the library cannot capture this engine"
        else:
            self._capture(stream)
        if self._reason is None:
            return
        fault = f"instance {self._name} runs without a CUDA graph: {self._reason}"
        if self._strict:
            raise LopaError(f"{fault}; decode without --strict to accept that")
        warnings.warn(fault, EngineWarning, stacklevel=2)

    def _capture(self, stream: int) -> None:
        try:
            self._cuda.begin_capture(stream)
            try:
                accepted = self._context.execute_async_v3(stream)
            finally:  # whatever happened, or the stream is lost
                graph = self._cuda.end_capture(stream)
            if not accepted:
                self._cuda.destroy_graph(graph)
                raise CudaError("the library refused to be captured")
            self._graph = self._cuda.instantiate(graph)
        except CudaError as error:
            self._cuda.forget_error()
            self._reason = "; ".join([str(error), *self._log.errors])
            self._log.errors.clear()

    def _enqueue(self, stream: int) -> None:
        if not self._context.execute_async_v3(stream):
            raise LopaError(f"TensorRT could not run instance {self._name}: {self._log.take()}")

    def _drop_graph(self) -> None:
        if self._graph is not None:
            self._cuda.destroy_executable(self._graph)
        self._graph, self._replays = None, 0


def free_runners(runners: list[StepRunner]) -> None:
    """Free all runners; the device must be done with them."""
    while runners:
        runners.pop().free()

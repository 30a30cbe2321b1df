"""CUDA graphs of an ONNX Runtime session: the library captures one per id and replays it.

A run with a new id warms up and captures, later runs with the id replay. The library does not
check that shapes belong to an id: here every instance of every state has its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ...contract import Instance, LopaError
from ..status import EngineWarning, GraphStatus

_ID, _NO_GRAPH = "gpu_graph_id", "-1"


class SessionGraphs:
    """How the steps of each instance are launched.

    With `strict` an instance that cannot be captured is an error, else a warning. Ids begin at
    `first_id`; 0 is the library's own. With a `reason` the session captures nothing.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        strict: bool,
        first_id: int = 1,
        reason: str | None = None,
    ) -> None:
        self._ids = {shape: number for number, shape in enumerate(instances, start=first_id)}
        self._strict = strict
        self._ran: set[Instance] = set()
        self._reason = {} if reason is None else dict.fromkeys(instances, reason)

    def mark(self, shape: Instance, options: Any) -> None:
        """Have runs with these options use the graph of `shape`."""
        number = _NO_GRAPH if shape in self._reason else str(self._ids[shape])
        options.add_run_config_entry(_ID, number)

    def run(self, shape: Instance, session: Any, binding: Any, options: Any) -> None:
        """Run a step; if the first one of a shape fails, it runs again without a graph."""
        try:
            session.run_with_iobinding(binding, options)
        except Exception as error:  # the library raises its own undocumented classes
            if shape in self._ran or shape in self._reason:
                raise
            self._reason[shape] = without_graphs((shape,), str(error), self._strict)
            self.mark(shape, options)
            session.run_with_iobinding(binding, options)
        self._ran.add(shape)

    def status(self) -> tuple[GraphStatus, ...]:
        """How steps are launched so far, by instance."""
        return tuple(self._status(shape) for shape in self._ids)

    def _status(self, shape: Instance) -> GraphStatus:
        if shape in self._reason:
            return GraphStatus(shape.name, "plain", reason=self._reason[shape])
        return GraphStatus(shape.name, "library" if shape in self._ran else "unused")


def without_graphs(shapes: Sequence[Instance], reason: str, strict: bool) -> str:
    """Warn that these shapes run without a graph, with `strict` raise; returns why on one line."""
    reason = " ".join(reason.split())
    names = ", ".join(shape.name for shape in shapes)
    fault = f"instance {names} runs without a CUDA graph: {reason}"
    if strict:
        raise LopaError(f"{fault}; decode without --strict to accept that")
    warnings.warn(fault, EngineWarning, stacklevel=3)
    return reason

"""ONNX Runtime: the sessions of a bundle, which any number of decodes run at the same time."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ...contract import Instance, LopaError
from ...manifest import BundleManifest
from ...memory import bundle_memory
from ..status import EngineStatus
from .buffers import COMMIT_FILE, device_memory, host_memory
from .cuda_graphs import SessionGraphs, without_graphs
from .library import FATAL, check_provider, load_library
from .processor import processor_saturates
from .state import OnnxRuntimeState
from .tensors import check_commit, check_step


class OnnxRuntimeProgram:
    """A bundle loaded by ONNX Runtime (see `protocol.Program`).

    The library runs a session from many threads, but not while it captures or replays CUDA graphs:
    on that provider states hold `lock` for everything they do on the device.
    """

    def __init__(
        self,
        folder: Path,
        manifest: BundleManifest,
        provider: str = "cpu",
        threads: int = 0,
        resident: bool | None = None,
        strict: bool = False,
    ) -> None:
        """Load the sessions; `resident` (default: not on the CPU) keeps buffers in OrtValues.

        Resident states run static instances only and commit with the bundle's commit graph. With
        `strict` a CUDA graph that cannot be captured is an error. Steps share `threads` threads,
        their own one included.
        """
        self.library = load_library()
        check_provider(self.library, provider)
        self.manifest, self.provider = manifest, provider
        self._threads, self._strict = threads, strict
        quantized = manifest.quantization is not None or manifest.fast is not None
        self._slow_integers = quantized and provider == "cpu" and processor_saturates()
        resident = provider != "cpu" if resident is None else resident
        self.exact = manifest.engine.dynamic and not resident
        self.lock: AbstractContextManager[Any] = nullcontext()
        if provider == "cuda":
            self.lock = threading.Lock()
        self._no_graphs: str | None = None
        self._states, self._counting = 0, threading.Lock()
        self.sessions = [self._open_step(folder / manifest.graph.file)]
        if manifest.fast is not None and provider == "cpu":
            self.sessions.append(self._open_step(folder / manifest.fast.file))
        for session, file in zip(self.sessions, manifest.step_files, strict=False):
            check_step(session, folder / file, manifest)
        self.commit_session = None
        if resident:
            self.commit_session = self._open(folder / COMMIT_FILE, graphs=False)
            check_commit(self.commit_session, folder / COMMIT_FILE, manifest)

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Shapes the engine can run."""
        return self.manifest.instances

    def decode_state(self) -> OnnxRuntimeState:
        """Make a state for one more decode; its buffers are allocated as shapes are run."""
        with self._counting:
            number, self._states = self._states, self._states + 1
        graphs = None
        if self.provider == "cuda":
            first_id = 1 + number * len(self.instances)
            graphs = SessionGraphs(self.instances, self._strict, first_id, self._no_graphs)
        return OnnxRuntimeState(self, graphs)

    def status(self) -> EngineStatus:
        """Return library, provider and memory; on the CPU the library packs weights beside it."""
        manifest = self.manifest
        memory = host_memory if self.commit_session is None else device_memory
        return EngineStatus(
            f"onnxruntime {self.library.__version__}",
            f"{self.provider} provider",
            {"weights": bundle_memory(manifest).weights},
            (),
            memory(manifest),
        )

    def step_error(self, graph: int, error: Exception) -> LopaError:
        """What to raise when a step of one of the sessions fails."""
        return LopaError(
            f"onnxruntime {self.library.__version__} failed in a step of "
            f"{self.manifest.step_files[graph]}: {error}; verify the bundle with lopa inspect, or "
            "build it again"
        )

    def _open_step(self, path: Path) -> Any:
        """Open the step graph, on CUDA with graph capture where the library can."""
        if self.provider != "cuda":
            return self._open(path, graphs=False)
        try:
            return self._open(path, graphs=True)
        except LopaError as error:
            session = self._open(path, graphs=False)
            reason = str(error.__cause__ or error)
            self._no_graphs = without_graphs(self.instances, reason, self._strict)
            return session

    def _open(self, path: Path, graphs: bool) -> Any:
        options = self.library.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.log_severity_level = 3 if self.provider == "cuda" else FATAL
        provider: Any = "CPUExecutionProvider"
        if self.provider == "cuda":
            settings = {"enable_cuda_graph": "1" if graphs else "0", "device_id": "0"}
            provider = ("CUDAExecutionProvider", settings)
        options.enable_mem_pattern = not self.exact  # patterns of many shapes only hold memory
        if self._slow_integers:  # exact ones; where both kinds are exact the others are faster
            options.add_session_config_entry("session.x64quantprecision", "1")
        try:
            session = self.library.InferenceSession(
                str(path),
                options,
                providers=[provider],
                enable_fallback=int(self.provider == "cuda"),  # it prints to standard output
            )
        except Exception as error:  # the library raises its own undocumented classes
            raise LopaError(
                f"onnxruntime {self.library.__version__} cannot load {path}: {error}; "
                "build it again"
            ) from error
        if self.provider == "cuda" and session.get_providers()[0] != "CUDAExecutionProvider":
            raise LopaError(
                "onnxruntime could not start its CUDA provider (no usable GPU or driver); "
                "use --provider cpu"
            )
        return session

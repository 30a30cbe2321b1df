"""TensorRT, TensorRT for RTX: the deserialised engine, of which decodes make their contexts."""

from __future__ import annotations

import threading
from pathlib import Path

from ...contract import Instance, LopaError
from ...manifest import BundleManifest
from ..cuda import Cuda, CudaError, Gpu
from ..status import EngineStatus
from .engine_file import EngineFile
from .kernel_cache import RuntimeCacheFile
from .library import PRODUCTS, load_library, make_log
from .stamp import Machine, check_stamp, dotted, this_platform
from .state import StateLayout, TensorRtState


class TensorRtProgram:
    """A bundle loaded by a TensorRT library (see `protocol.Program`).

    The library runs contexts of one engine at the same time, each on a stream of its own. What it
    does once for a context (making it, compiling, capturing) happens under `lock`.
    """

    def __init__(
        self,
        folder: Path,
        manifest: BundleManifest,
        *,
        strict: bool = False,
        runtime_cache: Path | None = None,
    ) -> None:
        """Check the stamp and deserialise; raises LopaError.

        With `strict` an instance whose graph cannot be captured is an error. `runtime_cache` is
        where TensorRT for RTX keeps the kernels it compiles here, by default beside the bundle.
        """
        target = manifest.engine.target
        self.product, library = PRODUCTS[target], load_library(target)
        self.cuda = Cuda()
        gpu = _first_gpu(self.cuda, target)
        stamp = check_stamp(manifest.engine, Machine(library.__version__, this_platform(), gpu))
        self._title = f"{self.product.title} {library.__version__}"
        self._device = f"{gpu.name}, SM {dotted(gpu.compute_capability)}"
        self.manifest, self.strict = manifest, strict
        self.lock = threading.RLock()
        self.log = make_log(library)
        kept = RuntimeCacheFile(runtime_cache) if runtime_cache else RuntimeCacheFile.beside(folder)
        path = folder / manifest.graph.file
        self.engine = EngineFile(library, self.product, self.log, path, stamp, kept)
        self.profiles = [stamp.profiles.index(instance.name) for instance in manifest.instances]
        activations = self.engine.activation_bytes(self.profiles)
        self.layout = StateLayout.of(manifest, activations)

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Shapes the engine can run."""
        return self.manifest.instances

    def decode_state(self) -> TensorRtState:
        """Allocate and make the contexts of one more decode; raises LopaError."""
        with self.lock:
            return TensorRtState(self)

    def status(self) -> EngineStatus:
        """Return versions, and device memory by use."""
        engine = self.manifest.files[self.manifest.graph.file].bytes
        return EngineStatus(
            self._title, self._device, {"engine": engine}, (), self.layout.device_memory
        )


def _first_gpu(cuda: Cuda, target: str) -> Gpu:
    try:
        return cuda.gpus()[0]
    except (CudaError, IndexError) as error:
        raise LopaError(
            f"a {target} bundle needs an NVIDIA GPU and its driver ({error}); build the model for "
            "--target onnxruntime to decode on a CPU"
        ) from error

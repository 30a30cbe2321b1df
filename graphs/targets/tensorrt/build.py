"""TensorRT 10, TensorRT 11 and TensorRT for RTX: one engine, one optimisation profile per instance.

The graph stays symbolic. A profile with min = opt = max compiles to the same kernels and scratch
memory as a static graph, and all profiles share one copy of the weights. Precision is what the
graph says: builders are strongly typed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx

from ....runtime.contract import Instance, LopaError, input_specs
from ....runtime.engine_info import EngineInfo, EngineStamp
from ....runtime.engines.cuda import Cuda, Gpu
from ....runtime.engines.tensorrt.library import PRODUCTS, load_library
from ....runtime.engines.tensorrt.stamp import this_platform
from ....runtime.manifest import ModelManifest
from ....runtime.staging import check_file, write_whole
from ..listener import BuildListener
from .check import precision_faults, target_faults
from .log import make_build_log, parser_faults
from .progress import make_monitor
from .rewrite import rewrite
from .settings import TensorRtSettings
from .timing_cache import load_timing_cache
from .traits import TRAITS, network_flags

ENGINE_FILE = "step.engine"


def check_build(target: str, precision: str, settings: TensorRtSettings) -> Gpu | None:
    """Raise LopaError for what keeps this machine or these settings from building at all.

    Returns the GPU to build on, None for a target that needs none.
    """
    traits, title = TRAITS[target], PRODUCTS[target].title
    refused = settings.refused(traits)
    if refused:
        raise LopaError(f"{title} does not take {', '.join(refused)}; leave it out")
    for path in (settings.timing_cache, settings.layer_info):
        if path is not None:
            check_file(path)
    load_library(target)
    gpu = None
    if traits.needs_gpu:
        gpu = find_gpu(
            f"{title} builds on the GPU that will run the engine, --target tensorrt-rtx on any"
            " machine"
        )
    elif settings.layer_info is not None:
        find_gpu("--exportLayerInfo loads the engine, leave it out")
    faults = precision_faults(precision, capabilities_of(target, settings, gpu))
    if faults:
        raise LopaError(f"{title} cannot build this: {'; '.join(faults)}")
    return gpu


def capabilities_of(target: str, settings: TensorRtSettings, gpu: Gpu | None) -> tuple[int, ...]:
    """Compute capabilities that the engine will serve, ascending."""
    if gpu is not None:
        return (gpu.compute_capability,)
    return settings.compute_capabilities or TRAITS[target].default_capabilities


def find_gpu(purpose: str) -> Gpu:
    """Return the first GPU; raises LopaError naming what needs it."""
    try:
        gpus = Cuda().gpus()
    except LopaError as error:
        raise LopaError(f"no NVIDIA GPU is usable here ({error}): {purpose}") from error
    if not gpus:
        raise LopaError(f"no NVIDIA GPU is here: {purpose}")
    return gpus[0]


def build_engine(
    target: str,
    model_folder: Path,
    manifest: ModelManifest,
    instances: tuple[Instance, ...],
    stage: Path,
    settings: TensorRtSettings,
    listener: BuildListener,
) -> tuple[EngineInfo, list[str]]:
    """Compile the model folder into `stage`; returns the engine's record and the file names."""
    gpu = check_build(target, manifest.graph.precision, settings)
    library, traits = load_library(target), TRAITS[target]
    capabilities = capabilities_of(target, settings, gpu)
    path = model_folder / manifest.graph.file
    graph = rewrite(onnx.load(path, load_external_data=False))
    faults = target_faults(graph, capabilities)
    if faults:
        raise LopaError(f"{PRODUCTS[target].title} cannot build {path}: {'; '.join(faults)}")
    if traits.capability_list and manifest.quantization is not None and 75 in capabilities:
        listener.warn(
            f"NVIDIA's support matrix of {PRODUCTS[target].title} lists fp32 and fp16 alone for SM "
            "75: integers compile, but may not run there"
        )
    compiler = _Compiler(target, library, listener)
    engine = compiler.compile(
        graph, path, manifest, instances, settings, capabilities if traits.capability_list else ()
    )
    (stage / ENGINE_FILE).write_bytes(engine)
    if settings.layer_info is not None:
        write_whole(settings.layer_info, compiler.layer_information(engine).encode())
    stamp = EngineStamp(
        compute_capabilities=tuple(sorted(capabilities)),
        platform=this_platform(),
        hardware_compatibility=settings.hardware_compatibility,
        version_compatible=settings.version_compatible,
        profiles=tuple(instance.name for instance in instances),
        graph_sha256=graph_sha256(manifest),
        settings={**settings.recorded(), **({} if gpu is None else {"gpu": gpu.name})},
    )
    versions = {target: str(library.__version__)}
    return EngineInfo(target, dynamic=False, versions=versions, stamp=stamp), [ENGINE_FILE]


def graph_sha256(manifest: ModelManifest) -> str:
    """One hash (hex) of the graph with its external data: of the lines "sha256  name", sorted."""
    names = sorted(name for name in manifest.files if name.endswith((".onnx", ".data")))
    lines = "".join(f"{manifest.files[name].sha256}  {name}\n" for name in names)
    return hashlib.sha256(lines.encode()).hexdigest()


class _Compiler:
    """One build with one library; faults are raised with what the library logged."""

    def __init__(self, target: str, library: Any, listener: BuildListener) -> None:
        self._title = PRODUCTS[target].title
        self._library, self._listener = library, listener
        self._log = make_build_log(library)

    def compile(
        self,
        graph: onnx.ModelProto,
        path: Path,
        manifest: ModelManifest,
        instances: Sequence[Instance],
        settings: TensorRtSettings,
        capabilities: Sequence[int],
    ) -> memoryview:
        """Build `graph`, whose external data lies where the file `path` says.

        `capabilities` are named to builders that take a list.
        """
        library, log = self._library, self._log
        builder = self._builder()
        network = builder.create_network(network_flags(library))
        network.name = graph_sha256(manifest)  # the engine keeps it: it can tell whose it is
        parser = library.OnnxParser(network, log)
        if not parser.parse(graph.SerializeToString(), path=str(path)):
            faults = parser_faults(parser) or [log.reason()]
            raise LopaError(f"{self._title} cannot parse {path}: {'; '.join(faults)}")
        config = builder.create_builder_config()
        self._configure(config, settings, capabilities)
        cache: Any = None  # must live until the engine is built
        cache_file = settings.timing_cache
        if cache_file is not None:
            strict = settings.strict_timing_cache
            cache = load_timing_cache(cache_file, config, log, strict, self._listener.warn)
        for index, instance in enumerate(instances):
            profile = self._profile(builder, manifest, instance)
            if config.add_optimization_profile(profile) != index:
                raise LopaError(f"{self._title} refuses {instance.name}: {log.reason()}")
        engine = self._run(builder, network, config)
        if engine is None:
            raise LopaError(f"{self._title} cannot build {path}: {log.reason()}")
        for warning in log.warnings:
            self._listener.warn(warning)
        if cache_file is not None:
            self._keep(cache_file, cache)
        return memoryview(engine)

    def _keep(self, path: Path, cache: Any) -> None:
        """Write the timing cache; the engine is not thrown away because that fails."""
        try:
            write_whole(path, bytes(cache.serialize()))
        except OSError as error:
            self._listener.warn(f"timing cache {path} is not kept: {error.strerror}")

    def _run(self, builder: Any, network: Any, config: Any) -> Any:
        """Build in a thread, so that this one gets the signals.

        The library prints and forgets what is raised in its callbacks: Ctrl-C there is lost.
        """
        config.progress_monitor = monitor = make_monitor(self._library, self._listener.progress)
        with ThreadPoolExecutor(1) as thread:
            try:
                engine = thread.submit(builder.build_serialized_network, network, config).result()
            except BaseException as error:
                monitor.stopped = error  # the library gives up after its next step
                raise
        if monitor.stopped is not None:
            raise monitor.stopped
        return engine

    def layer_information(self, engine: memoryview) -> str:
        """The inspector's JSON about every layer; the engine is loaded onto the GPU for it."""
        runtime = self._library.Runtime(self._log)
        runtime.engine_host_code_allowed = True  # version-compatible engines bring a runtime
        loaded = runtime.deserialize_cuda_engine(engine)
        if loaded is None:
            raise LopaError(f"{self._title} cannot load the engine: {self._log.reason()}")
        inspector = loaded.create_engine_inspector()
        return str(inspector.get_engine_information(self._library.LayerInformationFormat.JSON))

    def _builder(self) -> Any:
        try:
            return self._library.Builder(self._log)
        except TypeError as error:  # the bindings say so when the library returned nothing
            raise LopaError(f"{self._title} cannot start: {self._log.reason()}") from error

    def _configure(
        self, config: Any, settings: TensorRtSettings, capabilities: Sequence[int]
    ) -> None:
        library = self._library
        if settings.workspace is not None:
            config.set_memory_pool_limit(library.MemoryPoolType.WORKSPACE, settings.workspace)
        if settings.optimization_level is not None:
            config.builder_optimization_level = settings.optimization_level
        if settings.verbosity is not None:
            config.profiling_verbosity = _member(library.ProfilingVerbosity, settings.verbosity)
        if settings.hardware_compatibility != "none":
            level = settings.hardware_compatibility.replace("+", "-plus")
            config.hardware_compatibility_level = _member(library.HardwareCompatibilityLevel, level)
        if settings.version_compatible:
            config.set_flag(library.BuilderFlag.VERSION_COMPATIBLE)
        if settings.strict_timing_cache:
            config.set_flag(library.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
        if capabilities:
            config.num_compute_capabilities = len(capabilities)
        for index, number in enumerate(capabilities):
            config.set_compute_capability(_member(library.ComputeCapability, f"sm{number}"), index)

    def _profile(self, builder: Any, manifest: ModelManifest, instance: Instance) -> Any:
        info, dtype = manifest.model, manifest.model_dtype
        profile = builder.create_optimization_profile()
        for spec in input_specs(instance, info.layers, info.kv_heads, info.head_dim, dtype):
            profile.set_shape(spec.name, spec.shape, spec.shape, spec.shape)
        return profile


def _member(enumeration: Any, name: str) -> Any:
    return getattr(enumeration, name.upper().replace("-", "_"))

"""A double of the TensorRT builder: it records what it is told and fails where it is asked to.

It has the calls that TensorRT 10, 11 and TensorRT for RTX share. Like them it returns None or False
for a fault and gives the reason to the logger alone.
"""

from __future__ import annotations

import enum
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

Severity = enum.Enum("Severity", ["INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE"])
Flag = enum.IntEnum("Flag", ["VERSION_COMPATIBLE", "ERROR_ON_TIMING_CACHE_MISS"])
Pool = enum.Enum("Pool", ["WORKSPACE"])
Verbosity = enum.Enum("Verbosity", ["LAYER_NAMES_ONLY", "NONE", "DETAILED"])
Level = enum.Enum("Level", ["NONE", "AMPERE_PLUS", "SAME_COMPUTE_CAPABILITY"])
NetworkFlag = enum.IntEnum("NetworkFlag", {"EXPLICIT_BATCH": 0, "STRONGLY_TYPED": 1})
Format = enum.Enum("Format", ["ONELINE", "JSON"])


class Logger:
    INTERNAL_ERROR, ERROR, WARNING = Severity.INTERNAL_ERROR, Severity.ERROR, Severity.WARNING

    def log(self, level: Any, msg: str) -> None:
        raise NotImplementedError


class Monitor:
    pass


class Library:
    """One library of a version; `fail` names calls that fail, each with what it logs."""

    ILogger, IProgressMonitor = Logger, Monitor
    BuilderFlag, MemoryPoolType, ProfilingVerbosity = Flag, Pool, Verbosity
    HardwareCompatibilityLevel, NetworkDefinitionCreationFlag = Level, NetworkFlag
    LayerInformationFormat = Format
    ENGINE = b"an engine"

    def __init__(self, version: str) -> None:
        self.__version__ = version
        self.fail: dict[str, str] = {}
        self.parser_errors: list[SimpleNamespace] = []
        self.warnings: list[str] = []
        self.network_flags: int | None = None
        self.network: SimpleNamespace
        self.during_build: Callable[[], None] | None = None
        self.canceled = False
        self.parsed: tuple[bytes, str] | None = None
        self.config: Config

    def fails(self, call: str, log: Logger) -> bool:
        if call in self.fail:
            log.log(Severity.ERROR, self.fail[call])
        return call in self.fail

    def Builder(self, log: Logger) -> Builder:  # noqa: N802
        if self.fails("Builder", log):
            raise TypeError("pybind11::init(): factory function returned nullptr")
        return Builder(self, log)

    def OnnxParser(self, network: Any, log: Logger) -> Parser:  # noqa: N802
        return Parser(self)

    def Runtime(self, log: Logger) -> Any:  # noqa: N802
        def deserialize(engine: memoryview) -> Any:
            if self.fails("deserialize", log):
                return None
            assert bytes(engine) == self.ENGINE
            information = {Format.JSON: '{"Layers": ["conv"]}'}
            inspector = SimpleNamespace(get_engine_information=information.__getitem__)
            return SimpleNamespace(create_engine_inspector=lambda: inspector)

        return SimpleNamespace(deserialize_cuda_engine=deserialize)


class Builder:
    def __init__(self, library: Library, log: Logger) -> None:
        self._library, self._log = library, log

    def create_network(self, flags: int) -> SimpleNamespace:
        self._library.network_flags = flags
        self._library.network = SimpleNamespace(name="unnamed")
        return self._library.network

    def create_builder_config(self) -> Config:
        self._library.config = Config(self._library, self._log)
        return self._library.config

    def create_optimization_profile(self) -> Profile:
        return Profile()

    def build_serialized_network(self, network: object, config: Config) -> Any:
        for warning in self._library.warnings:
            self._log.log(Severity.WARNING, warning)
        assert config.cache is None or config.cache() is not None, "the timing cache is gone"
        monitor = config.progress_monitor
        monitor.phase_start("building", None, 4)
        if self._library.during_build is not None:
            time.sleep(0.1)  # until the main thread waits
            self._library.during_build()
        for step in range(4):
            if not monitor.step_complete("building", step):
                self._library.canceled = True
                return None
            if self._library.during_build is not None:
                time.sleep(0.1)  # until the main thread has taken notice
        monitor.phase_finish("building")
        if self._library.fails("build", self._log):
            return None
        return np.frombuffer(self._library.ENGINE, np.uint8).data


class Parser:
    def __init__(self, library: Library) -> None:
        self._library = library

    def parse(self, model: bytes, path: str) -> bool:
        self._library.parsed = (model, path)
        return not self._library.parser_errors

    @property
    def num_errors(self) -> int:
        return len(self._library.parser_errors)

    def get_error(self, index: int) -> SimpleNamespace:
        error = self._library.parser_errors[index]
        return SimpleNamespace(**{name: lambda v=value: v for name, value in vars(error).items()})


class Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}

    def set_shape(
        self, name: str, low: tuple[int, ...], best: tuple[int, ...], high: tuple[int, ...]
    ) -> None:
        assert low == best == high, "an instance is one static shape"
        self.shapes[name] = best


class TimingCache:
    def __init__(self, stored: bytes) -> None:
        self.stored = stored

    def serialize(self) -> bytes:
        return self.stored + b"+measured"


class Config:
    """Attributes are kept as they are set; calls are recorded by name."""

    def __init__(self, library: Library, log: Logger) -> None:
        self._library, self.log = library, log
        self.flags: set[Flag] = set()
        self.pools: dict[Pool, int] = {}
        self.profiles: list[Profile] = []
        self.capabilities: dict[int, str] = {}
        self.cache: weakref.ref[TimingCache] | None = None
        self.progress_monitor: Any = None

    def set_flag(self, flag: Flag) -> None:
        self.flags.add(flag)

    def set_memory_pool_limit(self, pool: Pool, size: int) -> None:
        self.pools[pool] = size

    def add_optimization_profile(self, profile: Profile) -> int:
        if self._library.fails("profile", self.log):
            return -1
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def set_compute_capability(self, capability: str, index: int) -> None:
        self.capabilities[index] = capability

    def create_timing_cache(self, stored: bytes) -> TimingCache | None:
        if stored and self._library.fails("create_timing_cache", self.log):
            return None
        return TimingCache(stored)

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if cache.stored and self._library.fails("set_timing_cache", self.log):
            return False
        self.cache = weakref.ref(cache)
        return True


class RtxLibrary(Library):
    """TensorRT for RTX: takes compute capabilities."""

    ComputeCapability = SimpleNamespace(
        **{f"SM{number}": f"SM{number}" for number in (75, 80, 86, 89, 120, 121)}
    )

"""Flags of `lopa build` that belong to one kind of target, trtexec's spellings among them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..graphs.targets import TENSORRT
from ..graphs.targets.tensorrt.settings import (
    OPTIMIZATION_LEVELS,
    PROFILING_VERBOSITY,
    TensorRtSettings,
)
from ..runtime.contract import LopaError
from ..runtime.engine_info import HARDWARE_COMPATIBILITY
from ..runtime.manifest import MODEL_FILE, ModelInfo, read_model
from .arguments import path, positives

# Static windows in blocks of the model, and at least so many tokens.
WINDOW_BLOCKS = ((2, 32), (4, 64))
PREFILL_SHARES = (4, 1)  # of the largest context

LARGEST_POOL = (1 << 63) - 1  # bytes, as the builder counts them
_UNITS = {"": 1 << 20, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def add_precision_flags(parser: argparse.ArgumentParser, precisions: tuple[str, ...]) -> None:
    """Add what chooses the precision of the graph."""
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument(
        "--precision", choices=precisions, help="default: fp32, or what the model folder has"
    )
    for name in ("fp16", "bf16"):
        precision.add_argument(
            f"--{name}",
            dest="precision",
            action="store_const",
            const=name,
            help=f"--precision {name}: the graph is exported in it (TensorRT takes types from the "
            "graph; as a builder flag it is gone with TensorRT 11)",
        )
    parser.add_argument(
        "--int8",
        action="store_true",
        help="insist on a model folder quantised by lopa calibrate: TensorRT 11 has no calibrator "
        "and reads INT8 from the graph",
    )


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    """Add the builder flags of the TensorRT targets; none has a value unless it is given."""
    flags = parser.add_argument_group(
        "TensorRT targets",
        "Each has its trtexec spelling and a kebab-case one. TensorRT 11 builds strongly typed "
        "networks only: --best, calibration caches and layer precisions are gone, and --fp16, "
        "--bf16 and --int8 say in which precision the graph is exported.",
    )

    def add(kebab: str, camel: str, **settings: object) -> None:
        flags.add_argument(f"--{kebab}", f"--{camel}", default=None, **settings)  # type: ignore[arg-type]

    flags.add_argument(
        "--sm",
        metavar="N,...",
        type=positives,
        help="tensorrt-rtx: GPU generations the engine serves, 89 for SM 8.9 "
        "(default 80,86,89,120); 75 and 121 are possible",
    )
    add(
        "mem-pool-size",
        "memPoolSize",
        metavar="workspace:N",
        type=workspace,
        help="scratch memory a kernel may use, MiB, or with B, K, M or G (default: all there is)",
    )
    add(
        "builder-optimization-level",
        "builderOptimizationLevel",
        metavar="N",
        type=int,
        choices=OPTIMIZATION_LEVELS,
        help="0 builds fastest, 5 searches longest for fast kernels (default 3)",
    )
    add(
        "profiling-verbosity",
        "profilingVerbosity",
        type=_spelled(PROFILING_VERBOSITY),
        metavar="|".join(PROFILING_VERBOSITY),
        help="what the engine remembers of its layers (default layer-names-only)",
    )
    add(
        "export-layer-info",
        "exportLayerInfo",
        metavar="FILE",
        type=path,
        help="write the engine inspector's JSON (detailed verbosity; needs a GPU on both targets)",
    )
    add(
        "hardware-compatibility-level",
        "hardwareCompatibilityLevel",
        type=_spelled(HARDWARE_COMPATIBILITY),
        metavar="|".join(HARDWARE_COMPATIBILITY),
        help="tensorrt: other GPUs the engine serves (default none)",
    )
    add(
        "version-compatible",
        "versionCompatible",
        action="store_true",
        help="tensorrt: newer versions of the library may run the engine",
    )
    add(
        "timing-cache-file",
        "timingCacheFile",
        metavar="FILE",
        type=path,
        help="tensorrt: kernel timings to start from, written back after the build",
    )
    add(
        "error-on-timing-cache-miss",
        "errorOnTimingCacheMiss",
        action="store_true",
        help="tensorrt: fail where the timing cache does not serve, instead of timing again",
    )


def target_settings(args: argparse.Namespace) -> TensorRtSettings | None:
    """Return what the flags say; raises LopaError if the target is none of TensorRT's."""
    given = {flag: value for flag, value in _values(args).items() if value is not None}
    if args.target in TENSORRT:
        named = {field: given[flag] for field, flag in _FIELDS.items() if flag in given}
        return TensorRtSettings(**named)
    if given:
        raise LopaError(
            f"--target {args.target} has no use for {', '.join(given)}; leave it out or choose "
            f"one of {', '.join(TENSORRT)}"
        )
    return None


def default_windows(
    target: str, model: ModelInfo, contexts: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Window and prefill sizes of a build that names none.

    ONNX Runtime runs exact shapes, so the largest context costs nothing. A TensorRT instance costs
    what its shape says, on every step: windows of two and four blocks (at least 32 and 64 tokens),
    and prompts of up to a quarter and all of the largest context.
    """
    longest = max(contexts)
    if target not in TENSORRT:
        return (longest,), (longest,)
    windows = {min(max(n * model.block_size, least), longest) for n, least in WINDOW_BLOCKS}
    prefills = {-(-longest // share) for share in PREFILL_SHARES}
    return tuple(sorted(windows)), tuple(sorted(prefills))


def check_int8(folder: Path) -> None:
    """Raise LopaError unless `folder` is a model folder made by `lopa calibrate`."""
    if not (folder / MODEL_FILE).is_file():
        found = "is not a model folder"
    elif read_model(folder).quantization is None:
        found = "is not quantised"
    else:
        return
    raise LopaError(
        f"--int8 needs a quantised model folder, {folder} {found}; make one with: "
        "lopa calibrate MODEL --prompts FILE -o MODEL_INT8"
    )


def workspace(text: str) -> int:
    """Bytes of `workspace:N`: MiB, or with the unit B, K, M or G."""
    match = re.fullmatch(r"workspace:(\d+)([BKMG]?)(?:iB)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"expected workspace:N in MiB (or with B, K, M, G), got {text}"
        )
    size = int(match[1]) * _UNITS[match[2]]
    if not 0 < size <= LARGEST_POOL:
        raise argparse.ArgumentTypeError(f"{text} is {size} bytes, expected 1 to 2^63 - 1")
    return size


# Field of the settings -> the flag's attribute among the parsed arguments.
_FIELDS = {
    "compute_capabilities": "--sm",
    "workspace": "--memPoolSize",
    "optimization_level": "--builderOptimizationLevel",
    "profiling_verbosity": "--profilingVerbosity",
    "layer_info": "--exportLayerInfo",
    "hardware_compatibility": "--hardwareCompatibilityLevel",
    "version_compatible": "--versionCompatible",
    "timing_cache": "--timingCacheFile",
    "strict_timing_cache": "--errorOnTimingCacheMiss",
}


def _values(args: argparse.Namespace) -> dict[str, Any]:
    """Parsed value of every flag, by its spelling."""
    return {
        flag: getattr(args, re.sub("([A-Z])", r"_\1", flag[2:]).lower())
        for flag in _FIELDS.values()
    }


def _spelled(names: tuple[str, ...]) -> Callable[[str], str]:
    """Type of a flag that takes one of `names`; trtexec's camelCase and snake_case are the same."""

    def choose(text: str) -> str:
        plain = {name.replace("-", ""): name for name in names}
        found = plain.get(re.sub("[-_]", "", text).lower())
        if found is None:
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(names)}, got {text}")
        return found

    return choose

"""Check ONNX Runtime's CUDA provider on this machine, and time steps at the shapes of a 7B model.

    python -m lopa.tools.gpu_check

1. Parity: the demo model decodes the same tokens on the provider as on the CPU.
2. Graphs: after its first run a step is replayed; the library's profile then shows no node.
3. Times: median ms of a step of every instance, random weights made on the device, by device
   events and by the clock, beside what reading the weights and the matrix products alone would
   take at the rates that this GPU reaches in one product. Exit status 1 when 1 or 2 fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..runtime.contract import Instance, LopaError
from ..runtime.engines.cuda import Cuda
from ..runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from ..runtime.engines.single import SingleState
from ..runtime.manifest import read_bundle
from ..runtime.session import Session, open_bundle
from ..runtime.staging import check_file, write_whole
from .arguments import naturals, positive, positives
from .bench.timed_step import PRECISIONS, SIZES, Device, Graph, Stream, TimedModel, trace_graph
from .paths import output_file, path

DEMO = Path(__file__).parent / "demo"


@dataclass(frozen=True)
class Timing:
    """Median milliseconds of a step; floors are times, too."""

    instance: str
    device_ms: float | None  # between events on the stream; None without a GPU
    clock_ms: float
    weight_floor_ms: float
    product_floor_ms: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks and print what they give."""
    parser = argparse.ArgumentParser(
        prog="python -m lopa.tools.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--bundle",
        metavar="BUNDLE",
        type=path,
        help="for the parity (default: the demo, built here)",
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="7b")
    parser.add_argument("--lookahead", metavar="K,K", type=naturals, default=tuple(range(9)))
    parser.add_argument("--window", metavar="W,W", type=positives, default=(32, 64))
    parser.add_argument("--context", metavar="C", type=positive, default=512)
    parser.add_argument("--repeats", metavar="N", type=positive, default=20)
    parser.add_argument(
        "--json", metavar="FILE", type=output_file, help="write all numbers to FILE"
    )
    args = parser.parse_args(argv)
    try:
        if args.json:
            check_file(args.json)
        with tempfile.TemporaryDirectory(prefix="lopa-gpu-check-") as folder:
            return _check(args, Path(folder))
    except LopaError as error:
        print("gpu_check: error:", error, file=sys.stderr)
        return 1


def _check(args: argparse.Namespace, folder: Path) -> int:
    if args.provider == "cuda":
        for gpu in Cuda().gpus():
            print(f"GPU {gpu.index}: {gpu.name}, SM {gpu.compute_capability / 10:.1f}")
    stream = Stream(args.provider)
    device = Device(args.provider, stream)
    same, prompts = parity(args.provider, args.bundle or demo_bundle(folder))
    print(f"parity: {same} of {prompts} demo prompts give the same tokens as on the CPU")
    small = trace_graph(SIZES["tiny"], folder / "tiny.onnx")
    replayed, nodes = replay(small, device, folder)
    print(
        f"graphs: {'replayed' if replayed else 'NOT replayed'}, nodes launched one by one in each "
        f"run of a small model: {nodes}"
    )
    graph = small if args.size == "tiny" else trace_graph(SIZES[args.size], folder / "step.onnx")
    timings = list(times(args, graph, device, stream))
    if args.json:
        found = {"parity": same, "prompts": prompts, "nodes": nodes}
        found |= {"timings": [asdict(timing) for timing in timings]}
        write_whole(args.json, f"{json.dumps(found, indent=2)}\n".encode())
    captured = replayed or args.provider == "cpu"  # there is nothing to capture on a CPU
    return 0 if same == prompts and captured else 1


def demo_bundle(folder: Path) -> Path:
    """Build the demo model for the CPU and the CUDA provider alike."""
    from ..export.model_folder import export_model
    from ..graphs.bundle import build_bundle
    from ..graphs.instances import plan_instances

    export_model(DEMO / "checkpoint", folder / "model")
    instances = plan_instances(4, [32, 64], [256], [256])
    build_bundle(folder / "model", folder / "bundle", instances)
    return folder / "bundle"


def parity(provider: str, bundle: Path) -> tuple[int, int]:
    """Decode the demo prompts on the CPU and on the device path; returns equal ones and all."""
    manifest = read_bundle(bundle)
    engine = OnnxRuntimeProgram(bundle, manifest, provider, resident=True).decode_state()
    sessions = (open_bundle(bundle), Session(bundle, manifest, SingleState(engine)))
    lines = (DEMO / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    same = 0
    for prompt in prompts:
        first, second = (session.generate(prompt, max_new_tokens=96) for session in sessions)
        same += first.token_ids == second.token_ids
    return same, len(prompts)


def replay(graph: Graph, device: Device, folder: Path, runs: int = 5) -> tuple[bool, list[int]]:
    """Run a model several times; returns whether the last run launched no node by itself."""
    model = TimedModel(graph, device, folder / "profile")
    step = model.step(Instance(2, 8, 16, 16), 1)
    for _ in range(runs):
        step()
    events = json.loads(Path(model.session.end_profiling()).read_text(encoding="utf-8"))
    nodes = nodes_per_run(events)
    return nodes[-1] == 0, nodes


def nodes_per_run(events: Sequence[dict[str, Any]]) -> list[int]:
    """Count the node events inside each run of a profile, in order."""
    spans = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("name") == "model_run"
    )
    starts = [event["ts"] for event in events if event.get("cat") == "Node"]
    return [sum(low <= start <= high for start in starts) for low, high in spans]


def times(
    args: argparse.Namespace, graph: Graph, device: Device, stream: Stream
) -> Iterator[Timing]:
    """Time every instance, printing a line for each."""
    size = SIZES[args.size]
    dtype, edge = PRECISIONS[size.precision], size.product
    item = np.dtype(dtype).itemsize
    read_rate = edge * edge * item / device.product_ms(1, edge, dtype, args.repeats) * 1000
    product_rate = 2 * edge**3 / device.product_ms(edge, edge, dtype, args.repeats) * 1000
    print(
        f"rates: {read_rate / 1e9:.0f} GB/s read by a row times a matrix, "
        f"{product_rate / 1e12:.2f} TFLOP/s by a square product of {edge}, {size.precision}"
    )
    model = TimedModel(graph, device)
    print(f"model: {size}, {model.weight_bytes / 1e9:.2f} GB of weights read per step")
    print("instance              device ms  clock ms  weight floor  product floor  of the floor")
    shapes = [(lookahead + 1, window) for window in args.window for lookahead in args.lookahead]
    for number, (branches, window) in enumerate(shapes, start=1):
        instance = Instance(branches, window, args.context, branches * window)
        step = model.step(instance, number)
        step()
        step()
        on_device, clock = stream.times(step, args.repeats)
        timing = Timing(
            instance.name, on_device, clock, *model.floors(instance, read_rate, product_rate)
        )
        floor = max(timing.weight_floor_ms, timing.product_floor_ms)
        taken = clock if on_device is None else on_device
        shown = "-" if on_device is None else f"{on_device:.3f}"
        print(
            f"{timing.instance:<21} {shown:>9} {clock:>9.3f} {timing.weight_floor_ms:>13.3f} "
            f"{timing.product_floor_ms:>14.3f} {taken / floor:>12.2f}x",
            flush=True,
        )
        yield timing


if __name__ == "__main__":
    raise SystemExit(main())

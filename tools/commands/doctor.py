"""Say what this machine can build and run, and whether it runs a given bundle.

With BUNDLE, its files are verified, its stamp is compared with the machine, the engine is opened
and, on a GPU, every instance is run once, which shows whether its CUDA graph can be captured. Exit
status 1 when the bundle does not run here.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.targets import find_target, providers
from ..display.report import Section, columns, print_report, size_text
from ..paths import path

if TYPE_CHECKING:
    from ...runtime.engines.status import EngineStatus
    from ..machine import Machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lopa doctor`."""
    parser.add_argument("bundle", metavar="BUNDLE", nargs="?", type=path, help="try this bundle")
    parser.add_argument(
        "--provider",
        choices=providers(),
        default=providers()[0],
        help=f"of onnxruntime bundles (default: {providers()[0]})",
    )
    parser.add_argument(
        "--strict", action="store_true", help="fail when a CUDA graph cannot be captured"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Look at the machine, try the bundle, print what was found."""
    from ..machine import this_machine

    status = None if args.bundle is None else try_bundle(args.bundle, args.provider, args.strict)
    machine = this_machine()
    if args.json:
        found = asdict(machine)
        if status is not None:
            found["bundle"] = {"path": str(args.bundle), **asdict(status)}
        print(json.dumps(found))
    else:
        print_report("this machine", _machine_sections(machine))
        if status is not None:
            print_report(str(args.bundle), _bundle_sections(status))
    return 0


def try_bundle(folder: Path, provider: str, strict: bool) -> EngineStatus:
    """Open a bundle and run its instances once, on the CPU the smallest; raises LopaError."""
    from ...runtime.engines.status import EngineWarning
    from ...runtime.engines.warm_up import warm_up
    from ...runtime.session import open_bundle

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EngineWarning)  # the status tells
        session = open_bundle(folder, provider=provider, strict=strict)
        target = session.manifest.engine.target
        on_cpu = provider == "cpu" and provider in find_target(target).providers
        shapes = session.program.instances
        smallest = min(shapes, key=lambda shape: (shape.window_rows, shape.context))
        with session.state() as state:
            warm_up(state, (smallest,) if on_cpu else shapes)
            return state.status()


def _machine_sections(machine: Machine) -> list[Section]:
    gpus = [
        f"{gpu.name}, SM {gpu.compute_capability // 10}.{gpu.compute_capability % 10}, "
        f"{size_text(gpu.memory)}"
        for gpu in machine.gpus
    ]
    libraries = [
        (library.name, library.version or "-", library.purpose) for library in machine.libraries
    ]
    return [
        ("lopa", [f"{machine.lopa}, Python {machine.python}, {machine.platform}"]),
        ("libraries", [f"{name:<14} {version:<12} {use}" for name, version, use in libraries]),
        ("CUDA", [machine.cuda]),
        ("GPUs", gpus or ["none"]),
        *(
            (target.name, [f"build  {target.build or 'yes'}", f"run    {target.run or 'yes'}"])
            for target in machine.targets
        ),
    ]


def _bundle_sections(status: EngineStatus) -> list[Section]:
    graphs = [(graph.instance, graph.text) for graph in status.graphs]
    width = max((len(name) for name, _ in graphs), default=0)
    return [
        ("runs", [f"yes, {status.library} on {status.device}"]),
        ("memory", _memory_lines(status)),
        ("CUDA graphs", [f"{name:<{width}}  {text}" for name, text in graphs] or ["none on a CPU"]),
    ]


def _memory_lines(status: EngineStatus) -> list[str]:
    """What is loaded once, what every decode at the same time adds, and the parts of that."""
    once = ", ".join(f"{use} {size_text(size)}" for use, size in status.memory.items())
    each = size_text(sum(status.decode_memory.values()))
    parts = [(f"  {use}", size_text(size)) for use, size in status.decode_memory.items()]
    return [f"{once} once, {each} for each decode at the same time:", *columns(parts)]

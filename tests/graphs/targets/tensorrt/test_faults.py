"""Builds that fail or are stopped, against a double of the library."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from lopa.graphs.bundle import build_bundle
from lopa.graphs.targets.listener import BuildListener
from lopa.runtime.contract import LopaError

from .builds import INSTANCES, build
from .recording_library import Library


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("Builder", "TensorRT cannot start: no device"),
        ("profile", "TensorRT refuses b1-w8-c64-r8: no device"),
        ("build", r"TensorRT cannot build .*step\.onnx: no device"),
    ],
)
def test_a_fault_of_the_library_is_one_line(
    library: Library, tiny_model: Path, tmp_path: Path, call: str, message: str
) -> None:
    library.fail[call] = "IBuilder::build: Error Code 4: API Usage Error (no device)"
    with pytest.raises(LopaError, match=message):
        build(tiny_model, tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_parser_errors_name_the_nodes(library: Library, tiny_model: Path, tmp_path: Path) -> None:
    library.parser_errors = [
        SimpleNamespace(
            desc="Found unsupported input type", node_name="mm", node_operator="MatMul"
        ),
        SimpleNamespace(desc="false", node_name="odd", node_operator="Strange"),
    ]
    with pytest.raises(
        LopaError,
        match=r"TensorRT cannot parse .*step\.onnx: node mm \(MatMul\): Found unsupported input "
        r"type; node odd \(Strange\): the library does not know it$",
    ):
        build(tiny_model, tmp_path / "bundle")


def test_warnings_and_progress_reach_the_listener(
    library: Library, tiny_model: Path, tmp_path: Path
) -> None:
    library.warnings = ["Slow kernel. In pick at /src/tactic.cpp:12", "Slow kernel."]
    warnings: list[str] = []
    shares: list[float] = []
    build_bundle(
        tiny_model,
        tmp_path / "bundle",
        INSTANCES,
        target="tensorrt",
        listener=BuildListener(shares.append, warnings.append),
    )
    assert warnings == ["Slow kernel."]
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_an_interrupt_stops_the_library_and_is_raised(
    library: Library, tiny_model: Path, tmp_path: Path
) -> None:
    shares: list[float] = []

    def stop(share: float) -> None:
        shares.append(share)
        if share >= 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_bundle(
            tiny_model,
            tmp_path / "bundle",
            INSTANCES,
            target="tensorrt",
            listener=BuildListener(stop),
        )
    assert shares == [0.25, 0.5]
    assert list(tmp_path.iterdir()) == []


def test_a_signal_stops_the_library_and_is_raised(
    library: Library, tiny_model: Path, tmp_path: Path
) -> None:
    """Ctrl-C while the library works: what is raised in its own frames it prints and forgets."""
    library.during_build = lambda: os.kill(os.getpid(), signal.SIGINT)
    # A shell that starts the tests in the background has them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            build(tiny_model, tmp_path / "bundle")
    finally:
        signal.signal(signal.SIGINT, before)
    assert library.canceled
    assert list(tmp_path.iterdir()) == []

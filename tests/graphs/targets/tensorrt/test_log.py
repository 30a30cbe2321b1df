from __future__ import annotations

import pytest
from lopa.graphs.targets.tensorrt.log import make_build_log, readable

from .recording_library import Library, Severity


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (ITopKLayer tk: tk: K "
            "exceeds the maximum value allowed (3840). In processCheck at "
            "/_src/optimizer/shapeof/graphShapeAnalyzer.cpp:1066 In analyzeShapes at "
            "/_src/optimizer/shapeof/graphShapeAnalyzer.cpp:2825)",
            "ITopKLayer tk: tk: K exceeds the maximum value allowed (3840).",
        ),
        (
            "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([pass.cpp:1500: run_passes] "
            "Cannot compile for target(s) sm75, because the model contains HW-specific datatypes: "
            "b16. In compileGraph at /_src/optimizer/myelin/codeGenerator.cpp:2012)",
            "Cannot compile for target(s) sm75, because the model contains HW-specific datatypes: "
            "b16.",
        ),
        (
            "Assertion failed: status.is_success(): Found unsupported\ninput type of INT32",
            "Assertion failed: status.is_success(): Found unsupported input type of INT32",
        ),
        ("a plain line", "a plain line"),
        ("(in brackets)", "in brackets"),
    ],
)
def test_messages_without_source_locations(message: str, line: str) -> None:
    assert readable(message) == line


def test_each_line_once_and_nothing_below_a_warning() -> None:
    log = make_build_log(Library("11.4"))
    for _ in range(2):
        log.log(Severity.ERROR, "no kernel In f at /src/a.cpp:1")
        log.log(Severity.WARNING, "slow")
        log.log(Severity.WARNING, "ModelImporter.cpp:1303: Make sure output i has Int64 binding.")
        log.log(Severity.INFO, "parsed")
        log.log(Severity.VERBOSE, "step")
    assert (log.errors, log.warnings, log.reason()) == (["no kernel"], ["slow"], "no kernel")


def test_a_missing_driver_is_the_reason_only_where_there_is_no_other() -> None:
    log = make_build_log(Library("11.4"))
    assert log.reason() == "the library gave no reason"
    log.log(Severity.INTERNAL_ERROR, "CUDA failed (cudaError 35: driver is insufficient)")
    assert log.reason() == "CUDA failed (cudaError 35: driver is insufficient)"
    log.log(Severity.ERROR, "no kernel")
    assert log.reason() == "no kernel"
    log.clear()
    assert (log.count(), log.reason()) == (0, "the library gave no reason")

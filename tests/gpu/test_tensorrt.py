"""The real libraries on a real GPU; each test skips with the reason where there is none.

The demo model is built for the target on this machine, then decoded and compared with the CPU.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import lopa
import pytest
from lopa.graphs.targets.tensorrt.traits import TRAITS
from lopa.runtime.contract import LopaError
from lopa.runtime.engines.cuda import Cuda, CudaError
from lopa.runtime.engines.status import EngineWarning
from lopa.runtime.engines.tensorrt.library import load_library
from lopa.runtime.engines.warm_up import warm_up
from lopa.runtime.session import Session
from lopa.tools.cli import main

DEMO = Path(lopa.__file__).parent / "tools" / "demo"
SIZES = ["--lookahead=4", "--window=32,64", "--context=128,256", "--prefill=256"]


@pytest.fixture(scope="module", params=["tensorrt", "tensorrt-rtx"])
def target(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    try:
        load_library(name)
        gpu = Cuda().gpus()[0]
    except LopaError as error:
        pytest.skip(str(error))
    served = TRAITS[name].compute_capabilities
    if served and gpu.compute_capability not in served:
        pytest.skip(f"{name} has no kernels for {gpu.name}")
    return name


@pytest.fixture(scope="module")
def bundles(target: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The demo bundle of the CPU and that of the target, in float32."""
    folder = tmp_path_factory.mktemp(target)
    for name in ("onnxruntime", target):
        command = ["build", str(DEMO / "checkpoint"), "-o", str(folder / name), "--target", name]
        assert main([*command, *SIZES, "-q"]) == 0
    return folder / "onnxruntime", folder / target


def _prompts() -> list[str]:
    lines = (DEMO / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines]


def _answers(session: Session) -> list[tuple[int, ...]]:
    return [session.generate(prompt, max_new_tokens=96).token_ids for prompt in _prompts()]


def test_tokens_are_those_of_the_cpu(bundles: tuple[Path, Path]) -> None:
    cpu, gpu = (lopa.open_bundle(path) for path in bundles)
    expected = _answers(cpu)
    for _ in range(2):  # the first decode captures, the second replays alone
        assert _answers(gpu) == expected


def test_every_instance_is_captured(bundles: tuple[Path, Path], target: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = lopa.open_bundle(bundles[1], strict=True)
        with session.state() as state:
            warm_up(state, state.instances)
    expected = "library" if target == "tensorrt-rtx" else "captured"
    assert {graph.state for graph in state.status().graphs} == {expected}


def test_replay_equals_plain_enqueue(
    bundles: tuple[Path, Path], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target == "tensorrt-rtx":
        pytest.skip("the library captures inside its own calls")
    expected = _answers(lopa.open_bundle(bundles[1]))

    def refuse(self: Cuda, stream: int) -> None:
        raise CudaError("refused by the test")

    monkeypatch.setattr(Cuda, "begin_capture", refuse)
    with pytest.warns(EngineWarning, match="runs without a CUDA graph: refused by the test"):
        assert _answers(lopa.open_bundle(bundles[1])) == expected

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from lopa.tools.eval import sandbox
from lopa.tools.eval.sandbox import Limits, run_program

SMALL = Limits(cpu_seconds=1, wall_seconds=20, memory_bytes=256 << 20, file_bytes=1 << 16)


def detail_of(code: str, limits: Limits = SMALL) -> str:
    outcome = run_program(code, limits)
    assert not outcome.passed
    return outcome.detail


def test_a_program_that_ends_passes_silently(capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "from dataclasses import dataclass\nimport sys\n"
        "@dataclass\nclass A:\n    x: 'int'\n"
        "print('out'); print('err', file=sys.stderr)\nassert A(1).x == 1\n"
        "if __name__ == '__main__':\n    raise ValueError\n"
    )
    assert run_program(code, SMALL).passed
    assert capfd.readouterr() == ("", "")


def test_cpu_time_is_limited() -> None:
    started = time.perf_counter()
    assert detail_of("while True: pass") == "out of CPU time"
    assert time.perf_counter() - started < 15


def test_wall_time_is_limited() -> None:
    limits = Limits(cpu_seconds=5, wall_seconds=1.0)
    assert detail_of("import time\ntime.sleep(60)", limits) == "out of time after 1 s"


def test_memory_is_limited() -> None:
    assert detail_of("x = bytearray(1 << 30)") == "out of memory"


def test_file_size_is_limited_and_the_folder_is_its_own() -> None:
    code = "open('a', 'w').write('x' * {size})\nimport os\nassert os.listdir() == ['a']"
    assert run_program(code.format(size=1000), SMALL).passed
    assert detail_of(code.format(size=1 << 17)) == "OSError: [Errno 27] File too large"


@pytest.mark.parametrize(
    "code",
    [
        "import socket\nsocket.create_connection(('127.0.0.1', {port}))",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}')",
        "import _socket\n_socket.socket()",
    ],
)
def test_the_network_is_blocked(code: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        detail = detail_of(code.format(port=server.getsockname()[1]))
        assert "not allowed here" in detail
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_kind_of_protection_is_said() -> None:
    assert sandbox.network_protection() in (
        "own network namespace, sockets blocked",
        "sockets blocked",
    )
    assert sandbox.describe(SMALL)["memory_bytes"] == 256 << 20


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.system('true')",
        "import os\nos.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "open({path!r}, 'w')",
        "open({path!r}, 'a')",
        "import os\nos.remove({path!r})",
        "import os\nos.open({path!r}, os.O_RDWR)",
        "import shutil, os\nshutil.rmtree(os.path.dirname({path!r}))",
        "import pathlib\npathlib.Path({path!r}).rename('here')",
    ],
)
def test_processes_and_files_elsewhere_are_refused(code: str, tmp_path: Path) -> None:
    path = tmp_path / "kept.txt"
    path.write_text("kept")
    assert "not allowed here" in detail_of(code.format(path=str(path)))
    assert path.read_text() == "kept"


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("import sys\nsys.exit(0)", "SystemExit: 0"),
        ("import os\nos._exit(0)", "left early with status 0"),
        ("raise KeyError('a')", "KeyError: 'a'"),
        ("x = (", "SyntaxError: '(' was never closed (<answer>, line 1)"),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError: maximum recursion depth exceeded"),
        ("import os, signal\nsignal.raise_signal(signal.SIGSEGV)", "crashed"),
        ("assert input() == 'x'", "EOFError: EOF when reading a line"),
    ],
)
def test_failures_are_named(code: str, detail: str) -> None:
    assert detail_of(code) == detail


def test_much_output_does_no_harm() -> None:
    code = "for _ in range(20000): print('x' * 1000)"
    assert run_program(code, Limits(cpu_seconds=5)).passed

"""Runs command lines in one process: one JSON line in, one JSON line with the outcome out.

What a command prints is caught at the file descriptors, so that nothing a C library writes is
missed. The peak of memory is that of each command alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from lopa.tools import cli

from ..runtime.engines.tensorrt.bundle import install

ROOM = 2 << 30  # bytes of addresses over those of the idle process
TRACEBACK = 70


def main() -> None:
    """Serve command lines until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    if "--doubles" in sys.argv:
        install(pytest.MonkeyPatch())
    ready = {"obeys_permissions": _obey_permissions()}
    limited = False
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers, flush=True)
        if not limited:  # the libraries are loaded now
            limit = _status("VmSize") + ROOM
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            limited = True


def run(arguments: list[str]) -> dict[str, Any]:
    """Run one command line; a fault that leaves `cli.main` is status 70 with its traceback."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        kept = [os.dup(1), os.dup(2)]
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
        started = time.perf_counter()
        try:
            status = cli.main(arguments)
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            traceback.print_exc()
            status = TRACEBACK
        seconds = time.perf_counter() - started
        sys.stdout.flush()
        sys.stderr.flush()
        for number, file in enumerate(kept, 1):
            os.dup2(file, number)
            os.close(file)
        return {
            "status": status,
            "out": _text(out),
            "err": _text(err),
            "peak": _status("VmHWM"),
            "seconds": seconds,
        }


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode("utf-8", "replace"))


def _status(name: str) -> int:
    """A size of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


def _obey_permissions() -> bool:
    """Give up root's right to read everything; tells whether permissions hold now."""
    if os.geteuid():
        return True
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets):
        return False
    sets[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH of the effective set
    return bool(libc.capset(header, sets) == 0)


if __name__ == "__main__":
    main()

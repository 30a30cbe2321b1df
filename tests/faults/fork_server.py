"""Runs command lines in forks of a process that has the libraries loaded, and kills some of them.

One JSON line in: `arguments`, and `seconds` after which the fork is killed or `bytes` that no file
of it may grow beyond. One JSON line with the outcome out.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from typing import Any

from lopa.tools import cli

MODULES = ("torch", "onnx", "onnxruntime", "lopa.export.model_folder", "lopa.calibration.calibrate")
TRACEBACK = 70


def main() -> None:
    """Serve command lines until standard input ends."""
    for name in (*MODULES, *(f"lopa.tools.commands.{command}" for command in cli.COMMANDS)):
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    print(json.dumps({"obeys_permissions": False}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), file=answers, flush=True)


def run(
    arguments: list[str], seconds: float | None = None, bytes: int | None = None
) -> dict[str, Any]:
    """Run one command line in a fork."""
    source, said = os.pipe()
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        _command(arguments, said, bytes)
    os.close(said)
    status = _wait(child, seconds)
    taken = time.perf_counter() - started
    with os.fdopen(source, encoding="utf-8", errors="replace") as err:
        return {"status": status, "out": "", "err": err.read(), "seconds": taken}


def _command(arguments: list[str], err: int, limit: int | None) -> None:
    """What the fork does; it never returns."""
    status = TRACEBACK
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(err, 2)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        status = cli.main(arguments)
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _wait(child: int, seconds: float | None) -> int:
    """Exit status of the fork; minus the signal's number when it was killed."""
    end = None if seconds is None else time.perf_counter() + seconds
    while True:
        found, status = os.waitpid(child, 0 if end is None else os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if end is not None and time.perf_counter() >= end:
            os.killpg(child, signal.SIGKILL)
            end = None
        elif end is not None:
            time.sleep(0.001)


if __name__ == "__main__":
    main()

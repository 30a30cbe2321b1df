"""Runs programs that a model wrote, each in its own limited process without a network.

It guards against accidents, not against an attacker. The child has an empty environment, an empty
working folder that is removed afterwards, Python's standard library only (-I -S), and cannot start
processes, open sockets, or change files outside its folder (`sandbox_child`). Where the kernel
lets it, it also gets a network namespace of its own, in which nothing can be reached.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("sandbox_child.py")
SIGNALS = {signal.SIGXCPU: "out of CPU time", signal.SIGKILL: "killed", signal.SIGSEGV: "crashed"}


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    cpu_seconds: int = 10
    wall_seconds: float = 30.0
    memory_bytes: int = 512 << 20
    file_bytes: int = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """Whether a program ran to its end without an error, and if not why."""

    passed: bool
    detail: str
    network: str = ""  # how the network was kept away, where the program got that far


def run_program(code: str, limits: Limits | None = None) -> Outcome:
    """Run `code` as a module; it passes if its last line is reached without an exception."""
    limits = limits or Limits()
    token = secrets.token_hex(16)  # a program that only exits early does not pass
    job = {
        "code": code,
        "token": token,
        "cpu_seconds": limits.cpu_seconds,
        "memory_bytes": limits.memory_bytes,
        "file_bytes": limits.file_bytes,
    }
    with tempfile.TemporaryDirectory(prefix="lopa-eval-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"TMPDIR": folder},
            start_new_session=True,
        )
        try:
            data = json.dumps(job).encode()
            answer, _ = process.communicate(data, timeout=limits.wall_seconds)
        except subprocess.TimeoutExpired:
            return Outcome(False, f"out of time after {limits.wall_seconds:g} s")
        finally:
            _end(process)
    return _outcome(answer, token, process.returncode)


@cache
def network_protection() -> str:
    """How programs are kept off the network on this machine."""
    return run_program("").network or "unknown"


def describe(limits: Limits | None = None) -> dict[str, Any]:
    """Limits and protection, for the record of a run."""
    limits = limits or Limits()
    return {
        "cpu_seconds": limits.cpu_seconds,
        "wall_seconds": limits.wall_seconds,
        "memory_bytes": limits.memory_bytes,
        "file_bytes": limits.file_bytes,
        "network": network_protection(),
    }


def _outcome(answer: bytes, token: str, status: int) -> Outcome:
    try:
        found = json.loads(answer)
    except ValueError:
        found = {}
    if isinstance(found, dict) and found.get("token") == token:
        return Outcome(bool(found["passed"]), str(found["detail"]), str(found["network"]))
    if status < 0:
        return Outcome(False, SIGNALS.get(signal.Signals(-status), f"killed by signal {-status}"))
    return Outcome(False, f"left early with status {status}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the child's whole session, if any of it is left."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None and not pipe.closed:
            pipe.close()

"""Runs untrusted function text in a separate, limited Python process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

MEMORY_LIMIT = 512 << 20

RUNNER = f"""
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_LIMIT}, {MEMORY_LIMIT}))
job = json.loads(sys.stdin.read())
namespace = {{}}
exec(job["code"], namespace)
results = [namespace[job["entry"]](argument) for argument in job["arguments"]]
sys.__stdout__.write("\\n" + json.dumps(results))
"""


def run_function(
    code: str, entry: str, arguments: list[Any], time_limit: float
) -> list[Any] | None:
    """Result of `entry` for each argument, or None on any error or after `time_limit` seconds.

    The process has an empty environment, isolated mode (-I) and 512 MiB of memory. It guards
    against accidents of a model, not against an attacker.
    """
    job = json.dumps({"code": code, "entry": entry, "arguments": arguments})
    command = [sys.executable, "-I", "-S", "-c", RUNNER]
    try:
        done = subprocess.run(
            command, input=job, capture_output=True, text=True, timeout=time_limit, env={}
        )
        results = json.loads(done.stdout.rsplit("\n", 1)[-1]) if done.returncode == 0 else None
    except (subprocess.TimeoutExpired, json.JSONDecodeError, UnicodeDecodeError):
        return None
    return results if isinstance(results, list) else None

"""Closed and full standard streams give one line, not a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


def shell(redirections: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `lopa` with the shell's redirections."""
    command = "from lopa.tools.cli import main; raise SystemExit(main())"
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-c", command]
        + [str(argument) for argument in arguments],
        capture_output=True,
        text=True,
    )


def test_closed_streams(tiny_bundle: Path) -> None:
    command = ["generate", tiny_bundle, "-q", "--prompt"]
    shown = shell(">&-", *command, "x")
    assert (shown.returncode, shown.stderr) == (
        1,
        "lopa: error: standard output is closed; send it to a file or /dev/null\n",
    )
    shown = shell("<&-", *command, "-")
    assert (shown.returncode, shown.stderr) == (
        1,
        "lopa: error: cannot read prompts: standard input is closed\n",
    )
    shown = shell("2>&-", *command, "")
    assert (shown.returncode, shown.stdout) == (1, "")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_device(tiny_bundle: Path) -> None:
    for command in (["inspect", tiny_bundle], ["generate", tiny_bundle, "--prompt", "x", "-q"]):
        shown = shell(f">{FULL}", *command)
        assert (shown.returncode, shown.stderr) == (
            1,
            "lopa: error: cannot write the output: No space left on device\n",
        )
    shown = shell(f"2>{FULL}", "inspect", tiny_bundle / "absent")
    assert (shown.returncode, shown.stdout) == (1, "")

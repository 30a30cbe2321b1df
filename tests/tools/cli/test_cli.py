from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import lopa as package
import pytest
from lopa import __version__, export
from lopa.runtime.contract import LopaError
from lopa.tools import cli
from lopa.tools.commands import generate

from .conftest import Lopa

HEAVY = ("numpy", "torch", "onnx", "onnxruntime", "tokenizers", "rich")


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(args: object) -> int:
        raise error

    monkeypatch.setattr(generate, "run", run)


@pytest.mark.parametrize(
    ("work", "heavy"),
    [
        ("parser = build_parser(flags=False); parser.format_help()", "[]"),
        ("build_parser().parse_args(['generate', 'bundle', '--prompt', 'x'])", "['numpy']"),
    ],
)
def test_parsing_imports_no_heavy_library(work: str, heavy: str) -> None:
    script = (
        f"import sys; from lopa.tools.cli import build_parser; {work};"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout == f"{heavy}\n"


def test_help_lists_every_command_with_the_first_line_of_its_docstring(lopa: Lopa) -> None:
    shown = lopa("--help")
    assert shown.status == 0
    for name in cli.COMMANDS:
        assert re.search(f"\n    {name}\\s", shown.out)
    assert "Decode prompts with a bundle." in shown.out


def test_help_of_a_command_has_the_rest_of_the_docstring(lopa: Lopa) -> None:
    shown = lopa("build", "--help")
    assert shown.status == 0
    assert "A Hugging Face folder is exported first" in shown.out
    assert "--saveEngine" in shown.out


def test_version(lopa: Lopa) -> None:
    assert lopa("--version").out == f"lopa {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND; see lopa --help"),
        (
            ["frob"],
            "argument COMMAND: invalid choice: 'frob' (choose from "
            f"{', '.join(map(repr, cli.COMMANDS))}); see lopa --help",
        ),
        (["inspect", "x", "--fast"], "unknown arguments: --fast; see lopa inspect --help"),
        (
            ["generate", "x"],
            "one of the arguments --prompt --prompts is required; see lopa generate --help",
        ),
        (
            ["generate", "x", "--prompt", "y", "--confidence", "high"],
            "argument --confidence: expected a number, got 'high'; see lopa generate --help",
        ),
        (
            ["generate", "x", "--prompt", "y", "--confidence", "nan"],
            "argument --confidence: expected a number, got 'nan'; see lopa generate --help",
        ),
        (
            ["generate", "x", "--prompt", "y", "--max-new-tokens", "0"],
            "argument --max-new-tokens: expected 1 or more, got 0; see lopa generate --help",
        ),
        (
            ["generate", "x", "--prompt", "y", "--seed", "-1"],
            "argument --seed: expected 0 or more, got -1; see lopa generate --help",
        ),
        (
            ["build", "x", "-o", "y", "--window", "64,wide"],
            "argument --window: expected a whole number, got 'wide'; see lopa build --help",
        ),
        (
            ["build", "x", "-o", "y", "--target", "abacus"],
            "argument --target: invalid choice: 'abacus' (choose from 'onnxruntime', 'tensorrt', "
            "'tensorrt-rtx'); see lopa build --help",
        ),
        (
            ["build", "x", "-o", "y", "--precision", "fp32", "--fp16"],
            "argument --fp16: not allowed with argument --precision; see lopa build --help",
        ),
        (
            ["build", "x", "--onnx", "z", "-o", "y"],
            "argument --onnx: not allowed with argument CHECKPOINT; see lopa build --help",
        ),
        (
            ["build", "x", "-o", "y", "-v", "-q"],
            "argument -q/--quiet: not allowed with argument -v/--verbose; see lopa build --help",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    lopa: Lopa, arguments: list[str], message: str
) -> None:
    shown = lopa(*arguments)
    assert (shown.status, shown.out, shown.err) == (2, "", f"lopa: error: {message}\n")


def test_user_error_is_one_line_and_status_1(lopa: Lopa, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, LopaError("found x,\nexpected y"))
    shown = lopa("generate", "b", "--prompt", "p")
    assert (shown.status, shown.err) == (1, "lopa: error: found x, expected y\n")


def test_verbose_names_the_causes(lopa: Lopa, monkeypatch: pytest.MonkeyPatch) -> None:
    error = LopaError("writing failed")
    error.__cause__ = ValueError("disk gone")
    fail_with(monkeypatch, error)
    assert lopa("generate", "b", "--prompt", "p").err == "lopa: error: writing failed\n"
    assert lopa("generate", "b", "--prompt", "p", "-v").err == (
        "lopa: error: writing failed\n  caused by ValueError: disk gone\n"
    )


@pytest.mark.parametrize(
    ("library", "extra"),
    [("torch", "export"), ("onnx_ir.passes", "export"), ("onnx-ir", "export"), ("onnx", "export")],
)
def test_missing_library_names_the_extra(
    lopa: Lopa, monkeypatch: pytest.MonkeyPatch, library: str, extra: str
) -> None:
    fail_with(monkeypatch, ModuleNotFoundError(f"No module named {library!r}", name=library))
    shown = lopa("generate", "b", "--prompt", "p")
    assert shown.status == 1
    assert shown.err == (
        f"lopa: error: lopa generate needs {library}, which is not installed; "
        f"install it with: pip install 'lopa[{extra}]'\n"
    )


def test_export_without_torch_names_the_extra(
    lopa: Lopa, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(package, "export", export)  # importing it again sets another
    for name in [name for name in sys.modules if name.startswith("lopa.export")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    shown = lopa("export", tmp_path / "checkpoint", "-o", tmp_path / "model")
    assert shown.status == 1
    assert shown.err == (
        "lopa: error: lopa export needs torch, which is not installed; "
        "install it with: pip install 'lopa[export]'\n"
    )


def test_unreadable_file_is_a_user_error(lopa: Lopa, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, PermissionError(13, "Permission denied", "weights.data"))
    shown = lopa("generate", "b", "--prompt", "p")
    assert (shown.status, shown.err) == (1, "lopa: error: weights.data: Permission denied\n")


@pytest.mark.parametrize("error", [KeyError("bug"), OSError("bug"), ModuleNotFoundError("bug")])
def test_internal_faults_stay_loud(
    lopa: Lopa, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fail_with(monkeypatch, error)
    with pytest.raises(type(error), match="bug"):
        lopa("generate", "b", "--prompt", "p")


def test_interrupt_is_one_line(lopa: Lopa, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    shown = lopa("generate", "b", "--prompt", "p")
    assert (shown.status, shown.out, shown.err) == (130, "", "lopa: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["export", "x", "-o", ""], "-o/--output"),
        (["calibrate", "x", "--prompts", "y", "-o", ""], "-o/--output"),
        (["calibrate", "x", "--prompts", "", "-o", "y"], "--prompts"),
        (["build", "x", "-o", ""], "-o/--output/--saveEngine"),
        (["build", "x", "-o", "y", "--timing-cache-file", ""], "--timing-cache-file"),
        (["generate", "", "--prompt", "x"], "BUNDLE"),
        (["generate", "x", "--prompts", ""], "--prompts"),
        (["generate", "x", "--prompt", "y", "--settings", ""], "--settings"),
        (["inspect", ""], "FOLDER"),
        (["doctor", ""], "BUNDLE"),
        (["bench", ""], "CHECKPOINT"),
        (["eval", "x", "--task", "words", "-o", ""], "-o/--output"),
        (["compare", "x", ""], "BUNDLE_B|CHECKPOINT"),
        (["tune", "x", "--task", "words", "-o", ""], "-o/--output"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(
    lopa: Lopa, arguments: list[str], flag: str
) -> None:
    shown = lopa(*arguments)
    assert (shown.status, shown.out) == (2, "")
    assert shown.err.startswith(f"lopa: error: argument {flag}")
    assert ": expected a path, got an empty text; see lopa " in shown.err


def test_no_flag_reads_its_path_without_that_check() -> None:
    (commands,) = (
        action
        for action in cli.build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    for parser in commands.choices.values():
        assert all(action.type is not Path for action in parser._actions)


def test_closed_pipe_is_quiet(tiny_bundle: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt_ids": [1, 2]}\n' * 30, encoding="utf-8")
    script = "from lopa.tools.cli import main; raise SystemExit(main())"
    command = [sys.executable, "-c", script, "generate", tiny_bundle, "--prompts", prompts]
    with subprocess.Popen(
        [*map(str, command), "--json", "--max-new-tokens", "16"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141

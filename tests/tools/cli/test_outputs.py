"""No output of a command lands in a bundle or replaces an input; limits and locale."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lopa.tools.cli import COMMANDS, build_parser
from lopa.tools.paths import PathType

from .conftest import Lopa

PATH_METAVARS = ("FILE", "DIR", "BUNDLE", "MODEL", "CHECKPOINT", "FOLDER")


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_every_flag_that_names_a_file_says_what_it_does_with_it() -> None:
    parser = build_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    unsaid = [
        f"{name} {action.option_strings or action.metavar}"
        for name in COMMANDS
        for action in commands.choices[name]._actions
        if any(word in str(action.metavar) for word in PATH_METAVARS)
        and not isinstance(action.type, PathType)
    ]
    assert unsaid == []


@pytest.mark.parametrize(
    "name", ["step.onnx", "weights.data", "tokenizer.json", "manifest.json", "new.jsonl"]
)
def test_a_trace_does_not_touch_a_bundle(lopa: Lopa, bundle: Path, name: str) -> None:
    before = contents(bundle)
    link = bundle.parent / "link.jsonl"
    link.symlink_to(bundle / name)
    for trace in (bundle / name, link):
        shown = lopa("generate", bundle, "--prompt", "one", "--trace", trace)
        assert (shown.status, shown.out) == (1, "")
        assert shown.err == (
            f"lopa: error: --trace {trace} lies in {bundle}, a bundle or model folder; "
            "choose a place outside\n"
        )
    assert contents(bundle) == before


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        (["eval", "{b}", "--task", "countdown"], "-o"),
        (["tune", "{b}", "--task", "countdown"], "-o"),
        (["compare", "{b}", "{b}"], "--save-inputs"),
        (["compare", "{b}", "{b}"], "--save-outputs"),
        (["build", "{b}"], "-o"),
        (["export", "{b}"], "-o"),
        (["calibrate", "{b}", "--prompts", "x.jsonl"], "-o"),
        (["calibrate", "{b}", "--prompts", "x.jsonl", "-o", "out"], "--work"),
    ],
)
def test_no_command_writes_into_a_bundle(
    lopa: Lopa, bundle: Path, command: list[str], flag: str
) -> None:
    before = contents(bundle)
    arguments = [part.format(b=bundle) for part in command]
    shown = lopa(*arguments, flag, bundle / "inside")
    assert (shown.status, shown.out) == (1, "")
    assert f"{bundle / 'inside'} lies in {bundle}, a bundle or model folder" in shown.err
    assert contents(bundle) == before


def test_an_input_is_not_replaced(lopa: Lopa, bundle: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n', encoding="utf-8")
    shown = lopa("generate", bundle, "--prompts", prompts, "--trace", prompts)
    assert (shown.status, shown.err) == (
        1,
        f"lopa: error: --trace {prompts} would replace --prompts {prompts}, an input; "
        "choose another\n",
    )
    assert prompts.read_text(encoding="utf-8") == '{"prompt": "one"}\n'


def test_a_trace_goes_to_standard_output(
    lopa: Lopa, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = lopa(
        "generate", bundle, "--prompt", "one", "--raw", "--trace", "-", "--max-new-tokens", 8
    )
    steps = [json.loads(line)["step"] for line in shown.out.splitlines()]
    assert (shown.status, steps) == (0, list(range(1, len(steps) + 1)))
    assert not (tmp_path / "-").exists()
    both = lopa("generate", bundle, "--prompt", "one", "--trace", "-", "--json")
    assert (both.status, both.out) == (1, "")
    assert both.err == (
        "lopa: error: --json and --trace - both write to standard output; give a file to --trace\n"
    )


@pytest.mark.parametrize("trace", ["-", "/dev/stdout", "out.txt"])
def test_a_trace_where_standard_output_goes_loses_nothing(
    bundle: Path, tmp_path: Path, trace: str
) -> None:
    script = "import sys; from lopa.tools.cli import main; sys.exit(main())"
    program = [sys.executable, "-c", script, "generate", str(bundle), "--prompt", "one", "--raw"]
    with (tmp_path / "out.txt").open("wb") as out:
        done = subprocess.run(
            [*program, "--max-new-tokens", "8", "--trace", trace],
            stdout=out,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == list(range(1, len(steps) + 1)) != []
    assert b"tokens" in done.stderr  # the answer and its summary


@pytest.mark.parametrize("source", ["/dev/zero", "/dev/full"])
@pytest.mark.parametrize("flag", ["--prompts", "--settings"])
def test_endless_files_end(lopa: Lopa, bundle: Path, source: str, flag: str) -> None:
    given = ["--prompt", "one"] if flag == "--settings" else []
    shown = lopa("generate", bundle, *given, flag, source)
    assert (shown.status, shown.out) == (1, "")
    assert f"{source}" in shown.err
    assert "more than" in shown.err


def test_a_prompt_has_a_limit_that_a_flag_raises(lopa: Lopa, bundle: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "x" * 101}) + "\n", encoding="utf-8")
    flags = ("generate", bundle, "--prompts", prompts, "--max-prompt-bytes")
    assert lopa(*flags, 100).err == (
        f"lopa: error: {prompts}:1: the prompt has more than 100 bytes; shorten it or raise "
        "--max-prompt-bytes\n"
    )
    assert "bytes" not in lopa(*flags, 101).err


def test_every_command_that_reads_prompts_can_raise_the_limit() -> None:
    """The message of the limit names the flag."""
    parser = build_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    flags = {
        name: {flag for action in command._actions for flag in action.option_strings}
        for name, command in commands.choices.items()
    }
    reading = {name for name, found in flags.items() if "--prompts" in found}
    assert reading == {"generate", "calibrate", "compare", "bench"}
    assert all("--max-prompt-bytes" in flags[name] for name in reading)


@pytest.mark.parametrize("encoding", [None, "ascii", "latin-1"])
def test_output_is_utf8_whatever_the_locale(
    bundle: Path, tmp_path: Path, encoding: str | None
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    line = json.dumps({"id": "größe→", "prompt": "größe →"}, ensure_ascii=False)
    prompts.write_text(f"{line}\n", encoding="utf-8")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    if encoding is not None:
        environment["PYTHONIOENCODING"] = encoding
    script = "import sys; from lopa.tools.cli import main; sys.exit(main())"
    program = [sys.executable, "-c", script, "generate", str(bundle), "--raw", "--json"]
    done = subprocess.run(
        [*program, "--max-new-tokens", "8", "--prompts", str(prompts)],
        capture_output=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout.decode("utf-8"))["id"] == "größe→"
    direct = subprocess.run(
        [*program, "--max-new-tokens", "8", "--prompt", "größe →"],
        capture_output=True,
        env=environment,
        check=False,
    )
    assert (direct.returncode, direct.stderr) == (0, b"")
    found = json.loads(direct.stdout.decode("utf-8"))
    assert found["token_ids"] == json.loads(done.stdout.decode("utf-8"))["token_ids"]

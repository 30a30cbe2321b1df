from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import lopa as package
import pytest
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState

from ...export.tiny_checkpoint import MASK, edit_json
from .conftest import Lopa

KEYS = {"id", "text", "token_ids", "steps", "forwards", "tokens", "tpf", "seconds"}
EXTRA_KEYS = {"rows", "useful_tokens", "limited", "fast_steps", "repeats"}
INSTANCES = (
    "b1-w24-c64-r24, b1-w24-c96-r24, b1-w48-c64-r48, b1-w48-c96-r48, b5-w24-c64-r120, "
    "b5-w24-c96-r120, b5-w48-c64-r240, b5-w48-c96-r240"
)
LINES = ({"id": "first", "prompt": "the other"}, {"prompt_ids": [5, 6, 7], "answer": 3})


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES), encoding="utf-8")
    return path


def read_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_answers_are_the_sessions(lopa: Lopa, tiny_bundle: Path, prompts: Path) -> None:
    shown = lopa("generate", tiny_bundle, "--prompts", prompts, "--json", "--max-new-tokens", 24)
    assert (shown.status, shown.err) == (0, "")
    first, second = read_lines(shown.out)
    assert first.keys() == second.keys() == KEYS | EXTRA_KEYS
    assert (first["id"], second["id"]) == ("first", 2)  # without an id the line number
    session = package.open_bundle(tiny_bundle)
    expected = session.generate("the other", max_new_tokens=24)
    assert first["token_ids"] == list(expected.token_ids)
    assert first["text"] == expected.text
    assert (first["steps"], first["forwards"]) == (expected.steps, expected.forwards)
    assert first["tokens"] == len(first["token_ids"]) == 24
    assert first["tpf"] == pytest.approx(24 / expected.steps, abs=1e-4)
    expected = session.generate(prompt_ids=[5, 6, 7], max_new_tokens=24)
    assert second["token_ids"] == list(expected.token_ids)


def test_flags_reach_the_decoder(lopa: Lopa, tiny_bundle: Path) -> None:
    settings: dict[str, Any] = {
        "lookahead": 2,
        "block_size": 4,
        "max_new_tokens": 16,
        "add_threshold": 0.5,
        "complete_threshold": 0.75,
        "confidence": 0.4,
        "score": "mixed",
        "score_alpha": 0.3,
        "score_fraction": 0.25,
        "measure": "margin",
        "window_attention": "block-causal",
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.8,
        "seed": 3,
    }
    flags = [
        text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", value)
    ]
    shown = lopa("generate", tiny_bundle, "--prompt", "on and on", "--json", "--raw", *flags)
    expected = package.open_bundle(tiny_bundle).generate("on and on", raw=True, **settings)
    assert json.loads(shown.out)["token_ids"] == list(expected.token_ids)
    assert json.loads(shown.out)["steps"] == expected.steps


def test_trace_tells_how_every_token_came(
    lopa: Lopa, tiny_bundle: Path, prompts: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    command = ["generate", tiny_bundle, "--prompts", prompts, "--json", "--max-new-tokens", 24]
    shown = lopa(*command, "--trace", trace)
    steps = read_lines(trace.read_text(encoding="utf-8"))
    assert all(
        set(step) == {"id", "step", "winner", "scores", "extras", "filled", "cached", "window"}
        for step in steps
    )
    for result in read_lines(shown.out):
        own = [step for step in steps if step["id"] == result["id"]]
        assert [step["step"] for step in own] == list(range(1, result["steps"] + 1))
        assert sum(len(step["scores"]) for step in own) == result["forwards"]
        assert all(step["winner"] < len(step["scores"]) for step in own)
        pairs = [pair for step in own for pair in step["filled"]]
        pairs += [pair for step in own for pair in step["extras"]]
        filled = dict(tuple(pair) for pair in pairs)
        start = min(filled)
        assert [filled[start + i] for i in range(result["tokens"])] == result["token_ids"]
        assert len(pairs) == result["tokens"]
        assert own[0]["cached"] == 0
        assert own[-1]["cached"] > 0
    assert any(step["winner"] != len(step["scores"]) - 1 for step in steps)


def test_piped_answers_are_plain_and_the_summary_is_on_stderr(
    lopa: Lopa, tiny_bundle: Path, prompts: Path
) -> None:
    shown = lopa("generate", tiny_bundle, "--prompt", "the other", "--max-new-tokens", 8)
    result = package.open_bundle(tiny_bundle).generate("the other", max_new_tokens=8)
    assert shown.out == result.text + "\n"
    assert f"{result.steps} steps, TPF {result.tpf:.2f}, " in shown.err
    assert "rows/token" in shown.err
    quiet = lopa("generate", tiny_bundle, "--prompt", "the other", "--max-new-tokens", 8, "-q")
    assert (quiet.out, quiet.err) == (shown.out, "")
    both = lopa("generate", tiny_bundle, "--prompts", prompts, "--max-new-tokens", 8)
    assert "2 prompts: 16 tokens" in both.err
    other = package.open_bundle(tiny_bundle).generate(prompt_ids=[5, 6, 7], max_new_tokens=8)
    assert both.out == f"==> first <==\n{result.text}\n\n==> 2 <==\n{other.text}\n"


def test_a_budget_beyond_the_context_is_said(lopa: Lopa, tiny_bundle: Path) -> None:
    command = ["generate", tiny_bundle, "--prompt", "x", "--raw", "--stop", "none", "--strategy"]
    shown = lopa(*command, "d2f", "--max-new-tokens", 5000, "--json")
    assert json.loads(shown.out)["limited"] is True
    assert json.loads(lopa(*command, "d2f", "--json").out)["limited"] is False
    assert "want of room" in lopa(*command, "d2f", "--max-new-tokens", 5000).err


def test_prompt_from_standard_input(
    lopa: Lopa, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = lopa("generate", tiny_bundle, "--prompt", "the other", "-q")
    stdin = io.TextIOWrapper(io.BytesIO(b"the other\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert lopa("generate", tiny_bundle, "--prompt", "-", "-q").out == expected.out
    stdin = io.TextIOWrapper(io.BytesIO(b'{"prompt": "the other"}'))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert lopa("generate", tiny_bundle, "--prompts", "-", "-q").out == expected.out


def test_mask_token_in_a_prompt_is_data(lopa: Lopa, tiny_bundle: Path) -> None:
    command = ["generate", tiny_bundle, "--json", "--max-new-tokens", 8]
    asked = json.loads(lopa(*command, "--raw", "--prompt", "the <|mask|> one").out)
    session = package.open_bundle(tiny_bundle)
    ids = session.encode("the <|mask|> one", raw=True)
    assert MASK in ids
    assert asked["token_ids"] == list(session.generate(prompt_ids=ids, max_new_tokens=8).token_ids)
    assert len(asked["token_ids"]) == 8


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompt", ""], "the prompt is empty; give at least one character"),
        (
            ["--prompt", "x", "--lookahead", 9],
            "lookahead is 9, the bundle has 4 lookahead branches; build with --lookahead 9 "
            "for more",
        ),
        (
            ["--prompt", "x", "--score", "luck", "--strategy", "magic", "--top-k", 17],
            "strategy is 'magic', expected one of: lopa, d2f, vanilla, fast-dllm, "
            "block-diffusion; score is 'luck', expected one of: mean_confidence, bottom_fraction, "
            "mixed, reward_entropy, sliding_minimum, least_segment; "
            "top k is 17, the bundle keeps 16 candidates per position (export with --candidates)",
        ),
        (
            ["--prompt", "x", "--raw", "--block-size", 48],
            "lopa on a prompt of 1 tokens needs a step of 1 branch by 49 window tokens over 49 "
            f"cache slots, the bundle has {INSTANCES}; build with --prefill 49 --context 49",
        ),
        (
            ["--prompt", "x", "--strategy", "d2f", "--lookahead", 3, "--factor", 1],
            "lookahead is for lopa, d2f does not use it; leave it out; "
            "factor is for fast-dllm, d2f does not use it; leave it out",
        ),
        (
            ["--prompts", "absent.jsonl"],
            "cannot read prompts from absent.jsonl: No such file or directory",
        ),
        (
            ["--prompt", "x", "--trace", "absent/trace.jsonl"],
            "cannot write absent/trace.jsonl: there is no folder absent",
        ),
    ],
)
def test_wrong_settings_are_one_line(
    lopa: Lopa, tiny_bundle: Path, flags: list[object], message: str
) -> None:
    shown = lopa("generate", tiny_bundle, *flags)
    assert (shown.status, shown.out, shown.err) == (1, "", f"lopa: error: {message}\n")


def test_all_bad_prompt_lines_are_named_before_decoding(
    lopa: Lopa, tiny_bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "p.jsonl"
    lines = [
        '{"prompt": "fine"}',
        "not json",
        "",
        "[1]",
        '{"id": 4}',
        '{"prompt": "a", "prompt_ids": [1]}',
        '{"prompt": 3}',
        '{"prompt_ids": [1, true]}',
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    shown = lopa("generate", tiny_bundle, "--prompts", path)
    faults = [
        f"{path}:2: not valid JSON (Expecting value at column 1)",
        f"{path}:4: list, expected an object",
        f"{path}:5: expected either prompt or prompt_ids, found id",
        f"{path}:6: expected either prompt or prompt_ids, found prompt, prompt_ids",
        f"{path}:7: prompt is int, expected text",
        f"{path}:8: prompt_ids is not a list of integers",
    ]
    assert (shown.status, shown.out) == (1, "")
    assert shown.err == f"lopa: error: {'; '.join(faults)}\n"


def test_prompts_that_do_not_fit_are_named_before_decoding(
    lopa: Lopa, tiny_bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "p.jsonl"
    long = json.dumps({"prompt_ids": [1] * 41})
    bad = '{"prompt_ids": [400]}'
    path.write_text("\n".join(['{"prompt": "fine"}', long, bad]), encoding="utf-8")
    shown = lopa("generate", tiny_bundle, "--prompts", path)
    assert (shown.status, shown.out) == (1, "")
    assert shown.err == (
        f"lopa: error: {path}:2: lopa on a prompt of 41 tokens needs a step of 1 branch by 49 "
        f"window tokens over 49 cache slots, the bundle has {INSTANCES}; build with --prefill 49 "
        "--context 49; "
        f"{path}:3: prompt id 400 is outside the vocabulary of 320\n"
    )


def test_many_bad_lines_are_counted(lopa: Lopa, tiny_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("{}\n" * 11, encoding="utf-8")
    fault = "expected either prompt or prompt_ids, found neither"
    faults = "; ".join(f"{path}:{line}: {fault}" for line in range(1, 9))
    shown = lopa("generate", tiny_bundle, "--prompts", path)
    assert shown.err == f"lopa: error: {faults}; and 3 more\n"


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_file_without_prompts(
    lopa: Lopa, tiny_bundle: Path, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    assert lopa("generate", tiny_bundle, "--prompts", path).err == (
        f'lopa: error: {path} has no prompts, expected lines like {{"id": 1, "prompt": "..."}}\n'
    )


def test_prompts_that_are_not_text(lopa: Lopa, tiny_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "\xff"}')
    shown = lopa("generate", tiny_bundle, "--prompts", path)
    assert shown.err == f"lopa: error: {path} is not UTF-8 text (byte 12)\n"


def test_failed_decode_leaves_the_old_trace(
    lopa: Lopa, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("old", encoding="utf-8")
    runs = iter(range(3))
    run = OnnxRuntimeState.run

    def stop_at_third(self: OnnxRuntimeState, *arguments: Any) -> Any:
        if next(runs) == 2:
            raise KeyboardInterrupt
        return run(self, *arguments)

    monkeypatch.setattr(OnnxRuntimeState, "run", stop_at_third)
    assert lopa("generate", tiny_bundle, "--prompt", "x", "--trace", trace).status == 130
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]
    assert trace.read_text(encoding="utf-8") == "old"


def test_no_bundle(lopa: Lopa, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert lopa("generate", absent, "--prompt", "x").err == (
        f"lopa: error: no bundle at {absent}; make one with: lopa build CHECKPOINT -o {absent}\n"
    )
    assert lopa("generate", tmp_path, "--prompt", "x").err == (
        f"lopa: error: {tmp_path} is not a bundle (lopa build): no manifest.json in it\n"
    )


def test_edited_engine_is_refused(lopa: Lopa, tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    with (bundle / "weights.data").open("r+b") as file:
        file.write(b"\x01")
    shown = lopa("generate", bundle, "--prompt", "x")
    assert (shown.status, shown.out) == (1, "")
    assert shown.err == (
        f"lopa: error: {bundle}: files do not match the manifest: weights.data was changed: "
        "sha256 differs from the manifest; build it again\n"
    )
    assert lopa("generate", bundle, "--prompt", "x", "--no-verify", "-q").status == 0


def test_newer_schema_is_refused(lopa: Lopa, tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    edit_json(bundle / "manifest.json", schema=3)
    shown = lopa("generate", bundle, "--prompt", "x")
    assert shown.status == 1
    assert "manifest.json: schema version 3 is newer than 2" in shown.err

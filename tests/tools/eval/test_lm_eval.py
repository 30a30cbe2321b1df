"""The real lm-evaluation-harness, run by its own command line on a local task."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import lopa
import pytest
from lopa.tools import lm_eval
from lopa.tools.demo.problem import read_problems
from lopa.tools.demo.run import CHECKPOINT, CONTEXT, HELD_OUT, WINDOW

from ...exported import Exports
from ..demo.grading import grade

needs_harness = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="needs the extra lm-eval"
)
PROBLEMS = [problem for problem in read_problems(HELD_OUT) if problem.task == "words"][:10]
BUDGET = 96


@pytest.fixture(scope="module")
def demo_bundle(exports: Exports) -> Path:
    return exports.bundle(
        "demo", exports.model("demo", CHECKPOINT), 4, (WINDOW,), (CONTEXT,), (CONTEXT,)
    )


def write_task(folder: Path, **more: Any) -> None:
    """Write the task `words_local` over a local file; YAML reads JSON."""
    folder.mkdir()
    rows = [{"prompt": p.prompt, "target": str(p.check["answer"])} for p in PROBLEMS]
    data = folder / "words.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = {
        "task": "words_local",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        **more,
    }
    (folder / "words_local.yaml").write_text(json.dumps(task), encoding="utf-8")


def harness(folder: Path, bundle: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the command that docs/eval.md shows, with caches of its own and no network."""
    command = [
        sys.executable, "-m", "lopa.tools.lm_eval", "--model", "lopa",
        "--model_args", f"bundle={bundle},threads=1,lookahead=4",
        "--tasks", "words_local", "--include_path", str(folder), *flags,
    ]  # fmt: skip
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | offline)


@needs_harness
def test_the_harness_scores_a_bundle(tmp_path: Path, demo_bundle: Path) -> None:
    write_task(
        tmp_path / "task",
        output_type="generate_until",
        doc_to_target="{{target}}",
        generation_kwargs={"until": ["\n\n"], "max_gen_toks": BUDGET, "do_sample": False},
        filter_list=[
            {
                "name": "answer",
                "filter": [
                    {"function": "regex", "regex_pattern": "answer: *(-?[0-9]+)"},
                    {"function": "take_first"},
                ],
            }
        ],
        metric_list=[{"metric": "exact_match"}],
    )
    out = tmp_path / "out"
    shown = harness(
        tmp_path / "task", demo_bundle, "--apply_chat_template", "--output_path", str(out)
    )
    assert shown.returncode == 0, shown.stderr
    (path,) = out.glob("*/results_*.json")
    results = json.loads(path.read_text(encoding="utf-8"))
    session = lopa.open_bundle(demo_bundle, threads=1)
    decodes = [session.generate(p.prompt, lookahead=4, max_new_tokens=BUDGET) for p in PROBLEMS]
    right = sum(grade(p, result.text) for p, result in zip(PROBLEMS, decodes, strict=True))
    assert right >= 6
    assert results["results"]["words_local"]["exact_match,answer"] == right / len(PROBLEMS)
    costs = results["config"]["lopa"]
    assert costs["steps"] == sum(result.steps for result in decodes)
    assert costs["tokens"] == sum(result.tokens for result in decodes)
    assert f"10 requests, {costs['tokens']} tokens, {costs['steps']} steps, TPF" in shown.stderr
    assert results["chat_template"] == session.codec.template


@needs_harness
def test_likelihood_tasks_are_refused_in_one_line(tmp_path: Path, demo_bundle: Path) -> None:
    write_task(
        tmp_path / "task",
        output_type="multiple_choice",
        doc_to_choice=["1", "2"],
        doc_to_target=0,
    )
    shown = harness(tmp_path / "task", demo_bundle, "--limit", "2")
    assert shown.returncode == 1
    assert shown.stderr.splitlines()[-1] == (
        "lopa: error: the task asks for loglikelihood, which lopa does not offer: a diffusion "
        "language model fills positions in any order and has no left-to-right likelihood; choose "
        "a generate_until task"
    )


def test_a_missing_harness_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "lm_eval.__main__", raising=False)
    assert lm_eval.main() == 1
    assert capsys.readouterr().err == (
        "lopa: error: the harness is not installed; install it with: pip install 'lopa[lm-eval]'\n"
    )


def test_an_interrupt_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops() -> None:
        raise KeyboardInterrupt

    harness = types.SimpleNamespace(cli_evaluate=stops)
    for name, module in {
        "lm_eval": types.ModuleType("lm_eval"),
        "lm_eval.__main__": harness,
        "lopa.tools.eval.harness_model": types.ModuleType("harness_model"),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert lm_eval.main() == 130
    assert capsys.readouterr().err == "lopa: interrupted\n"

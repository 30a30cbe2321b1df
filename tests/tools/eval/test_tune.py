from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lopa.tools.eval import evaluate
from lopa.tools.eval.evaluate import Encoded, Variant
from lopa.tools.eval.samples import Sample

from ..cli.conftest import Lopa, lopa
from .make_sample import make_sample

__all__ = ["lopa"]

ROWS = tuple({"input": f"{n},2,3,36", "output": "1+1=2"} for n in range(4, 8))
# Correct of four problems, and steps of each, by settings.
OUTCOMES = {
    "baseline": (3, 10),
    "lookahead=0 confidence=0.5": (2, 2),
    "lookahead=0 confidence=0.9": (3, 9),
    "lookahead=2 confidence=0.5": (1, 1),
    "lookahead=2 confidence=0.9": (3, 5),
}
USEFUL: dict[str, int] = {}  # useful tokens of a problem, by settings; else 10


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "cd.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decodes have the outcomes of the table."""

    def graded(encoded: Encoded, variant: Variant, result: object) -> Sample:
        correct, steps = OUTCOMES[variant.value]
        name = encoded.problem.id
        useful = USEFUL.get(variant.value, 10)
        right = int(name.rpartition("-")[2]) <= correct
        return make_sample(
            name,
            task=encoded.set.label,
            variant=variant.value,
            correct=right,
            steps=steps,
            useful_tokens=useful,
        )

    monkeypatch.setattr(evaluate, "decode", lambda *turn: None)
    monkeypatch.setattr(evaluate, "graded", graded)


def tune(lopa: Lopa, bundle: Path, problems: Path, out: Path, *more: object) -> Any:
    return lopa(
        "tune", bundle, "--task", f"countdown={problems}", "--raw", "--max-new-tokens", 16,
        "--search", "lookahead=0,2", "--search", "confidence=0.5,0.9", "-o", out, *more,
    )  # fmt: skip


@pytest.mark.usefixtures("outcomes")
def test_the_fastest_settings_within_the_loss_are_written(
    lopa: Lopa, tiny_bundle: Path, problems: Path, tmp_path: Path
) -> None:
    shown = tune(lopa, tiny_bundle, problems, tmp_path / "run")
    assert shown.status == 0
    assert json.loads((tmp_path / "run" / "settings.json").read_text()) == {
        "confidence": 0.9,
        "lookahead": 2,
        "max_new_tokens": 16,
    }
    assert "4 settings against the base, 2 of them lose at most 1 point\n" in shown.out
    report = json.loads((tmp_path / "run" / "tune.json").read_text())
    assert report["best"] == "lookahead=2 confidence=0.9"
    assert [item["tasks"]["countdown"]["steps"] for item in report["values"]] == [40, 8, 36, 4, 20]
    again = tune(lopa, tiny_bundle, problems, tmp_path / "wide", "--max-loss", 25)
    assert "3 of them lose at most 25 points" in again.out
    assert json.loads((tmp_path / "wide" / "settings.json").read_text())["confidence"] == 0.5


@pytest.mark.usefixtures("outcomes")
def test_the_base_strategy_stays_when_everything_loses_more(
    lopa: Lopa, tiny_bundle: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OUTCOMES:
        monkeypatch.setitem(OUTCOMES, name, (4, 10) if name == "baseline" else (1, 1))
    assert tune(lopa, tiny_bundle, problems, tmp_path / "run").status == 0
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings == {"strategy": "d2f", "max_new_tokens": 16}


@pytest.mark.usefixtures("outcomes")
def test_a_report_without_a_winner_says_so_and_shows_the_rival_by_the_objective(
    lopa: Lopa, tiny_bundle: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OUTCOMES:
        monkeypatch.setitem(OUTCOMES, name, (1, 5) if "lookahead=2" in name else (4, 10))
        monkeypatch.setitem(USEFUL, name, 1)
    monkeypatch.setitem(USEFUL, "baseline", 8)
    monkeypatch.setitem(USEFUL, "lookahead=0 confidence=0.9", 6)
    shown = tune(lopa, tiny_bundle, problems, tmp_path / "run")
    assert "lopa tune: 4 settings against the base, 2 of them lose at most 1 point\n" in shown.out
    assert "nothing beat the base: no other setting has a higher useful TPF and loses" in shown.out
    assert "TPF at lookahead=0 confidence=0.9" in shown.out
    assert f"wrote {tmp_path / 'run' / 'settings.json'}; it holds the base" in shown.err
    report = json.loads((tmp_path / "run" / "tune.json").read_text())
    assert (report["best"], report["objective"]) == ("baseline", "useful_tpf")
    by_tpf = tune(lopa, tiny_bundle, problems, tmp_path / "tpf", "--objective", "tpf")
    assert "no other setting has a higher TPF and loses at most 1 point" in by_tpf.out
    assert "TPF at lookahead=2 confidence=0.5" in by_tpf.out


def test_equal_decodes_are_run_once(
    lopa: Lopa, tiny_bundle: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []

    def graded(encoded: Encoded, variant: Variant, result: object) -> Sample:
        decoded.append((encoded.problem.id, variant.options))
        return make_sample(encoded.problem.id, task=encoded.set.label, variant=variant.value)

    monkeypatch.setattr(evaluate, "decode", lambda *turn: None)
    monkeypatch.setattr(evaluate, "graded", graded)
    shown = lopa(
        "tune", tiny_bundle, "--task", f"countdown={problems}", "--raw", "--max-new-tokens", 16,
        "--search", "lookahead_shape=single,nested", "--search", "confirm=0.5,0.7,0.9",
        "-o", tmp_path / "run",
    )  # fmt: skip
    assert (shown.status, len(decoded), len(set(decoded))) == (0, 20, 20), shown.err
    report = json.loads((tmp_path / "run" / "tune.json").read_text())
    assert [item["value"] for item in report["values"]] == [
        "baseline",
        "lookahead_shape=single",
        *(f"lookahead_shape=nested confirm={value}" for value in (0.5, 0.7, 0.9)),
    ]


@pytest.mark.parametrize("name", ["notes.txt", "settings.json"])
@pytest.mark.usefixtures("outcomes")
def test_a_folder_with_something_else_is_left_alone_without_force(
    lopa: Lopa, tiny_bundle: Path, problems: Path, tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_text("mine", encoding="utf-8")
    for flags in ([], ["--resume"]):
        shown = tune(lopa, tiny_bundle, problems, run, *flags)
        assert (shown.status, shown.err) == (
            1,
            f"lopa: error: output folder {run} is not empty; choose another or add --force\n",
        )
        assert [path.name for path in run.iterdir()] == [name]
    assert tune(lopa, tiny_bundle, problems, run, "--force").status == 0
    assert (run / "notes.txt").exists() == (name == "notes.txt")


def test_an_interrupted_search_says_how_it_goes_on(
    lopa: Lopa, tiny_bundle: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "decode", stops)
    shown = tune(lopa, tiny_bundle, problems, tmp_path / "run")
    assert (shown.status, shown.out, shown.err) == (
        130,
        "",
        "lopa: interrupted; what was finished is kept, the same command with --resume goes on\n",
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--search", "speed=1"], "argument --search: expected FIELD=a,b,... with a field of add_"),
        (["--search", "seed=1,x"], "argument --search: seed=1,x: expected a whole number, got 'x'"),
        (["--max-loss", "-1"], "argument --max-loss: expected 0 or more, got -1"),
        (["-o", ""], "argument -o/--output: expected a path, got an empty text"),
    ],
)
def test_wrong_flags_are_status_2(lopa: Lopa, flags: list[str], message: str) -> None:
    shown = lopa("tune", "bundle", "--task", "words", "-o", "run", *flags)
    assert (shown.status, shown.out) == (2, "")
    assert shown.err.startswith(f"lopa: error: {message}")
    assert shown.err.endswith("; see lopa tune --help\n")


def test_settings_of_a_file_are_used_and_flags_go_over_them(
    lopa: Lopa, tiny_bundle: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt_ids": [5, 6, 7]}\n', encoding="utf-8")
    settings = tmp_path / "settings.json"
    text = '{"strategy": "d2f", "max_new_tokens": 16}'
    settings.write_text(text, encoding="utf-8-sig")  # as some editors save it
    command = ("generate", tiny_bundle, "--prompts", prompts, "--json")
    by_file = json.loads(lopa(*command, "--settings", settings).out)
    by_flags = json.loads(lopa(*command, "--strategy", "d2f", "--max-new-tokens", 16).out)
    assert by_file["token_ids"] == by_flags["token_ids"]
    assert len(by_file["token_ids"]) == 16
    over = json.loads(lopa(*command, "--settings", settings, "--max-new-tokens", 8).out)
    assert len(over["token_ids"]) == 8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON (Expecting property name enclosed in double quotes at column 2)"),
        ("[" * 100_000, "not valid JSON (nested too deeply)"),
        ('{\n"seed": 1,\n"seed": 2}', "not valid JSON (key 'seed' is given twice)"),
        ('{"seed": 1,\n"lookahead" 2}', "at line 2, column 13)"),
        ('{"lookahead": "2"}', "lookahead is '2', expected a whole number"),
        ("[]", "holds list, expected an object of settings"),
        ('{"speed": 2}', "unknown setting speed; known: strategy,"),
    ],
)
def test_a_wrong_settings_file_is_one_line(
    lopa: Lopa, tiny_bundle: Path, tmp_path: Path, content: str, message: str
) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(content, encoding="utf-8")
    shown = lopa("generate", tiny_bundle, "--prompt", "a", "--settings", settings)
    assert shown.status == 1
    assert shown.err.startswith(f"lopa: error: {settings}")
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1

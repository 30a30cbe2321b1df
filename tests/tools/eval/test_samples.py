from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lopa.runtime.contract import LopaError
from lopa.tools.eval.record import SUMMARY, differences, open_run, read_summary
from lopa.tools.eval.samples import FILE, SampleLog, resume_samples
from lopa.tools.eval.totals import Totals, score_table, totals_by_task

from .make_sample import make_sample

RUN: dict[str, Any] = {
    "schema": 1,
    "started": "then",
    "lopa": "0",
    "bundle": {"folder": "here", "manifest_sha256": "aa"},
    "settings": {"lookahead": 4, "confidence": 0.9},
    "seeds": {"sampling": 0},
    "tasks": {"a": {"file": "a.jsonl", "sha256": "bb"}},
    "sweep": None,
    "machine": {"cores": 2},
}


def test_a_log_is_read_up_to_the_last_complete_line(tmp_path: Path) -> None:
    path = tmp_path / FILE
    log = SampleLog(path)
    first, second = make_sample("1", text="zwölf\u2028"), make_sample("2", variant=4)
    log.add(first)
    log.add(second)
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"task": "a", "id": "3", "te')
    assert resume_samples(path) == [first, second]
    assert path.read_bytes() == whole
    again = SampleLog(path, [first, second])
    again.add(make_sample("3"))
    again.close()
    assert [sample.id for sample in resume_samples(path)] == ["1", "2", "3"]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / FILE
    log = SampleLog(path)
    log.add(make_sample("1"))
    log.close()
    path.write_bytes(path.read_bytes() + b'{"task": "a"}\n')
    with pytest.raises(LopaError, match=rf"{FILE}:2: not a sample of this version"):
        resume_samples(path)
    assert resume_samples(tmp_path / "none") == []


def test_a_run_is_continued_only_with_the_same_settings(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert open_run(folder, RUN, resume=True, force=False) == (RUN, [])
    log = SampleLog(folder / FILE)
    log.add(make_sample("1"))
    log.close()
    with pytest.raises(LopaError, match="has a run; --resume continues it, --force replaces it"):
        open_run(folder, RUN, resume=False, force=False)
    moved = {
        **RUN,
        "started": "now",
        "machine": {"cores": 8},
        "bundle": {**RUN["bundle"], "folder": "there"},
    }
    summary, samples = open_run(folder, moved, resume=True, force=False)
    assert (summary["started"], summary["machine"]) == ("then", {"cores": 8})
    assert samples == [make_sample("1")]
    changed = {
        **RUN,
        "bundle": {**RUN["bundle"], "manifest_sha256": "cc"},
        "settings": {"lookahead": 2, "confidence": 0.9},
    }
    with pytest.raises(LopaError) as caught:
        open_run(folder, changed, resume=True, force=False)
    assert "bundle.manifest_sha256 was aa, is cc; settings.lookahead was 4, is 2" in str(
        caught.value
    )
    assert len(resume_samples(folder / FILE)) == 1
    open_run(folder, changed, resume=False, force=True)
    assert not (folder / FILE).exists()
    assert read_summary(folder / SUMMARY)["settings"]["lookahead"] == 2


def test_new_and_missing_tasks_are_differences() -> None:
    after = {**RUN, "tasks": {"b": {"file": "b.jsonl", "sha256": "bb"}}}
    assert differences(RUN, after) == ["tasks.a.sha256 was bb, is None",
                                       "tasks.b.sha256 was None, is bb"]  # fmt: skip
    assert differences(RUN, RUN) == []


def test_totals_are_of_sums() -> None:
    samples = [
        make_sample("1"),
        make_sample("2", tokens=30, useful_tokens=30, correct=False, seconds=8.0),
        make_sample("3", task="b", steps=2),
    ]
    totals = totals_by_task(samples, ["a", "b"])
    assert list(totals) == ["a", "b", "all"]
    assert totals["a"] == Totals(2, 1, 40, 38, 8, 24, 200, 10.0)
    assert (totals["a"].score, totals["a"].tpf, totals["a"].useful_tpf) == (50.0, 5.0, 4.75)
    assert (totals["a"].rows_per_token, totals["a"].tokens_per_second) == (5.0, 4.0)
    assert totals["all"].correct == 2
    assert totals["all"].to_json()["score"] == 66.6667
    assert score_table(totals)[1] == ("a", "1/2", "50.0", "5.00", "4.75", "5.0", "4")
    assert list(totals_by_task(samples[:2], ["a"])) == ["a"]
    assert Totals.of([]).tpf == 0.0

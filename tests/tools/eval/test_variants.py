from __future__ import annotations

from pathlib import Path

import pytest
from lopa.runtime.contract import LopaError
from lopa.runtime.options import DecodeOptions
from lopa.tools.decode_flags import setting_values
from lopa.tools.eval.evaluate import Variant
from lopa.tools.eval.variants import (
    BASELINE,
    check_variants,
    read_variants,
    search_variants,
)

from ...runtime.manifests import bundle_manifest


def search(texts: list[str], options: DecodeOptions) -> list[Variant]:
    return search_variants([setting_values(text) for text in texts], options)


def test_a_file_names_settings(tmp_path: Path) -> None:
    path = tmp_path / "variants.jsonl"
    path.write_text(
        '{"name": "published", "strategy": "d2f"}\n\n'
        '{"name": "sure", "lookahead": 2, "confidence": 0.5}\n',
        encoding="utf-8",
    )
    first, second = read_variants(path, DecodeOptions(max_new_tokens=8, confidence=0.7))
    assert (first.value, second.value) == ("published", "sure")
    assert first.options == DecodeOptions(strategy="d2f", max_new_tokens=8, confidence=0.7)
    assert second.options == DecodeOptions(lookahead=2, max_new_tokens=8, confidence=0.5)


def test_every_wrong_line_of_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "variants.jsonl"
    lines = (
        '{"name": "a"}',
        "[1]",
        '{"lookahead": 2}',
        '{"name": "b", "speed": 1}',
        '{"name": "a"}',
    )
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(LopaError) as caught:
        read_variants(path, DecodeOptions())
    parts = str(caught.value).split("; ")
    assert [part.partition(": ")[0].rpartition(":")[2] for part in parts[:3]] == ["2", "3", "4"]
    assert "unknown setting speed" in parts[2]
    assert parts[-1] == f"{path}:5: name 'a' is given twice"
    path.write_text(lines[0], encoding="utf-8")
    with pytest.raises(LopaError, match="give at least two settings to compare"):
        read_variants(path, DecodeOptions())


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("[" * 100_000, "not valid JSON (nested too deeply)"),
        ('{"name": "a", "seed": 1, "seed": 2}', "not valid JSON (key 'seed' is given twice)"),
        ('{"name": "a", "lookahead": "2"}', "lookahead is '2', expected a whole number"),
        ('{"name": "a\\u0007"}', "name is 'a\\x07', expected printable characters"),
        ('{"name": "\\ud800"}', "name is '\\ud800', expected printable characters"),
        ('{"name": ""}', "name is '', expected printable characters"),
    ],
)
def test_a_wrong_line_is_named_with_what_is_wrong(tmp_path: Path, line: str, fault: str) -> None:
    path = tmp_path / "variants.jsonl"
    path.write_text(f'{{"name": "first"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(LopaError) as caught:
        read_variants(path, DecodeOptions())
    assert str(caught.value) == f"{path}:2: {fault}"


def test_a_file_that_is_no_text_is_one_fault(tmp_path: Path) -> None:
    path = tmp_path / "variants.jsonl"
    path.write_bytes(b"\x89PNG\xff\x00")
    with pytest.raises(LopaError, match=r"variants.jsonl is not UTF-8 text \(byte 0\)"):
        read_variants(path, DecodeOptions())
    with pytest.raises(LopaError, match=r"cannot read settings from none.jsonl: No such file"):
        read_variants(Path("none.jsonl"), DecodeOptions())
    path.write_text('\ufeff{"name": "a"}\n{"name": "b"}', encoding="utf-8")
    assert [variant.value for variant in read_variants(path, DecodeOptions())] == ["a", "b"]


def test_a_search_holds_the_base_strategy_and_every_combination() -> None:
    options = DecodeOptions(base="fast-dllm", max_new_tokens=32, seed=3, cache="dual")
    variants = search(["lookahead=2,4", "confidence=0.3,0.5"], options)
    assert [variant.value for variant in variants] == [
        BASELINE,
        "lookahead=2 confidence=0.3",
        "lookahead=2 confidence=0.5",
        "lookahead=4 confidence=0.3",
        "lookahead=4 confidence=0.5",
    ]
    assert variants[0].options == DecodeOptions(strategy="fast-dllm", max_new_tokens=32, seed=3)
    assert variants[2].options.given == {
        "base": "fast-dllm",
        "cache": "dual",
        "confidence": 0.5,
        "lookahead": 2,
        "max_new_tokens": 32,
        "seed": 3,
    }


def test_a_value_counts_only_where_it_is_used() -> None:
    searches = ["score=mean_confidence,mixed", "score_alpha=0.3,0.5"]
    assert [variant.value for variant in search(searches, DecodeOptions())] == [
        BASELINE,
        "score=mean_confidence",
        "score=mixed score_alpha=0.3",
        "score=mixed score_alpha=0.5",
    ]


def test_a_default_counts_only_where_it_is_used() -> None:
    searches = ["lookahead_shape=single,nested", f"confirm={DecodeOptions().confirm},0.7"]
    assert [variant.value for variant in search(searches, DecodeOptions())] == [
        BASELINE,
        "lookahead_shape=single",
        f"lookahead_shape=nested confirm={DecodeOptions().confirm}",
        "lookahead_shape=nested confirm=0.7",
    ]


def test_the_base_is_not_searched_again() -> None:
    found = search(["strategy=d2f,lopa"], DecodeOptions())
    assert [variant.value for variant in found] == [BASELINE, "strategy=lopa"]


@pytest.mark.parametrize(
    ("searches", "message"),
    [
        (["strategy=d2f"], "--search gives nothing but the base strategy; search other values"),
        (["lookahead=1", "lookahead=2"], "--search lookahead is given twice"),
        (
            ["lookahead=" + ",".join(map(str, range(101))), "score_window=1,2,3,4,5"],
            "--search gives 505 combinations, at most 500",
        ),
    ],
)
def test_a_search_that_cannot_be_run_is_refused(searches: list[str], message: str) -> None:
    with pytest.raises(LopaError) as caught:
        search(searches, DecodeOptions())
    assert message in str(caught.value)


def test_what_the_bundle_cannot_serve_is_named() -> None:
    odd = DecodeOptions(lookahead_shape="nested", score="mixed")
    variants = [Variant(None, DecodeOptions()), Variant("odd", odd)]
    with pytest.raises(LopaError, match=r"^odd: score is for lookahead shape single"):
        check_variants(variants, bundle_manifest())

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from lopa.runtime.manifest import read_bundle, write_manifest

from ...exported import Exports
from .conftest import Lopa, wordless


def deepened(bundle: Path, folder: Path) -> Path:
    """A copy of a bundle whose manifest tells of another model."""
    shutil.copytree(bundle, folder)
    manifest = read_bundle(folder)
    model = dataclasses.replace(manifest.model, layers=3, block_size=4)
    write_manifest(folder, dataclasses.replace(manifest, model=model))
    return folder


def test_what_cannot_be_compared_is_one_line(
    lopa: Lopa, tiny_bundle: Path, tiny_model: Path, exports: Exports, prompts: Path, tmp_path: Path
) -> None:
    deeper = deepened(tiny_bundle, tmp_path / "deeper")
    narrow = exports.bundle("tiny-narrow", tiny_model, 4, (24,), (64,))
    mute = wordless(tiny_bundle, tmp_path / "wordless")
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    cases: list[tuple[tuple[object, ...], str]] = [
        (
            (tiny_bundle, deeper),
            "are not the same model: layers is 2 and 3; block_size is 8 and 4",
        ),
        (
            (tiny_bundle, narrow),
            "windows {1: 48, 5: 48} (by branches), context 96, ",
        ),
        ((tiny_bundle, tiny_model), "is a model folder; parity is measured on saved engines"),
        ((tiny_bundle, tmp_path), "is neither a bundle (lopa build) nor a checkpoint"),
        ((tmp_path, tiny_bundle), "is not a bundle (lopa build)"),
        (
            (tiny_bundle, tmp_path / "none"),
            f"nothing at {tmp_path / 'none'}; expected a bundle (lopa build) or a checkpoint",
        ),
        ((tmp_path / "none", tiny_bundle), f"no bundle at {tmp_path / 'none'}; make one with: "),
        ((mute, tiny_bundle), "has no tokenizer; give --prompts FILE"),
        (
            (tiny_bundle, tiny_bundle, "--adapter", tmp_path),
            "--adapter is for a checkpoint",
        ),
        (
            (tiny_bundle, tiny_bundle, "--load-inputs", tmp_path / "none.json"),
            "no inputs at",
        ),
        (
            (tiny_bundle, tiny_bundle, "--prompts", prompts, "--save-inputs", tmp_path / "x"),
            "expected a name that ends in .json",
        ),
        (
            (tiny_bundle, tiny_bundle, "--bisect", "--save-outputs", tmp_path / "x.json"),
            "--save-outputs has no use here",
        ),
        (
            (tiny_bundle, tiny_bundle, "--no-decode", "--problems", prompts),
            "--problems has no use here: nothing is graded; --prompts takes prompts",
        ),
        ((tiny_bundle, tiny_bundle, "--bisect", "--problems", prompts), "--problems has no use"),
        (
            (tiny_bundle, tiny_bundle, "--load-inputs", deep, "--save-inputs", tmp_path / "x.json"),
            "--save-inputs has no use here: --load-inputs records none",
        ),
        ((tiny_bundle, tiny_bundle, "--force"), "--force has no use here: no file is saved"),
        (
            (tiny_bundle, tiny_bundle, "--load-inputs", deep, "--save-outputs", deep),
            f"--save-outputs {deep} would replace --load-inputs {deep}, an input; choose another",
        ),
        (
            (tiny_bundle, tiny_bundle, "--load-inputs", deep),
            "deep.json: not valid JSON (nested too deeply)",
        ),
        (
            (tiny_bundle, tiny_bundle, "--save-inputs", deep),
            "deep.json was not written by lopa compare; choose another name or replace it with",
        ),
        (
            (tiny_bundle, tiny_bundle, "--force", "--save-outputs", tiny_bundle / "manifest.json"),
            "a bundle or model folder; choose a place outside",
        ),
        (
            (tiny_bundle, exports.root / "tiny-checkpoint", "--bisect", "--prompts", prompts),
            "--bisect walks the graphs of two onnxruntime bundles",
        ),
        (
            (tiny_bundle, tiny_bundle, "--prompts", prompts, "--lookahead", 9),
            "lookahead is 9, the bundle has 4 lookahead branches",
        ),
    ]
    for arguments, message in cases:
        shown = lopa("compare", *arguments)
        assert (shown.status, shown.out) == (1, ""), message
        assert message in shown.err
        assert shown.err.startswith("lopa: error: ")
        assert shown.err.count("\n") == 1
    assert not (tmp_path / "x").exists()
    assert deep.read_text() == "[" * 100_000


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--min-top1", "2", "expected 0 to 1, got 2"),
        ("--min-token-agreement", "-0.1", "expected 0 to 1, got -0.1"),
        ("--min-winner-agreement", "nan", "expected a number, got 'nan'"),
        ("--max-abs", "-1", "expected 0 or more, got -1"),
        ("--max-drift", "-1e-9", "expected 0 or more, got -1e-9"),
        ("--max-kl", "-2", "expected 0 or more, got -2"),
        ("--max-score-loss", "-2", "expected 0 or more, got -2"),
        ("--bisect-tolerance", "-1", "expected 0 or more, got -1"),
    ],
)
def test_bounds_have_a_range(lopa: Lopa, flag: str, value: str, expected: str) -> None:
    shown = lopa("compare", "one", "two", f"{flag}={value}")
    assert (shown.status, shown.out) == (2, "")
    assert shown.err == f"lopa: error: argument {flag}: {expected}; see lopa compare --help\n"

"""Decode cases of the published loops: the files, how many cases each has, and parts of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PARTS = 4  # of a file's cases, so that parallel workers share them
D2F_FILES = {
    "d2f_dream": 72,
    "d2f_dream_lora": 72,
    "lopa_dream": 192,
    "lopa_dream_lora": 192,
    "lopa_variants_dream": 30,
    "dream_vanilla": 48,
}
BLOCK_FILES = {
    "llada_vanilla": 40,
    "fastdllm_llada_legacy": 84,
    "fastdllm_llada_v1": 132,
    "fastdllm_dream_block": 72,
    "sdar_block": 120,
    "fast_dllm_v2": 72,
    "llada2_moe_block": 48,
}


@functools.cache
def read_file(golden: Path, name: str) -> dict[str, Any]:
    """A file of cases with what they have in common."""
    path = golden / "decode" / f"{name}.json"
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def part_of(data: dict[str, Any], part: int) -> Iterator[dict[str, Any]]:
    """Every PARTS-th case of a file, from `part` on."""
    yield from data["cases"][part::PARTS]


def assert_none(faults: Iterable[str]) -> None:
    """Fail with the number of faults and the first of them."""
    found = list(faults)
    assert not found, f"{len(found)} differences; first ones:\n" + "\n".join(found[:5])

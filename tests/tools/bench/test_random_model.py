from __future__ import annotations

import pytest
from lopa.runtime.contract import LopaError
from lopa.tools.bench.random_model import RandomSpec, parse_spec


def test_spec_with_defaults() -> None:
    spec = parse_spec("d768,l12,v32k")
    assert spec == RandomSpec(768, 12, 32768, heads=12, kv_heads=3, intermediate=3072)
    layer = 2 * 768 * 768 + 2 * 768 * 192 + 3 * 768 * 3072
    assert spec.parameters == 2 * 32768 * 768 + 12 * layer


def test_every_size_can_be_given() -> None:
    spec = parse_spec("d64,l2,v512,h4,kv2,i96")
    assert (spec.heads, spec.kv_heads, spec.intermediate, spec.head_dim) == (4, 2, 96, 16)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("d768,l12", "no v"),
        ("d768,l12,v32x", "'v32x' is not a size"),
        ("d768,l12,v1k,h5", "heads 5 must divide 768"),
        ("d64,l2,v100", "512 ids or more"),
    ],
)
def test_wrong_specs(text: str, message: str) -> None:
    with pytest.raises(LopaError, match=message):
        parse_spec(text)

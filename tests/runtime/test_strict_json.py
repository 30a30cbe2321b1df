from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lopa.runtime.contract import LopaError
from lopa.runtime.strict_json import parse_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)  # fmt: skip


@given(VALUES)
def test_what_is_json_is_read(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "Expecting property name enclosed in double quotes at column 2"),
        ('{\n"a" 1}', "Expecting ':' delimiter at line 2, column 5"),
        ('[{"a": 1, "b": {"c": 1, "c": 2}}]', "key 'c' is given twice"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "a number of 5000 digits"),
        ('{"id": NaN}', "NaN is no JSON value"),
        ("[-Infinity]", "-Infinity is no JSON value"),
        ("1e999", "1e999 is too large a number"),
    ],
)
def test_what_is_not_is_one_line(text: str, fault: str) -> None:
    with pytest.raises(LopaError) as caught:
        parse_json(text)
    assert str(caught.value) == f"not valid JSON ({fault})"

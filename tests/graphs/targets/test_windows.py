from __future__ import annotations

import pytest
from lopa.graphs.targets import offer_of


@pytest.mark.parametrize(
    ("block", "context", "windows", "prefills"),
    [
        (32, 1024, (64, 128), (256, 1024)),  # Dream
        (4, 1024, (32, 64), (256, 1024)),  # SDAR
        (32, 100, (64, 100), (25, 100)),
        (16, 24, (24,), (6, 24)),
    ],
)
def test_static_targets_get_windows_of_a_few_blocks(
    block: int, context: int, windows: tuple[int, ...], prefills: tuple[int, ...]
) -> None:
    for target in ("tensorrt", "tensorrt-rtx"):
        assert offer_of(target).windows.sizes(block, (8, context)) == (windows, prefills)
    exact = offer_of("onnxruntime").windows
    assert exact.sizes(block, (8, context)) == ((context,), (context,))

"""Symmetric integers: zero point 0, round half to even, as ONNX and TensorRT define them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

INT8_MAX, INT4_MAX = 127, 7
BLOCK = 32  # weights along K that share one 4-bit scale
CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8)  # of a block's largest weight, tried for 4 bits

Floats = NDArray[np.float32]
Integers = NDArray[np.int8]


def scale_of(largest: Any) -> Any:
    """Scale (float32) of 8-bit integers that reach `largest`; 1 where that is 0."""
    scale = np.asarray(largest, np.float32) / np.float32(INT8_MAX)
    return np.where(scale > 0, scale, np.float32(1)).astype(np.float32)


def fake_int8(values: Floats, scale: Any) -> Floats:
    """Round to the integers and back."""
    return np.asarray(np.clip(np.rint(values / scale), -INT8_MAX - 1, INT8_MAX) * scale)


def columns_int8(weight: Floats, scale_dtype: Any = np.float32) -> tuple[Integers, Any]:
    """Quantise [K, N] with one scale per column; returns integers [K, N] and scales [N]."""
    scale = scale_of(np.abs(weight).max(0)).astype(scale_dtype)
    rounded = np.rint(weight / scale.astype(np.float32))
    return np.clip(rounded, -INT8_MAX, INT8_MAX).astype(np.int8), scale


def blocks_int4(weight: Floats) -> tuple[Integers, Floats]:
    """Quantise [K, N] with one scale per BLOCK rows and column, clipped for the least error.

    Returns integers from -8 to 7 [K, N] and scales [K / BLOCK, N].
    """
    rows, columns = weight.shape
    blocks = weight.reshape(rows // BLOCK, BLOCK, columns)
    largest = np.abs(blocks).max(1)
    best = np.full(largest.shape, np.inf, np.float32)
    scale = np.ones_like(largest)
    for clip in CLIPS:
        tried = largest * np.float32(clip / INT4_MAX)
        tried = np.where(tried > 0, tried, np.float32(1))
        error = np.square(_round_int4(blocks, tried) * tried[:, None] - blocks).sum(1)
        better = error < best
        best, scale = np.where(better, error, best), np.where(better, tried, scale)
    return _round_int4(blocks, scale).astype(np.int8).reshape(rows, columns), scale


def _round_int4(blocks: Floats, scale: Floats) -> Floats:
    return np.asarray(np.clip(np.rint(blocks / scale[:, None]), -INT4_MAX - 1, INT4_MAX))

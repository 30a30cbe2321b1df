from __future__ import annotations

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from lopa.calibration.integers import BLOCK, blocks_int4, columns_int8, fake_int8, scale_of
from lopa.graphs.weight_file import pack_int4
from numpy.typing import NDArray
from onnx import numpy_helper

MATRICES = arrays(np.float32, (2 * BLOCK, 3), elements=st.floats(-100, 100, width=32))


@given(MATRICES)
def test_columns_are_off_by_half_a_step_at_most(weight: NDArray[np.float32]) -> None:
    integers, scale = columns_int8(weight)
    assert np.abs(integers.astype(int)).max() <= 127
    assert np.all(np.abs(integers * scale - weight) <= scale * 0.5001)


@given(MATRICES)
def test_blocks_of_four_bits_are_no_worse_than_unclipped(weight: NDArray[np.float32]) -> None:
    integers, scale = blocks_int4(weight)
    assert integers.min() >= -8
    assert integers.max() <= 7
    blocks = weight.reshape(2, BLOCK, 3)
    plain = np.abs(blocks).max(1) / 7
    plain = np.where(plain > 0, plain, 1)[:, None]
    unclipped = np.square(np.clip(np.rint(blocks / plain), -8, 7) * plain - blocks).sum()
    found = np.square(integers.reshape(2, BLOCK, 3) * scale[:, None] - blocks).sum()
    assert found <= unclipped * 1.001 + 1e-6


def test_zero_columns_have_a_scale() -> None:
    integers, scale = columns_int8(np.zeros((4, 2), np.float32))
    assert not integers.any()
    assert np.array_equal(scale, [1, 1])
    assert scale_of(0.0) == 1
    assert scale_of(127.0) == 1


def test_half_to_even_and_saturation() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, 500, -500], np.float32)
    assert fake_int8(values, np.float32(1)).tolist() == [0, 2, 2, 0, 127, -128]


def test_four_bit_packing_is_that_of_onnx() -> None:
    integers = np.array([-8, 7, 1, -1, 3], np.int8)
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.INT4, dims=[5])
    tensor.raw_data = pack_int4(integers).tobytes()
    assert numpy_helper.to_array(tensor).astype(int).tolist() == integers.tolist()

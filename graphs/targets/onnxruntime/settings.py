"""What can be asked of ONNX Runtime; its build has no settings."""

from __future__ import annotations

from ..protocol import Offer
from ..windows import EXACT_SHAPES

OFFER = Offer("ONNX Runtime", ("fp32", "fp16"), EXACT_SHAPES, fast_graph=True)

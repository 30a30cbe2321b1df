"""ONNX Runtime: `program.py` is what decodes share, `state.py` what each of them owns."""

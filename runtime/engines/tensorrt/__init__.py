"""TensorRT, TensorRT for RTX: `program.py` is what decodes share, `state.py` what each owns."""

"""TensorRT 10, TensorRT 11 and TensorRT for RTX: `build.py` makes the engine."""

"""TensorRT and TensorRT for RTX: `engine.py` is the engine, the other files are its parts."""

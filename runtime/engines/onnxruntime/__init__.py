"""ONNX Runtime: `engine.py` is the engine, the other files are its parts."""

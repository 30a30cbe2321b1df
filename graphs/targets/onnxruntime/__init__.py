"""ONNX Runtime: `build.py` makes the engine, the other files are its passes."""

"""A target that is no part of lopa: copies the graph and runs it with ONNX Runtime's engine."""

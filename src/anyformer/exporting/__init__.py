"""Trained models for other libraries: a Hugging Face folder or an ONNX graph, with a model card."""

"""Running models in onnxruntime: sessions, comparison of predictions, errors of outputs."""

"""Formats other than Core ML's: one module each, with a function `save(tensors, path, ...)`."""

"""Outside formats: one module for each, with one function, `save(tensors, path, ...)`."""

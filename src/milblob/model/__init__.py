"""Open models: their files, names and tensors."""

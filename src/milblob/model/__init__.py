"""What a user opens: files of a model, names, tensors."""

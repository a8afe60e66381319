"""Bytes to arrays and back: TensorValues, casts, dense values of compressed weights."""

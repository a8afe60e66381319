"""Bytes to arrays and back: tensor values, casts, dense values of compressed weights."""

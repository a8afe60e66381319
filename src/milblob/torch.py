"""Weights of models as PyTorch tensors. Needs torch, which is imported when it is first needed."""

from .frameworks.pytorch import load, load_into

__all__ = ["load", "load_into"]

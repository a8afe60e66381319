"""Weights of models as MLX arrays. Needs mlx, which is imported when it is first needed."""

from .frameworks.mlx import load

__all__ = ["load"]

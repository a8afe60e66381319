"""Weights of models as JAX arrays. Needs jax, which is imported when it is first needed."""

from .frameworks.jax import load

__all__ = ["load"]

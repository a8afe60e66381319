"""Plots by Matplotlib: each takes `ax`, draws to it or to new axes, and returns it. Needs the extra `plot`."""

from .draw import errors, frontier, histogram, sizes

__all__ = ["errors", "frontier", "histogram", "sizes"]

"""Rewriting models: repack, compress, merge."""

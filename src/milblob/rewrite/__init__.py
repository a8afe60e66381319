"""Rewriting models: repack, merge."""

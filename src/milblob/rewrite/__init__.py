"""Rewriting models: refit, repack, merge."""

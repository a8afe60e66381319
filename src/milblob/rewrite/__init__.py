"""Reads models and writes new ones: refit, repack, merge."""

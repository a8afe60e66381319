"""Bytes in files: mapped, transferred, written whole or not at all, changed through a journal."""

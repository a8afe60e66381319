"""Bytes in files: mapped, transferred, written atomically, changed through a journal."""

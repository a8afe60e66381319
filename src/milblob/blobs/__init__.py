"""Blob v2 weight files: reading, writing, finding equal records."""

"""One MIL Program: its constants and names, its bytes, its text."""

"""The output of commands: tables, text and JSON that are safe for a terminal, progress, errors."""

"""What the commands print: tables, text and JSON that are safe for a terminal, progress, errors."""

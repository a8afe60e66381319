"""Many models: finding them, and one call for each of them, with a journal to resume from."""

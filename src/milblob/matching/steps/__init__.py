"""The steps of the search, one kind of derivation each: from arrays and weights to expressions of the values."""

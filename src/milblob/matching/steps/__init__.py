"""The steps of the search, one kind of derivation each: from arrays and weights to what gives the present values."""

"""Updates of models: patches that make one model from another."""

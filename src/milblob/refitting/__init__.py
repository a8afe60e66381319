"""New values for the weights of a model: refit."""

"""Compressing the weights of a model: recipes, which weights, what is lost, goals and plans."""

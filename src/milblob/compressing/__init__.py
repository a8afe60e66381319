"""Compression of a model's weights: recipes, selection of weights, losses, goals and plans."""

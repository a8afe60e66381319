"""How far numbers are from the nearest one of a grid: what no choice of integers or entries can better."""

import numpy as np


def distances(numbers, grid):
    """Return the distance of each number from the nearest one of the grid, in float64; the grid in any order."""
    numbers, grid = numbers.astype(np.float64), np.sort(grid.astype(np.float64))
    after = np.minimum(np.searchsorted(grid, numbers), len(grid) - 1)
    before = np.maximum(after - 1, 0)
    return np.minimum(np.abs(numbers - grid[after]), np.abs(numbers - grid[before]))

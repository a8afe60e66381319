"""Arrays in fewer bits, and the error of that: integers with scales, palettes, masks. Nothing here knows a model."""

"""The converters, one module for each group of operations; they register themselves when they are imported."""

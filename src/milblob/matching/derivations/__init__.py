"""Expressions of arrays that give the values of a weight; they can be computed and printed."""

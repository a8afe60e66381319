"""What gives the values of a weight: expressions of arrays that can be computed and printed."""

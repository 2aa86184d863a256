"""The analysis `fixed_point`: its computation and its picture."""

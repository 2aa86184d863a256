"""The analysis `fixed_point`: its computation, its picture and its words."""

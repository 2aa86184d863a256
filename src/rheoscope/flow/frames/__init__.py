"""The analysis `frames`: its computation and its picture."""

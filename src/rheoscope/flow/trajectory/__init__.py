"""The analysis `trajectory`: its computation and its picture."""

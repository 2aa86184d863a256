"""The analysis `energy`: its computation and its picture."""

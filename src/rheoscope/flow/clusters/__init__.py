"""The analysis `clusters`: its computation and its picture."""

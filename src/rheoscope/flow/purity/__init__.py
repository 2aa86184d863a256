"""The analysis `purity`: its computation and its picture."""

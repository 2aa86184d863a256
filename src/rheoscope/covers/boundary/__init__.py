"""The analysis `boundary`: its computation and its picture."""

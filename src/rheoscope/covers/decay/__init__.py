"""The analysis `decay`: its computation and its picture."""

"""The analysis `distortion`: its computation and its picture."""

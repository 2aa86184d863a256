"""The analysis `composition`: its computation and its picture."""

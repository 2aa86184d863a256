"""The analysis `transport`: its computation and its picture."""

"""The analysis `geometry_kept`: its computation and its picture."""

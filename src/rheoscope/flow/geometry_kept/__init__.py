"""The analysis `geometry_kept`: its computation, its picture and its words."""

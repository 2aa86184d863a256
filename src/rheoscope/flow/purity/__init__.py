"""The analysis `purity`: its computation, its picture and its words."""

"""The analysis `prefix_stability`: its computation, its picture and its words."""

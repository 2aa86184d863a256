"""The analysis `relation_swap`: its computation, its picture and its words."""

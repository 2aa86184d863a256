"""The analysis `clusters`: its computation, its picture and its words."""

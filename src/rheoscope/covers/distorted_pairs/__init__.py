"""The analysis `distorted_pairs`: its computation, its picture and its words."""

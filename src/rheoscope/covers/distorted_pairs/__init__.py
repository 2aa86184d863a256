"""The analysis `distorted_pairs`: its computation and its picture."""

"""Normalisers from a row of scores to a row of weights, one algorithm per file, each with its derivative."""

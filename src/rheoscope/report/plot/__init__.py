"""Figures, one file per analysis, with the analysis's name."""

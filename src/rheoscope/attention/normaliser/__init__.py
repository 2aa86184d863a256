"""How a row of scores becomes a row of weights: one algorithm a file, its derivative beside it."""

"""The analysis `circuit`: the edges between heads that carry the difference of two texts, its picture and its words."""

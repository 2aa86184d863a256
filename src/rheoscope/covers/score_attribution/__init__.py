"""The analysis `score_attribution`: its computation, its picture and its words."""

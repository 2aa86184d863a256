"""The analysis `reversed_attention`: its computation, its picture and its words."""

"""The analysis `senses`: its computation, its picture and its words."""

"""The analysis `transport`: its computation, its picture and its words."""

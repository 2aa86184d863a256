"""The analysis `density_clusters`: its computation, its picture and its words."""

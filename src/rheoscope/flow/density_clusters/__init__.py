"""The analysis `density_clusters`: its computation and its picture."""

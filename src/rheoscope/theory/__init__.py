"""Theory experiments: particle systems under attention, compared with published results."""

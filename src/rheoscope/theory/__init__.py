"""Particle systems under attention and their limits, compared with theory."""

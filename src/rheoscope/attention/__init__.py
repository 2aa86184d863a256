"""Attention mechanisms: one definition composed of parts, and the lowerings that run it (`lower/`)."""

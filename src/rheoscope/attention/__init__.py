"""WHAT attention computes: one definition, composed of parts, and HOW it runs (`lower/`)."""

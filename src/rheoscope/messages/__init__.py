"""Text for people as values."""

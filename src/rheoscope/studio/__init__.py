"""The studio: an interactive page, served on loopback or exported as static files."""

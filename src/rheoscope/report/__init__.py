"""Answers for people: tables in the terminal, figures, and one self-contained page."""

"""Passes over tables of distances that a GPU takes in one: Triton, imported where it is used."""

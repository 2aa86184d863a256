"""Families: one file per architecture, which lists its model types and describes its weights and hook points."""

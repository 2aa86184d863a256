"""Null distributions, ranks, intervals and corrections for multiple tests."""

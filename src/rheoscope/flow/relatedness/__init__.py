"""The analysis `relatedness`."""

"""Families DESCRIBE their models; Hugging Face computes. One file a family, one line in `families.py`."""

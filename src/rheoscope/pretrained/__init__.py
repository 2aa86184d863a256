"""Pretrained models: Hugging Face computes them, and Rheoscope describes them."""

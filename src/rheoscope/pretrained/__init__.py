"""Models that others wrote: Hugging Face computes, Rheoscope wraps."""

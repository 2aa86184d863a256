"""Whole corpora: the same analyses over millions of tokens, to Parquet, resumable, with summaries that merge exactly."""

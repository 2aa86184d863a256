"""Analyses of whole corpora: written to Parquet, resumable, with summaries that merge exactly."""

"""Pictures of results that no analysis of the catalogue owns."""

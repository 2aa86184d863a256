"""Pictures and blocks as values: panels, series, tables, sentences; no renderer."""

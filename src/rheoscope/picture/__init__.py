"""Pictures and blocks of reports as values, independent of any renderer."""

"""The page of analyses: `<!-- analyses -->` is replaced by every analysis of the catalogue with its fields."""

from typing import Any

from rheoscope.report.analysis_list import catalogue_page

MARK = "<!-- analyses -->"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    return markdown.replace(MARK, catalogue_page()) if MARK in markdown else markdown

"""Every public name on one page: `<!-- reference -->` becomes its groups, and mkdocstrings puts the docstrings there."""

from typing import Any

import rheoscope
from rheoscope.catalogue import ANALYSIS_MODULES

MARK = "<!-- reference -->"
ROOMS = {
    "Open, ask, look": ("opening", "catalogue", "report", "studio", "corpus", "running", "space", "shapes"),
    "The flow": ("flow",),
    "The covers": ("covers",),
    "Theory": ("theory",),
    "Attention": ("attention", "pretrained"),
}
"""Heading → the rooms whose names stand below it."""


def groups() -> dict[str, dict[str, str]]:
    """Heading → public name → where it is written, analyses first, in the order of the catalogue."""
    homes = ANALYSIS_MODULES | {
        name: home for name, home in vars(rheoscope)["_PUBLIC_MODULES"].items() if name not in ANALYSIS_MODULES
    }
    return {
        heading: {name: home for name, home in homes.items() if home.split(".")[1] in rooms}
        for heading, rooms in ROOMS.items()
    }


def as_page() -> str:
    """The groups in Markdown, as mkdocstrings reads them."""
    return "\n\n".join(
        "\n\n".join([f"## {heading}", *(entry(name, home) for name, home in names.items())])
        for heading, names in groups().items()
    )


def entry(name: str, home: str) -> str:
    """One name; of a module, what it is made for."""
    whole = name == "nn"
    members = ["Attention", "MultiHeadAttention"] if whole else []
    options = [f"heading: rs.{name}", f"toc_label: rs.{name}", f"members: {members or 'false'}"]
    return "\n".join(
        [f"::: {home if whole else f'{home}.{name}'}", "    options:", *(f"      {one}" for one in options)]
    )


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    return markdown.replace(MARK, as_page()) if MARK in markdown else markdown

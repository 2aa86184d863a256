"""The reference page: `<!-- reference -->` is replaced by every public name, which mkdocstrings fills in."""

from typing import Any

import rheoscope
from rheoscope.catalogue import ANALYSIS_MODULES

MARK = "<!-- reference -->"
ROOMS = {
    "Load, analyse, plot": (
        "opening",
        "checkpoint_series",
        "model_comparison",
        "catalogue",
        "report",
        "studio",
        "corpus",
        "learn",
        "running",
        "space",
        "shapes",
    ),
    "The flow": ("flow",),
    "The covers": ("covers",),
    "Theory": ("theory",),
    "Attention": ("attention", "pretrained"),
}
"""Maps each heading to the folders of the source whose names it lists."""


def groups() -> dict[str, dict[str, str]]:
    """The public names under each heading with their modules, analyses first in the order of the catalogue."""
    homes = ANALYSIS_MODULES | {
        name: home for name, home in vars(rheoscope)["_PUBLIC_MODULES"].items() if name not in ANALYSIS_MODULES
    }
    return {
        heading: {name: home for name, home in homes.items() if home.split(".")[1] in rooms}
        for heading, rooms in ROOMS.items()
    }


def as_page() -> str:
    """The groups as Markdown for mkdocstrings."""
    return "\n\n".join(
        "\n\n".join([f"## {heading}", *(entry(name, home) for name, home in names.items())])
        for heading, names in groups().items()
    )


def entry(name: str, home: str) -> str:
    """The entry of one name. For the module `nn` it lists the classes."""
    is_module = name == "nn"
    members = ["Attention", "MultiHeadAttention"] if is_module else []
    options = [f"heading: rs.{name}", f"toc_label: rs.{name}", f"members: {members or 'false'}"]
    return "\n".join(
        [f"::: {home if is_module else f'{home}.{name}'}", "    options:", *(f"      {option}" for option in options)]
    )


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    return markdown.replace(MARK, as_page()) if MARK in markdown else markdown

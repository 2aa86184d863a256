"""Live pages: single files of the studio, each in a frame, with a plain fallback where no scripts run.

`<!-- live NAME: TITLE -->` … `<!-- /live -->` encloses the fallback. `make live` writes docs/live/NAME.html. Without this file the
site shows the fallback alone. The frame is sandboxed: the page in it cannot reach the site, and its policy lets it request nothing.
"""

import posixpath
import re
from html import escape
from pathlib import Path
from typing import Any

LIVE = re.compile(r"<!-- live (\w+): (.+?) -->\n(.+?)\n<!-- /live -->", re.S)
FOLDER = Path(__file__).resolve().parents[1] / "live"


def frame(page_url: str, name: str, title: str, fallback: str) -> str:
    """A live page in a frame, a link to it, and its fallback for readers without scripts and for print."""
    address = posixpath.relpath(f"live/{name}.html", posixpath.dirname(page_url) or ".")
    return (
        '<div class="live" markdown>\n'
        f'<iframe src="{address}" title="{escape(title)}" loading="lazy" sandbox="allow-scripts allow-downloads"></iframe>\n\n'
        f'<div class="fallback" markdown>\n{fallback}\n</div>\n\n'
        f'{title} <a href="{address}">Open this page alone</a>.\n</div>'
    )


def on_page_markdown(markdown: str, *, page: Any, folder: Path = FOLDER, **_: Any) -> str:
    def place(match: re.Match[str]) -> str:
        name, title, fallback = match.groups()
        return frame(page.url, name, title, fallback) if (folder / f"{name}.html").is_file() else fallback

    return LIVE.sub(place, markdown)

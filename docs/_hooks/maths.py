"""Converts formulas between dollar signs to MathML when the site is built, so that pages need no script.

``pymdownx.arithmatex`` finds the formulas (never inside code) and this hook converts them. It also warns about every
asset in the built site that a browser would load from another server, so that ``--strict`` fails.
"""

import html
import logging
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

log = logging.getLogger("mkdocs.hooks.maths")

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)
OUTSIDE = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]*\bsrc="?(?:https?:)?//[^>]*>'
    r'|<link\b(?![^>]*rel="?canonical)[^>]*\bhref="?(?:https?:)?//[^>]*>'
)


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    def replace(formula: re.Match[str]) -> str:
        return mathml(html.unescape(formula[3]).strip(), formula[2] == "[", page.file.src_path)

    return FORMULA.sub(replace, content)


def mathml(tex: str, display: bool, where: str) -> str:
    try:
        markup = convert(tex, display="block" if display else "inline")
    except Exception as error:  # latex2mathml has no common base class for its errors
        log.warning("%s: no MathML for %r (%s)", where, tex, type(error).__name__)
        return f"<code>{html.escape(tex)}</code>"
    if "\\" in html.unescape(markup):  # latex2mathml copies unknown commands unchanged
        log.warning("%s: a command in %r is unknown to latex2mathml", where, tex)
    return f'<div class="formula">{markup}</div>' if display else markup


def on_post_build(*, config: Any, **_: Any) -> None:
    for page in Path(config["site_dir"]).rglob("*.html"):
        for asset in OUTSIDE.findall(page.read_text(encoding="utf-8")):
            log.warning("%s loads from another server: %s", page.relative_to(config["site_dir"]), asset)

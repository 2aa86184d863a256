"""Maths without a script: what stands between dollars becomes MathML when the site is built.

``pymdownx.arithmatex`` finds the formulas (never inside code) and this hook converts them. It also reads the built site
and warns, so that ``--strict`` fails, of any asset that a reader's browser would fetch from elsewhere.
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
        made = convert(tex, display="block" if display else "inline")
    except Exception as error:  # latex2mathml has no common ancestor for its errors
        log.warning("%s: no MathML for %r (%s)", where, tex, type(error).__name__)
        return f"<code>{html.escape(tex)}</code>"
    if "\\" in html.unescape(made):  # a command it does not know comes through as it was
        log.warning("%s: a command in %r is unknown to latex2mathml", where, tex)
    return f'<div class="formula">{made}</div>' if display else made


def on_post_build(*, config: Any, **_: Any) -> None:
    for page in Path(config["site_dir"]).rglob("*.html"):
        for asset in OUTSIDE.findall(page.read_text(encoding="utf-8")):
            log.warning("%s loads from elsewhere: %s", page.relative_to(config["site_dir"]), asset)

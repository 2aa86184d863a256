"""Plain prose from a MediaWiki dump: markup is removed, one document per page, one page in memory at a time."""

import re
from collections.abc import Iterable, Iterator
from html import unescape

MIN_PAGE_CHARACTERS = 200
"""The shortest page in characters of prose. Shorter pages are stubs, disambiguations or tables."""

DROPPED_BLOCKS = "ref|math|gallery|code|pre|source|syntaxhighlight|timeline|imagemap|hiero|score|table"
PROSELESS_SECTIONS = {
    "see also", "references", "external links", "notes", "further reading", "bibliography", "sources", "footnotes",
    "external link", "reference", "related links", "links", "related topics", "notes and references",
}  # fmt: skip

PAGE_TITLE = re.compile(r"<title>(.*?)</title>")
PAGE_TEXT = re.compile(r"<text\b[^>]*>(.*)</text>", re.DOTALL)
NON_ARTICLE_TITLE = re.compile(
    r"(?:talk|user|wikipedia|image|file|mediawiki|template|help|category|portal|special)(?: talk)?:", re.IGNORECASE
)
REDIRECT = re.compile(r"\s*#\s*redirect", re.IGNORECASE)

SINGLE_TAG = re.compile(r"<(?:ref|br|hr|references)\b[^<>]*/>|<br\b[^<>]*>", re.IGNORECASE)
COMMENT = re.compile(r"<!--(?P<open>)|-->(?P<close>)")
BLOCK = re.compile(rf"<(?P<open>{DROPPED_BLOCKS})\b[^<>]*>|</(?P<close>{DROPPED_BLOCKS})\s*>", re.IGNORECASE)
TEMPLATE = re.compile(r"\{\{(?P<open>)|\}\}(?P<close>)")
TABLE = re.compile(r"^[ \t:*]*\{\|(?P<open>)|^[ \t]*\|\}(?P<close>)", re.MULTILINE)

SINGLE_BRACKETS = r"(?>\[(?!\[)[^\[\]]*\]|\[(?!\[)|\](?!\]))[^\[\]]*"  # atomic groups prevent exponential backtracking
LINK = re.compile(rf"\[\[([^\[\]|]*)(?:\|([^\[\]]*(?:{SINGLE_BRACKETS})*+))?\]\]")
EXTERNAL_LINK = re.compile(r"\[(?:https?:|ftp:|news:|irc:|mailto:|//)[^\s\[\]]*[ \t]*([^\[\]\n]*)\]", re.IGNORECASE)
BARE_ADDRESS = re.compile(r"\b(?:https?|ftp)://[^\s<>\[\]]+", re.IGNORECASE)
DROPPED_LINK = re.compile(
    r"\s*(?:(?:image|file|category|media)\s*:|(?:[a-z]{2,3}(?:-[a-z]+)*|simple|tokipona|minnan):)", re.IGNORECASE
)
LINK_PREFIX = re.compile(
    r"\s*:?\s*(?:(?:wikipedia|wiktionary|wikibooks|wikiquote|wikisource|meta|[wsbqn]):)?", re.IGNORECASE
)

TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
EMPHASIS_QUOTES = re.compile(r"'{2,}")
MAGIC_WORD = re.compile(r"__[A-Z]+__")
STRAY_BRACKETS = re.compile(r"[\[\]{}]{2,}")
STRAY_TAG = re.compile(r"([</]+)([a-zA-Z!]?)")
EMPTY_BRACKETS = re.compile(r"\([\s,;:]*\)|\[\s*\]")
SPACE_BEFORE_PUNCTUATION = re.compile(r" +(?=[,.;:)])")
LEADING_PUNCTUATION = re.compile(r"\([\s,;:]+")
HEADING = re.compile(r"(={1,6})\s*(.+?)\s*\1$")
LIST_MARKS = "*#:; "
LETTER = re.compile(r"[^\W\d_]")


def is_dump(opening: str) -> bool:
    """Whether a file that starts like this is a MediaWiki XML dump.

    >>> is_dump('<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.3/"'), is_dump("Call me Ishmael.")
    (True, False)
    """
    return opening.lstrip("\ufeff \t\r\n").startswith(("<mediawiki", "<?xml")) and "<mediawiki" in opening


def articles(lines: Iterable[str]) -> Iterator[str]:
    """The plain prose of each article of a dump: no redirects, no talk pages, nothing under 200 characters.

    A page that the end of the file truncates is dropped. Only the current page is in memory.

    >>> page = "<page><title>A</title><text>'''A''' is the [[first]] letter. " + "It is old. " * 20 + "</text></page>"
    >>> [text[:26] for text in articles([page])]
    ['A is the first letter. It ']
    """
    page: list[str] | None = None
    for line in lines:
        if "<page>" in line:
            page = []
        if page is not None:
            page.append(line)
            if "</page>" in line:
                yield from _article("".join(page))
                page = None


def _article(page: str) -> Iterator[str]:
    title, body = PAGE_TITLE.search(page), PAGE_TEXT.search(page)
    if body is None or (title and NON_ARTICLE_TITLE.match(unescape(title[1]))):
        return
    if not REDIRECT.match(body[1]):
        text = plain_prose(unescape(body[1]))  # XML escapes; `plain_prose` handles the entities of the wiki
        if len(text) >= MIN_PAGE_CHARACTERS:
            yield text


def plain_prose(wikitext: str) -> str:
    """The sentences of a page of wikitext, with one paragraph, heading or list item per line.

    Removed are templates, tables, references, comments, formulas, galleries, code, images, categories, links to other languages,
    bare addresses, sections that only list links, headings without text and lines without a letter. The labels of links, headings
    and list items stay as text.

    **Laws** No ``[[``, ``{{`` or ``<ref`` remains. The time is linear in the length, however unbalanced the markup.

    >>> plain_prose("== Life ==\\n* '''Ada''' {{born|{{y|1815}}}} met [[Charles Babbage|Babbage]]<ref>x</ref>&nbsp;twice.")
    'Life\\nAda met Babbage twice.'
    """
    text = SINGLE_TAG.sub(" ", _cut_marked(wikitext, COMMENT))
    for marks in (BLOCK, TEMPLATE, TABLE):
        text = _cut_marked(text, marks)
    text = BARE_ADDRESS.sub("", _replace_links(text))
    text = EMPHASIS_QUOTES.sub("", MAGIC_WORD.sub("", TAG.sub("", text)))
    text = STRAY_TAG.sub(_remove_stray_tag, STRAY_BRACKETS.sub("", unescape(text)))
    return "\n".join(_prose_lines(text))


def _cut_marked(text: str, marks: re.Pattern[str]) -> str:
    """Remove the text between opening marks and their closing marks, including nested ones. Unmatched marks remove nothing."""
    retained, open_starts = [text], dict[str, list[int]]()
    spans: list[tuple[int, int]] = []
    for mark in marks.finditer(text):
        if (name := mark["open"]) is not None:
            open_starts.setdefault(name.lower(), []).append(mark.start())
        elif starts := open_starts.get(mark["close"].lower()):
            spans.append((starts.pop(), mark.end()))
    if spans:
        retained, position = [], 0
        for start, end in sorted(spans):
            if end > position:
                retained.append(text[position : max(start, position)])
                position = end
        retained.append(text[position:])
    return "".join(retained)


def _replace_links(text: str) -> str:
    """Replace links by their labels, innermost first. No page nests links more than eight levels deep."""
    for _ in range(8):
        previous, text = text, LINK.sub(_link_label, EXTERNAL_LINK.sub(r"\1", text))
        if text == previous:
            break
    return text


def _link_label(link: re.Match[str]) -> str:
    target, label = link[1], link[2]
    if DROPPED_LINK.match(target):
        return ""
    return label.rsplit("|", 1)[-1] if label else LINK_PREFIX.sub("", target, count=1).replace("_", " ")


def _remove_stray_tag(match: re.Match[str]) -> str:
    """Remove a `<` before a name, which would look like a tag. A `<` before a number or a space is a sign and stays."""
    return match[2] if match[2] and "<" in match[1] else match[0]


def _prose_lines(text: str) -> Iterator[str]:
    """Lines that contain a letter. A heading is emitted only with the first line of its section."""
    heading, is_skipped = "", False
    for line in map(_clean_line, text.split("\n")):
        if heading_match := HEADING.fullmatch(line):
            heading, is_skipped = heading_match[2], heading_match[2].strip().lower() in PROSELESS_SECTIONS
        elif not is_skipped and not line.startswith(("|", "!", "{|")) and LETTER.search(line):
            if LETTER.search(heading):
                yield heading
            heading = ""
            yield line


def _clean_line(line: str) -> str:
    """A line without list marks and empty brackets, and with single spaces."""
    line = EMPTY_BRACKETS.sub("", line)
    line = " ".join(LEADING_PUNCTUATION.sub("(", line).split())
    return SPACE_BEFORE_PUNCTUATION.sub("", line).lstrip(LIST_MARKS)

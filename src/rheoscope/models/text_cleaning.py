"""A MediaWiki dump read as plain prose: markup out, sentences kept, one document a page, a page at a time in memory."""

import re
from collections.abc import Iterable, Iterator
from html import unescape

SHORTEST_PAGE = 200
"""Characters of prose; what is shorter is a stub, a disambiguation or a page of tables."""

DROPPED_BLOCKS = "ref|math|gallery|code|pre|source|syntaxhighlight|timeline|imagemap|hiero|score|table"
PROSELESS_SECTIONS = {
    "see also", "references", "external links", "notes", "further reading", "bibliography", "sources", "footnotes",
    "external link", "reference", "related links", "links", "related topics", "notes and references",
}  # fmt: skip

PAGE_TITLE = re.compile(r"<title>(.*?)</title>")
PAGE_TEXT = re.compile(r"<text\b[^>]*>(.*)</text>", re.DOTALL)
NO_ARTICLE = re.compile(
    r"(?:talk|user|wikipedia|image|file|mediawiki|template|help|category|portal|special)(?: talk)?:", re.IGNORECASE
)
REDIRECT = re.compile(r"\s*#\s*redirect", re.IGNORECASE)

SINGLE_TAG = re.compile(r"<(?:ref|br|hr|references)\b[^<>]*/>|<br\b[^<>]*>", re.IGNORECASE)
COMMENT = re.compile(r"<!--(?P<open>)|-->(?P<close>)")
BLOCK = re.compile(rf"<(?P<open>{DROPPED_BLOCKS})\b[^<>]*>|</(?P<close>{DROPPED_BLOCKS})\s*>", re.IGNORECASE)
TEMPLATE = re.compile(r"\{\{(?P<open>)|\}\}(?P<close>)")
TABLE = re.compile(r"^[ \t:*]*\{\|(?P<open>)|^[ \t]*\|\}(?P<close>)", re.MULTILINE)

SINGLE_BRACKETS = r"(?>\[(?!\[)[^\[\]]*\]|\[(?!\[)|\](?!\]))[^\[\]]*"  # atomic: no second way to read them, no blow-up
LINK = re.compile(rf"\[\[([^\[\]|]*)(?:\|([^\[\]]*(?:{SINGLE_BRACKETS})*+))?\]\]")
EXTERNAL = re.compile(r"\[(?:https?:|ftp:|news:|irc:|mailto:|//)[^\s\[\]]*[ \t]*([^\[\]\n]*)\]", re.IGNORECASE)
BARE_ADDRESS = re.compile(r"\b(?:https?|ftp)://[^\s<>\[\]]+", re.IGNORECASE)
DROPPED_LINK = re.compile(
    r"\s*(?:(?:image|file|category|media)\s*:|(?:[a-z]{2,3}(?:-[a-z]+)*|simple|tokipona|minnan):)", re.IGNORECASE
)
PREFIX = re.compile(
    r"\s*:?\s*(?:(?:wikipedia|wiktionary|wikibooks|wikiquote|wikisource|meta|[wsbqn]):)?", re.IGNORECASE
)

TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
QUOTES = re.compile(r"'{2,}")
SWITCH = re.compile(r"__[A-Z]+__")
STRAY_BRACKETS = re.compile(r"[\[\]{}]{2,}")
STRAY_TAG = re.compile(r"([</]+)([a-zA-Z!]?)")
EMPTY_BRACKETS = re.compile(r"\([\s,;:]*\)|\[\s*\]")
BEFORE_POINT = re.compile(r" +(?=[,.;:)])")
LEADING_POINT = re.compile(r"\([\s,;:]+")
HEADING = re.compile(r"(={1,6})\s*(.+?)\s*\1$")
LIST_MARKS = "*#:; "
LETTER = re.compile(r"[^\W\d_]")


def is_dump(opening: str) -> bool:
    """Does a file that begins so hold a MediaWiki XML dump?

    >>> is_dump('<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.3/"'), is_dump("Call me Ishmael.")
    (True, False)
    """
    return opening.lstrip("\ufeff \t\r\n").startswith(("<mediawiki", "<?xml")) and "<mediawiki" in opening


def articles(lines: Iterable[str]) -> Iterator[str]:
    """The plain prose of each article of a dump, one at a time: no redirects, no talk, nothing under 200 characters.

    A page that the end of the file cuts off is left out. Only the page at hand is kept in memory.

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
    if body is None or (title and NO_ARTICLE.match(unescape(title[1]))):
        return
    if not REDIRECT.match(body[1]):
        text = prose(unescape(body[1]))  # XML's own escapes; the wiki's entities are below
        if len(text) >= SHORTEST_PAGE:
            yield text


def prose(wikitext: str) -> str:
    """The sentences of a page of wikitext, one paragraph, heading or list item a line.

    Gone: templates, tables, references, comments, mathematics, galleries, code, images, categories, links to other
    languages, bare addresses, sections that only list links, headings with nothing under them, lines without a letter.
    Kept as text: the label of a link, headings, list items. Law: no ``[[``, ``{{`` or ``<ref`` is left, and the time
    is linear in the length, however unbalanced the markup.

    >>> prose("== Life ==\\n* '''Ada''' {{born|{{y|1815}}}} met [[Charles Babbage|Babbage]]<ref>x</ref>&nbsp;twice.")
    'Life\\nAda met Babbage twice.'
    """
    text = SINGLE_TAG.sub(" ", _without(wikitext, COMMENT))
    for marks in (BLOCK, TEMPLATE, TABLE):
        text = _without(text, marks)
    text = BARE_ADDRESS.sub("", _unlinked(text))
    text = QUOTES.sub("", SWITCH.sub("", TAG.sub("", text)))
    text = STRAY_TAG.sub(_untagged, STRAY_BRACKETS.sub("", unescape(text)))
    return "\n".join(_lines(text))


def _without(text: str, marks: re.Pattern[str]) -> str:
    """Cut what stands between an opening mark and its closing one, nested ones too; a mark without its partner cuts nothing."""
    kept, open_at = [text], dict[str, list[int]]()
    spans: list[tuple[int, int]] = []
    for mark in marks.finditer(text):
        if (name := mark["open"]) is not None:
            open_at.setdefault(name.lower(), []).append(mark.start())
        elif starts := open_at.get(mark["close"].lower()):
            spans.append((starts.pop(), mark.end()))
    if spans:
        kept, at = [], 0
        for start, end in sorted(spans):
            if end > at:
                kept.append(text[at : max(start, at)])
                at = end
        kept.append(text[at:])
    return "".join(kept)


def _unlinked(text: str) -> str:
    """Links replaced by their labels, the inner ones of a caption first; eight levels are more than any page has."""
    for _ in range(8):
        before, text = text, LINK.sub(_label, EXTERNAL.sub(r"\1", text))
        if text == before:
            break
    return text


def _label(link: re.Match[str]) -> str:
    target, label = link[1], link[2]
    if DROPPED_LINK.match(target):
        return ""
    return label.rsplit("|", 1)[-1] if label else PREFIX.sub("", target, count=1).replace("_", " ")


def _untagged(found: re.Match[str]) -> str:
    """A `<` that a name follows would still look like a tag; one before a number or a space is a sign."""
    return found[2] if found[2] and "<" in found[1] else found[0]


def _lines(text: str) -> Iterator[str]:
    """Lines with a letter in them; a heading waits until a line of its section comes."""
    heading, listing = "", False
    for line in map(_tidy, text.split("\n")):
        if found := HEADING.fullmatch(line):
            heading, listing = found[2], found[2].strip().lower() in PROSELESS_SECTIONS
        elif not listing and not line.startswith(("|", "!", "{|")) and LETTER.search(line):
            if LETTER.search(heading):
                yield heading
            heading = ""
            yield line


def _tidy(line: str) -> str:
    """One line without its list mark, with single spaces, and without the brackets that a template left empty."""
    line = EMPTY_BRACKETS.sub("", line)
    line = " ".join(LEADING_POINT.sub("(", line).split())
    return BEFORE_POINT.sub("", line).lstrip(LIST_MARKS)

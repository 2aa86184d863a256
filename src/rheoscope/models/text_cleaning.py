"""A MediaWiki dump read as plain prose: markup out, sentences kept, one document a page, a page at a time in memory."""

import re
from collections.abc import Iterable, Iterator
from html import unescape

MIN_PAGE_CHARACTERS = 200
"""Characters of prose; what is shorter is a stub, a disambiguation or a page of tables."""

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

SINGLE_BRACKETS = r"(?>\[(?!\[)[^\[\]]*\]|\[(?!\[)|\](?!\]))[^\[\]]*"  # atomic: no second way to read them, no blow-up
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
    if body is None or (title and NON_ARTICLE_TITLE.match(unescape(title[1]))):
        return
    if not REDIRECT.match(body[1]):
        text = plain_prose(unescape(body[1]))  # XML's own escapes; the wiki's entities are below
        if len(text) >= MIN_PAGE_CHARACTERS:
            yield text


def plain_prose(wikitext: str) -> str:
    """The sentences of a page of wikitext, one paragraph, heading or list item a line.

    Gone: templates, tables, references, comments, mathematics, galleries, code, images, categories, links to other
    languages, bare addresses, sections that only list links, headings with nothing under them, lines without a letter.
    Kept as text: the label of a link, headings, list items. Law: no ``[[``, ``{{`` or ``<ref`` is left, and the time
    is linear in the length, however unbalanced the markup.

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
    """Cut what stands between an opening mark and its closing one, nested ones too; a mark without its partner cuts nothing."""
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
    """Links replaced by their labels, the inner ones of a caption first; eight levels are more than any page has."""
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
    """A `<` that a name follows would still look like a tag; one before a number or a space is a sign."""
    return match[2] if match[2] and "<" in match[1] else match[0]


def _prose_lines(text: str) -> Iterator[str]:
    """Lines with a letter in them; a heading waits until a line of its section comes."""
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
    """One line without its list mark, with single spaces, and without the brackets that a template left empty."""
    line = EMPTY_BRACKETS.sub("", line)
    line = " ".join(LEADING_PUNCTUATION.sub("(", line).split())
    return SPACE_BEFORE_PUNCTUATION.sub("", line).lstrip(LIST_MARKS)

"""Messages in other languages: gettext catalogues keyed by the English template."""

import locale
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from rheoscope.messages.message import Message, Verbatim

FOLDER = Path(__file__).parent
LANGUAGES = ("en", "zh")
"""Languages that every message of the project is available in; English is the template itself."""


def translate(text: str, language: str) -> str:
    """A message in a language: its template looked up, its parameters translated and filled in.

    A plain string is looked up as a whole, unless it is Verbatim; a title also without its capital. What the catalogue does
    not have stays English.

    >>> translate(Message("{n} heads", n=3), "en")
    '3 heads'
    """
    if language == "en" or isinstance(text, Verbatim):
        return str(text)
    if not isinstance(text, Message):
        return templates(language).get(text) or templates(language).get(_without_capital(text), text)
    template = templates(language).get(text.template, text.template)
    filled = {name: _value(value, language) for name, value in text.parameters.items()}
    return template.format(**filled) if filled else template


_LANGUAGE: ContextVar[str | None] = ContextVar("language", default=None)
_PROCESS_LANGUAGE: list[str | None] = [None]


def current_language() -> str:
    """The language in which text is rendered now: that of `use_language`, else of `set_language`, else of the locale."""
    return _LANGUAGE.get() or _PROCESS_LANGUAGE[0] or default_language()


def set_language(language: str | None) -> None:
    """Set the language of the process, in all threads. `None` returns to the locale's language.

    A command calls this once, for its option `--lang`.
    """
    _PROCESS_LANGUAGE[0] = language


@contextmanager
def use_language(language: str | None) -> Iterator[None]:
    """Render text in a language inside a `with` block, in this thread or task.

    >>> with use_language("zh"):
    ...     render(Message("Model"))
    '模型'
    """
    token = _LANGUAGE.set(language)
    try:
        yield
    finally:
        _LANGUAGE.reset(token)


def render(text: str) -> str:
    """A message in the current language: the one call between a Message and a reader.

    >>> with use_language("en"):
    ...     render(Message("{n} heads", n=3))
    '3 heads'
    """
    return translate(text, current_language())


def _without_capital(title: str) -> str:
    """The name that a title starts with a capital: "Effective rank" is "effective rank". "A", "F" and "QK" are symbols."""
    return title[:1].lower() + title[1:] if title[1:2].islower() or title[1:2] == " " else title


def _value(value: Any, language: str) -> Any:
    return translate(value, language) if isinstance(value, str) else value


@cache
def templates(language: str) -> dict[str, str]:
    """English template → template in the language."""
    return read_po(FOLDER / f"{language}.po")


def read_po(path: Path) -> dict[str, str]:
    """The entries of a .po file; the subset that this project writes: msgid and msgstr, on one line or on several.

    >>> read_po(FOLDER / "zh.po")["Model"]
    '模型'
    """
    entries: dict[str, str] = {}
    parts = {"msgid": "", "msgstr": ""}
    current = ""
    for line in [*path.read_text(encoding="utf-8").splitlines(), 'msgid ""']:
        keyword, _, rest = line.partition(" ")
        if keyword == "msgid" and parts["msgid"] and parts["msgstr"]:
            entries[parts["msgid"]] = parts["msgstr"]
        if keyword in parts:
            current, parts[keyword] = keyword, _unquote(rest)
            if keyword == "msgid":
                parts["msgstr"] = ""
        elif line.startswith('"') and current:
            parts[current] += _unquote(line)
    return entries


def _unquote(text: str) -> str:
    return text.strip()[1:-1].replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")


def parameters_of(template: str) -> set[str]:
    """The names of a template's parameters.

    >>> sorted(parameters_of("{n} of {total:,} heads"))
    ['n', 'total']
    """
    return {name.split(".")[0].split("[")[0] for _, name, _, _ in Formatter().parse(template) if name}


def default_language() -> str:
    """The language of the locale, where a catalogue has it; English otherwise."""
    wanted = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
    code = (wanted or locale.getlocale()[0] or "")[:2].lower()
    return code if code in LANGUAGES else "en"

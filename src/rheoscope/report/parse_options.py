"""What people type behind an option, as the values that analyses take: heads, lists of numbers, tokens, files of names."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rheoscope.report.input_text import read
from rheoscope.shapes import RheoscopeError
from rheoscope.space.view import View

Heads = list[tuple[int, int]]


def heads_of(typed: str | None, view: View) -> Heads | None:
    """Heads as they are typed: some (5.1,3.2 or L5.H1), all of a layer (L5), or all of them.

    >>> import rheoscope as rs
    >>> heads_of("2.1,L3.H2", rs.load().view), heads_of("L4", rs.load().view), heads_of("all", rs.load().view)
    ([(2, 1), (3, 2)], [(4, 0), (4, 1), (4, 2), (4, 3)], None)
    """
    if typed is None or typed == "all":
        return None
    found: Heads = []
    for one in (word.strip() for word in typed.split(",")):
        head, layer = re.fullmatch(r"L?(\d+)\.H?(\d+)", one), re.fullmatch(r"L(\d+)", one)
        if head:
            found.append((int(head[1]), int(head[2])))
        elif layer:
            found += view.heads_in(int(layer[1]))
        else:
            raise RheoscopeError(
                f"heads are typed as layer.head, got {one!r}; type --heads 5.1,3.2, or --heads L5 for a layer"
            )
    return found


def numbers_of(typed: str, kind: Callable[[str], Any], option: str) -> list[Any]:
    """Numbers between commas.

    >>> numbers_of("1, 4", int, "strides")
    [1, 4]
    """
    try:
        return [kind(one) for one in typed.split(",")]
    except ValueError:
        raise RheoscopeError(f"--{option} takes numbers between commas, got {typed!r}; type --{option} 1,4") from None


def token_of(typed: str) -> str | int:
    """A token by its text, or by its id behind a #: " on", #262.

    >>> token_of("#262"), token_of(" on")
    (262, ' on')
    """
    return int(typed[1:]) if re.fullmatch(r"#\d+", typed) else typed


def labels_of(typed: str) -> dict[str, dict[str, str]]:
    """Names of words from a file: a word, a tab and its name on every line; the heading is the name of the file."""
    file, names = Path(typed), {}
    for number, line in enumerate(read(file).splitlines(), 1):
        word, tab, name = line.partition("\t")
        if line.strip() and not (tab and word.strip() and name.strip()):
            raise RheoscopeError(f"{file}, line {number}: expected a word, a tab and its name, got {line!r}")
        if line.strip():
            names[word.strip()] = name.strip()
    return {file.stem: names}


def texts_of(typed: str) -> list[str]:
    """Texts between bars.

    >>> texts_of("Once upon a time|In 1912")
    ['Once upon a time', 'In 1912']
    """
    return typed.split("|")

"""Parsers of option values: heads, lists of numbers, tokens, lists of texts and files of labels."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.report.input_text import read_text_file
from rheoscope.running.feature_sites import SITE_LABEL
from rheoscope.running.features import Features
from rheoscope.shapes import RheoscopeError
from rheoscope.space.view import View

HeadList = list[tuple[int, int]]


def parse_heads(text: str | None, view: View) -> HeadList | None:
    """Heads as typed: single heads (5.1,3.2 or L5.H1), a layer (L5), or "all", which is None.

    >>> import rheoscope as rs
    >>> parse_heads("2.1,L3.H2", rs.load().view), parse_heads("L4", rs.load().view), parse_heads("all", rs.load().view)
    ([(2, 1), (3, 2)], [(4, 0), (4, 1), (4, 2), (4, 3)], None)
    """
    if text is None or text == "all":
        return None
    heads: HeadList = []
    for part in (entry.strip() for entry in text.split(",")):
        head_match, layer_match = re.fullmatch(r"L?(\d+)\.H?(\d+)", part), re.fullmatch(r"L(\d+)", part)
        if head_match:
            heads.append((int(head_match[1]), int(head_match[2])))
        elif layer_match:
            heads += view.head_indices(int(layer_match[1]))
        else:
            raise RheoscopeError(
                Message("a head is typed as layer.head, got {text!r}", text=part),
                Advice("heads=[(5, 1), (3, 2)]", Message("--heads 5.1,3.2, or --heads L5 for a layer")),
            )
    return heads


def parse_number(text: str | float, number_type: Callable[[Any], Any]) -> Any:
    """A number as typed. A fraction for a whole number stays a fraction, so that the check of its bounds refuses it.

    >>> parse_number("12", int), parse_number("1e9", int), parse_number("nan", float)
    (12, 1000000000.0, nan)
    """
    try:
        return number_type(text)
    except ValueError:
        return float(text)


def parse_numbers(text: str, number_type: Callable[[str], Any], option: str) -> list[Any]:
    """Numbers separated by commas.

    >>> parse_numbers("1, 4", int, "strides")
    [1, 4]
    """
    try:
        return [parse_number(part, number_type) for part in text.split(",")]
    except ValueError:
        raise RheoscopeError(
            Message("{option} takes numbers separated by commas, got {text!r}", option=f"--{option}", text=text),
            use(**{option: [1, 4]}),
        ) from None


def parse_token(text: str) -> str | int:
    """A token by its text (" on") or by its id (#262).

    >>> parse_token("#262"), parse_token(" on")
    (262, ' on')
    """
    return int(text[1:]) if re.fullmatch(r"#\d+", text) else text


def read_labels(file_name: str) -> dict[str, dict[str, str]]:
    """Labels of words from a file with a word, a tab and its label on every line, under the name of the file."""
    file, labels = Path(file_name), {}
    for line_number, line in enumerate(read_text_file(file).splitlines(), 1):
        labelled_word, tab, label = line.partition("\t")
        if line.strip() and not (tab and labelled_word.strip() and label.strip()):
            raise RheoscopeError(
                Message(
                    "{file}, line {line_number}: expected a word, a tab and its label, got {line!r}",
                    file=str(file),
                    line_number=line_number,
                    line=line,
                )
            )
        if line.strip():
            labels[labelled_word.strip()] = label.strip()
    return {file.stem: labels}


def read_features(name: str) -> Features:
    """The sparse dictionary of a directory or file, or with its site: `sae@L6.mlp`.

    "default" is that of the default model, and `./default` a directory.

    >>> len(read_features("default")), str(read_features("default@L2.resid_post").reads)
    (1024, 'L2.resid_post')
    """
    path, _, site = name.rpartition("@") if SITE_LABEL.fullmatch(name.rpartition("@")[2]) else (name, "", None)
    return Features.load(None if path == "default" else path, site)


def parse_texts(text: str) -> list[str]:
    """Texts separated by bars.

    >>> parse_texts("Once upon a time|In 1912")
    ['Once upon a time', 'In 1912']
    """
    return text.split("|")

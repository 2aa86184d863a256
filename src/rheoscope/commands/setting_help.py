"""Help texts for the settings of analyses, from their names and their bounds."""

from typing import Any

from rheoscope.messages.message import Message, join
from rheoscope.space.settings import Bounds, rules

SHARED_SETTINGS = {
    "draws": Message("Samples of the null distribution. 0 omits it."),
    "seed": Message("Seed of the random numbers."),
    "keep_massive": Message("Also use massive tokens."),
    "space": Message("Space in which points are compared."),
    "grain": Message("Points after every layer, or also between attention and MLP."),
    "token": Message("Position of a token, counted from 0, or from the end if negative."),
    "target": Message("The target token, or its id as #262."),
    "top": Message("Number of entries that are listed."),
    "nearest": Message("Number of nearest neighbours that are compared."),
    "heads": Message("Heads as layer.head,… or a layer as L5 (default: all)."),
    "layer": Message("A layer, counted from 0."),
    "layers": Message("Layers, separated by commas (default: all)."),
    "head": Message("A head of the layer, counted from 0."),
    "labels": Message("A file with a word, a tab and its label on every line."),
    "features": Message(
        "A sparse dictionary: a directory in the layout of SAELens or dictionary_learning (DIR@L6.mlp names its site), or default."
    ),
    "M": Message("Replacement of M: symmetric, skew, 'rank 8', …"),
    "F": Message("Replacement of F: symmetric, 'rank 8', …"),
    "per_head": Message("Edit each head alone."),
}
"""Setting → what it does. These settings mean the same in every analysis."""


def setting_help(name: str, annotation: Any) -> Message:
    """What a setting does and which values it takes.

    >>> from rheoscope.space.settings import SpaceName
    >>> setting_help("space", SpaceName)
    'Space in which points are compared. One of raw, normed, sphere.'
    """
    parts: list[str] = [SHARED_SETTINGS[name]] if name in SHARED_SETTINGS else []
    for rule in rules(annotation):
        if not isinstance(rule, Bounds):
            parts.append(Message("One of {names}.", names=", ".join(rule.names)))
        elif name not in SHARED_SETTINGS:
            parts.append(Message("From {low} to {high}.", low=rule.low, high=rule.high))
    return join(" ", parts) if parts else Message("")

"""How the settings of an analysis are typed and read: an option for each, by its name and type."""

from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin

from rheoscope.report.parse_options import heads_of, labels_of, numbers_of, texts_of, token_of
from rheoscope.running.argument_checks import without_none
from rheoscope.space.analysis import Analysis
from rheoscope.space.model import Model

Read = Callable[[str, Any, Model], Any]
"""From the name of an option, what was typed and the model to the setting."""


TEXTS_BETWEEN_BARS = ("prefixes", "targets", "foils")
"""Settings that are lists of texts."""


@dataclass(frozen=True)
class Option:
    """How a setting of some type is typed, and read."""

    typed: Any
    read: Read


def option_of(name: str, hint: Any) -> Option | None:
    """The option of a setting, by its name and type; None for what cannot be typed (a Dataset, a Trace).

    >>> option_of("draws", int).typed, option_of("strides", list[int] | None).typed, option_of("control", dict)
    (<class 'int'>, str | None, None)
    >>> option_of("words", dict | str | None).typed
    str | None
    """
    optional, plain = without_none(hint)
    if name == "heads":
        return Option(str | None, lambda _, typed, model: heads_of(typed, model.view))
    if name == "labels":
        return Option(str | None, lambda _, typed, model: None if typed is None else labels_of(typed))
    if name in TEXTS_BETWEEN_BARS:
        return Option(str | None, lambda _, typed, model: None if typed is None else texts_of(typed))
    if plain in (int, float, str, bool):
        return Option(plain | None if optional else plain, lambda _, typed, model: typed)
    if plain == str | int:
        return Option(str | None, lambda _, typed, model: None if typed is None else token_of(typed))
    if get_origin(plain) in (Union, UnionType) and str in get_args(
        plain
    ):  # a text or the name of a file, beside what cannot be typed
        return Option(str | None if optional else str, lambda _, typed, model: typed)
    number = _number_in(plain)
    if number is not None:
        return Option(
            str | None, lambda option, typed, model: None if typed is None else numbers_of(typed, number, option)
        )
    return None


def _number_in(hint: Any) -> Callable[[str], Any] | None:
    """int or float where a setting is a sequence of them."""
    parts = get_args(hint)
    if get_origin(hint) is None or not parts:
        return None
    inner = get_args(parts[0]) or (parts[0],)
    return float if float in inner else int if inner == (int,) else None


def options_of(asked: Analysis) -> dict[str, Option]:
    """Every setting that can be typed."""
    found = {name: option_of(name, one.annotation) for name, one in asked.settings.items()}
    return {name: option for name, option in found.items() if option is not None}

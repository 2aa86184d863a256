"""The command-line option of each setting of an analysis, derived from the setting's name and type."""

from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin

from rheoscope.report.parse_options import (
    parse_heads,
    parse_numbers,
    parse_texts,
    parse_token,
    read_features,
    read_labels,
)
from rheoscope.running.argument_checks import strip_none
from rheoscope.space.analysis import Analysis
from rheoscope.space.model import Model
from rheoscope.space.settings import plain_type

ParseOption = Callable[[str, Any, Model], Any]
"""(option name, typed value, model) → value of the setting."""


BAR_SEPARATED_SETTINGS = ("prefixes", "targets", "foils")
"""Settings that are lists of texts, typed with bars between them."""


@dataclass(frozen=True)
class Option:
    """The type that typer parses, and the function that turns its value into the setting."""

    cli_type: Any
    parse: ParseOption


def option_for_setting(name: str, hint: Any) -> Option | None:
    """The option of a setting, from its name and type. None if it cannot be typed (a Dataset, a Trace).

    >>> option_for_setting("draws", int).cli_type, option_for_setting("strides", list[int] | None).cli_type
    (<class 'int'>, str | None)
    >>> option_for_setting("control", dict) is None
    True
    """
    is_optional, base_type = strip_none(plain_type(hint))
    if name == "heads":
        return Option(str | None, lambda _, value, model: parse_heads(value, model.view))
    if name == "labels":
        return Option(str | None, lambda _, value, model: None if value is None else read_labels(value))
    if name == "features":
        return Option(str | None, lambda _, value, model: None if value is None else read_features(value))
    if name in BAR_SEPARATED_SETTINGS:
        return Option(str | None, lambda _, value, model: None if value is None else parse_texts(value))
    if base_type in (int, float, str, bool):
        return Option(base_type | None if is_optional else base_type, lambda _, value, model: value)
    if base_type == str | int:
        return Option(str | None, lambda _, value, model: None if value is None else parse_token(value))
    if get_origin(base_type) in (Union, UnionType) and str in get_args(base_type):
        return Option(str | None if is_optional else str, lambda _, value, model: value)
    number_type = _element_type(base_type)
    if number_type is not None:
        return Option(
            str | None,
            lambda option, value, model: None if value is None else parse_numbers(value, number_type, option),
        )
    return None


def _element_type(hint: Any) -> Callable[[str], Any] | None:
    """int or float if a setting is a sequence of them."""
    type_args = get_args(hint)
    if get_origin(hint) is None or not type_args:
        return None
    element_types = get_args(type_args[0]) or (type_args[0],)
    return float if float in element_types else int if element_types == (int,) else None


def typeable_options(spec: Analysis) -> dict[str, Option]:
    """The option of every setting that can be typed."""
    candidates = {name: option_for_setting(name, parameter.annotation) for name, parameter in spec.settings.items()}
    return {name: option for name, option in candidates.items() if option is not None}

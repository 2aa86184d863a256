"""Parse the settings of an analysis from a query string, with bounds and without access to files."""

import math
import re
from collections.abc import Mapping
from typing import Any

from rheoscope.messages.advice import page_setting
from rheoscope.messages.message import Message
from rheoscope.report.setting_options import typeable_options
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis
from rheoscope.space.model import Model

FILE_SETTINGS = ("labels", "word_list", "features")
"""Settings that accept the name of a file. The server refuses them."""
INDEX_SETTINGS = ("seed", "target", "token", "query", "key", "tokens")
"""Settings that are an index or a seed. Every other number is an amount of work."""
MAX_AMOUNT, MAX_INDEX, MAX_CHARS = 1000, 2**31 - 1, 2000


def parse_settings(analysis: Analysis, typed_settings: Mapping[str, str], model: Model) -> dict[str, Any]:
    """The settings of a query string. Unknown names and values that are too large are refused."""
    options = {name: option for name, option in typeable_options(analysis).items() if name not in FILE_SETTINGS}
    settings = {}
    for name, text in typed_settings.items():
        if name not in options:
            raise RheoscopeError(
                Message(
                    "{analysis} has no setting {name!r}; its settings are {settings}",
                    analysis=analysis.name,
                    name=name[:40],
                    settings=", ".join(options),
                )
                if options
                else Message("{analysis} has no settings, got {name!r}", analysis=analysis.name, name=name[:40])
            )
        if len(text) > MAX_CHARS:
            raise RheoscopeError(
                Message(
                    "{name} may have at most {limit:,} characters, got {received:,}",
                    name=name,
                    limit=MAX_CHARS,
                    received=len(text),
                )
            )
        settings[name] = _check_bound(
            name, options[name].parse(name, _parse_value(name, text, options[name].cli_type), model)
        )
    return settings


def default_settings(analysis: Analysis) -> dict[str, Any]:
    """Every setting that a query string may contain, with its default."""
    return {name: analysis.settings[name].default for name in typeable_options(analysis) if name not in FILE_SETTINGS}


def _parse_value(name: str, text: str, value_type: Any) -> Any:
    if value_type in (bool,):
        if text not in ("true", "false", "1", "0"):
            raise RheoscopeError(
                Message("{name} must be true or false, got {received!r}", name=name, received=text[:40]),
                page_setting(f"{name}=true"),
            )
        return text in ("true", "1")
    if value_type in (int, int | None):
        if not re.fullmatch(r"-?\d{1,10}", text):
            raise RheoscopeError(
                Message("{name} must be an integer, got {received!r}", name=name, received=text[:40]),
                page_setting(f"{name}=1"),
            )
        return int(text)
    if value_type in (float, float | None):
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise RheoscopeError(
                Message("{name} must be a number, got {received!r}", name=name, received=text[:40]),
                page_setting(f"{name}=0.5"),
            )
        return number
    return text


def _check_bound(name: str, value: Any) -> Any:
    limit = MAX_INDEX if name in INDEX_SETTINGS else MAX_AMOUNT
    items = value if isinstance(value, list) else [value]
    if len(items) > MAX_AMOUNT or any(isinstance(item, int | float) and not abs(item) <= limit for item in items):
        raise RheoscopeError(
            Message("{name} may be at most {limit:,} on this server", name=name, limit=limit),
            page_setting(f"{name}={limit}"),
        )
    return value

"""Settings of an analysis from a query string: read as the command reads its options, bounded, and never from a file."""

import math
import re
from collections.abc import Mapping
from typing import Any

from rheoscope.report.setting_options import typeable_options
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis
from rheoscope.space.model import Model

FILE_SETTINGS = ("labels", "word_list")
"""Settings that name a file."""
INDEX_SETTINGS = ("seed", "target", "token", "query", "key", "tokens")
"""Settings that name a thing by its number; every other number says how much work is asked for."""
MAX_AMOUNT, MAX_INDEX, MAX_CHARS = 1000, 2**31 - 1, 2000


def parse_settings(analysis: Analysis, typed_settings: Mapping[str, str], model: Model) -> dict[str, Any]:
    """What was typed as settings; a name that there is not, or a value too large, is refused."""
    options = {name: option for name, option in typeable_options(analysis).items() if name not in FILE_SETTINGS}
    settings = {}
    for name, text in typed_settings.items():
        if name not in options:
            known_names = ", ".join(options) or "none"
            raise RheoscopeError(f"{analysis.name} has no setting {name[:40]!r} here; it has {known_names}")
        if len(text) > MAX_CHARS:
            raise RheoscopeError(f"{name} has at most {MAX_CHARS} characters, got {len(text)}")
        settings[name] = _check_bound(
            name, options[name].parse(name, _parse_value(name, text, options[name].cli_type), model)
        )
    return settings


def default_settings(analysis: Analysis) -> dict[str, Any]:
    """Every setting that can be typed, and what it is unless it is."""
    return {name: analysis.settings[name].default for name in typeable_options(analysis) if name not in FILE_SETTINGS}


def _parse_value(name: str, text: str, value_type: Any) -> Any:
    if value_type in (bool,):
        if text not in ("true", "false", "1", "0"):
            raise RheoscopeError(f"{name} is true or false, got {text[:40]!r}")
        return text in ("true", "1")
    if value_type in (int, int | None):
        if not re.fullmatch(r"-?\d{1,10}", text):
            raise RheoscopeError(f"{name} is a whole number, got {text[:40]!r}")
        return int(text)
    if value_type in (float, float | None):
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise RheoscopeError(f"{name} is a number, got {text[:40]!r}")
        return number
    return text


def _check_bound(name: str, value: Any) -> Any:
    limit = MAX_INDEX if name in INDEX_SETTINGS else MAX_AMOUNT
    items = value if isinstance(value, list) else [value]
    if len(items) > MAX_AMOUNT or any(isinstance(item, int | float) and not abs(item) <= limit for item in items):
        raise RheoscopeError(f"{name} is larger than this server takes; {name} goes up to {limit}")
    return value

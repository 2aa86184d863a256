"""Settings of an analysis from a query string: read as the command reads its options, bounded, and never from a file."""

import math
import re
from collections.abc import Mapping
from typing import Any

from rheoscope.report.setting_options import options_of
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis
from rheoscope.space.model import Model

FILES = ("labels", "words")
"""Settings that name a file."""
NUMBERS = ("seed", "target", "token", "query", "key", "tokens")
"""Settings that name a thing by its number; every other number says how much work is asked for."""
MOST, LARGEST, LONGEST = 1000, 2**31 - 1, 2000


def settings_of(analysis: Analysis, typed: Mapping[str, str], model: Model) -> dict[str, Any]:
    """What was typed as settings; a name that there is not, or a value too large, is refused."""
    options = {name: one for name, one in options_of(analysis).items() if name not in FILES}
    found = {}
    for name, text in typed.items():
        if name not in options:
            known = ", ".join(options) or "none"
            raise RheoscopeError(f"{analysis.name} has no setting {name[:40]!r} here; it has {known}")
        if len(text) > LONGEST:
            raise RheoscopeError(f"{name} has at most {LONGEST} characters, got {len(text)}")
        found[name] = _bounded(name, options[name].read(name, _value(name, text, options[name].typed), model))
    return found


def defaults_of(analysis: Analysis) -> dict[str, Any]:
    """Every setting that can be typed, and what it is unless it is."""
    return {name: analysis.settings[name].default for name in options_of(analysis) if name not in FILES}


def _value(name: str, text: str, kind: Any) -> Any:
    if kind in (bool,):
        if text not in ("true", "false", "1", "0"):
            raise RheoscopeError(f"{name} is true or false, got {text[:40]!r}")
        return text in ("true", "1")
    if kind in (int, int | None):
        if not re.fullmatch(r"-?\d{1,10}", text):
            raise RheoscopeError(f"{name} is a whole number, got {text[:40]!r}")
        return int(text)
    if kind in (float, float | None):
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise RheoscopeError(f"{name} is a number, got {text[:40]!r}")
        return number
    return text


def _bounded(name: str, value: Any) -> Any:
    most = LARGEST if name in NUMBERS else MOST
    parts = value if isinstance(value, list) else [value]
    if len(parts) > MOST or any(isinstance(one, int | float) and not abs(one) <= most for one in parts):
        raise RheoscopeError(f"{name} is larger than this server takes; {name} goes up to {most}")
    return value

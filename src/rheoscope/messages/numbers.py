"""Numbers as a person reads them."""

import math
from collections.abc import Iterable

from rheoscope.messages.message import Message


def pluralise(count: int, noun: str) -> str:
    """How many of something.

    >>> pluralise(0, "head"), pluralise(1, "head"), pluralise(1200, "token")
    ('0 heads', '1 head', '1,200 tokens')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_fixed(value: float, digits: int = 2, sign: bool = False) -> str:
    """A number with so many digits, and no minus before a zero.

    >>> format_fixed(-0.001), format_fixed(0.25, 3, sign=True), format_fixed(float("nan"))
    ('0.00', '+0.250', 'none')
    >>> format_fixed(-0.25), format_fixed(-0.00001, 4, sign=True)
    ('-0.25', '0.0000')
    """
    if not math.isfinite(value):
        return "none" if math.isnan(value) else f"{'-' if value < 0 else ''}∞"
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return text[1:] if text[0] in "+-" and not text.strip("+-0.") else text


def format_number(value: float) -> str:
    """A number, short: .89, 12.3, 7, none.

    >>> [format_number(x) for x in (0.894, 12.34, 7.0, -0.001, 123.4, float("nan"))]
    ['.89', '12.3', '7', '.00', '123', 'none']
    """
    if not math.isfinite(value):
        return "none" if math.isnan(value) else f"{'-' if value < 0 else ''}∞"
    if abs(value) >= 100 or (abs(value) >= 2 and value == int(value)):
        return f"{value:.0f}"
    text = f"{value:.2f}" if abs(value) < 2 else f"{value:.1f}"
    text = text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text
    return ".00" if text == "-.00" else text


def format_change(first: float, last: float) -> str:
    """The first and the last number of a series.

    >>> format_change(0.894, 12.34)
    '.89 → 12.3'
    """
    return f"{format_number(first)} → {format_number(last)}"


def format_percent(share: float) -> str:
    """A share in percent.

    >>> format_percent(0.473), format_percent(0.004), format_percent(0.0), format_percent(float("nan"))
    ('47 %', '< 1 %', '0 %', 'none')
    """
    if not math.isfinite(share):
        return "none"
    return "< 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def format_small_percent(share: float) -> str:
    """A relative difference in percent, with a digit more if it is small.

    >>> format_small_percent(0.19), format_small_percent(0.0112), format_small_percent(0.00004)
    ('19 %', '1.1 %', '< 0.1 %')
    """
    if share >= 0.02:
        return format_percent(share)
    return "< 0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"


def percent_range(shares: Iterable[float]) -> str:
    """The central 90 % of shares, in percent.

    >>> percent_range([0.01 * n for n in range(101)])
    '5 to 95 %'
    """
    ordered = sorted(share for share in shares if math.isfinite(share))
    if not ordered:
        return "none"
    low, high = (ordered[round(place * (len(ordered) - 1))] for place in (0.05, 0.95))
    return Message("{low:.0f} to {high:.0f} %", low=100 * low, high=100 * high)

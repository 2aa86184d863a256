"""Numbers as a person reads them."""

import math


def plural(many: int, name: str) -> str:
    """How many of something.

    >>> plural(0, "head"), plural(1, "head"), plural(1200, "token")
    ('0 heads', '1 head', '1,200 tokens')
    """
    return f"{many:,} {name}" if many == 1 else f"{many:,} {name}s"


def fixed(value: float, digits: int = 2, sign: bool = False) -> str:
    """A number with so many digits, and no minus before a zero.

    >>> fixed(-0.001), fixed(-0.25), fixed(0.25, 3, sign=True), fixed(-0.00001, 4, sign=True), fixed(float("nan"))
    ('0.00', '-0.25', '+0.250', '0.0000', 'none')
    """
    if not math.isfinite(value):
        return "none" if math.isnan(value) else f"{'-' if value < 0 else ''}∞"
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return text[1:] if text[0] in "+-" and not text.strip("+-0.") else text


def short(value: float) -> str:
    """A number, short: .89, 12.3, 7, none.

    >>> short(0.894), short(12.34), short(7.0), short(-0.001), short(123.4), short(float("nan"))
    ('.89', '12.3', '7', '.00', '123', 'none')
    """
    if not math.isfinite(value):
        return "none" if math.isnan(value) else f"{'-' if value < 0 else ''}∞"
    if abs(value) >= 100 or (abs(value) >= 2 and value == int(value)):
        return f"{value:.0f}"
    text = f"{value:.2f}" if abs(value) < 2 else f"{value:.1f}"
    text = text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text
    return ".00" if text == "-.00" else text

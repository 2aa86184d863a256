"""Numbers as a person reads them."""

import math


def short(value: float) -> str:
    """A number, short: .89, 12.3, 7, none.

    >>> short(0.894), short(12.34), short(7.0), short(-0.001), short(123.4), short(float("nan"))
    ('.89', '12.3', '7', '.00', '123', 'none')
    """
    if not math.isfinite(value):
        return "none" if math.isnan(value) else "∞"
    if abs(value) >= 100 or (abs(value) >= 2 and value == int(value)):
        return f"{value:.0f}"
    text = f"{value:.2f}" if abs(value) < 2 else f"{value:.1f}"
    text = text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text
    return ".00" if text == "-.00" else text

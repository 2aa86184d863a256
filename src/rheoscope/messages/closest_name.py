"""The name that was probably meant, for "did you mean" advice."""

from collections.abc import Iterable
from difflib import get_close_matches


def closest_name(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The name that resembles `name` most, or None if none is similar.

    >>> closest_name("trajektory", ["trajectory", "transport"]), closest_name("zzz", ["trajectory"])
    ('trajectory', None)
    """
    return next(iter(get_close_matches(name, list(names), n=1, cutoff=cutoff)), None)

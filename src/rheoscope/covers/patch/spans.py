"""Named pieces of a text, and the tokens that hold them."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from jaxtyping import Bool
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError


def span_groups(tokens: Sequence[str], spans: Mapping[str, str]) -> Bool[Tensor, "s n"]:
    """The tokens that overlap each piece of the text. The k-th span with the same piece is its k-th occurrence.

    >>> span_groups(["<s>", "The", " men", " saw", " men"], {"subject": "men", "object": "men"}).int().tolist()
    [[0, 0, 1, 0, 0], [0, 0, 0, 0, 1]]
    """
    text = "".join(tokens)
    ends = torch.tensor([0, *accumulate(map(len, tokens))])
    next_start: dict[str, int] = {}
    rows = []
    for name, piece in spans.items():
        start = text.find(piece, next_start.get(piece, 0))
        if start < 0 or not piece.strip():
            raise RheoscopeError(
                Message("the text does not contain the span {name}: {piece!r}", name=name, piece=piece)
            )
        first = start + len(piece) - len(piece.lstrip())
        next_start[piece] = start + len(piece)
        rows.append((ends[1:] > first) & (ends[:-1] < start + len(piece.rstrip())))
    return torch.stack(rows)

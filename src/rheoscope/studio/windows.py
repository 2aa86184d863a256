"""A text longer than a model reads, or than a server takes, one window at a time; the last is as long as what is left."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from rheoscope.report.long_texts import around
from rheoscope.running.runner import Running
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Text


@dataclass(frozen=True)
class Window:
    """Window `at` of `of`: the text's own tokens `first` to `last` of `tokens`, counted from 1; `said` is what the model reads."""

    at: int
    of: int
    first: int
    last: int
    tokens: int
    said: Text = field(repr=False, compare=False)

    @property
    def in_words(self) -> str:
        return f"tokens {self.first} to {self.last} of {self.tokens}"

    @property
    def told(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "said"}


def window_of(model: Running, text: str, most: int, at: int | None) -> Window | None:
    """Window `at` of a text (the first, unless another is asked for); None where all of it is read at once.

    What the tokenizer puts before and after a text stands before and after every window and counts as its tokens.
    """
    room = min(most, model.view.context or most)
    ids = model.ids(text).tolist() if model.tokenizer is None else model.encode(text)
    if len(ids) <= room:
        if at not in (None, 1):
            raise RheoscopeError(f"the text is read whole, in one window, got window {at}; type window 1")
        return None
    before, inner, after = around(model, ids)
    own = room - len(before) - len(after)
    of = -(-len(inner) // own)
    at = 1 if at is None else at
    if not 1 <= at <= of:
        raise RheoscopeError(f"the text has {of} windows of {room:,} tokens, got window {at}; type window 1 to {of}")
    start = (at - 1) * own
    part = inner[start : start + own]
    return Window(at, of, start + 1, start + len(part), len(inner), torch.tensor([*before, *part, *after]))

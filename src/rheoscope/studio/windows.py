"""A text longer than a model reads, or than a server takes, one window at a time; the last is as long as what is left."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from rheoscope.report.long_texts import split_special_tokens
from rheoscope.running.runner import RunnableModel
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
    model_input: Text = field(repr=False, compare=False)

    @property
    def description(self) -> str:
        return f"tokens {self.first} to {self.last} of {self.tokens}"

    @property
    def json_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "model_input"}


def select_window(model: RunnableModel, text: str, max_tokens: int, window_number: int | None) -> Window | None:
    """Window `at` of a text (the first, unless another is asked for); None where all of it is read at once.

    What the tokenizer puts before and after a text stands before and after every window and counts as its tokens.
    """
    window_size = min(max_tokens, model.view.context_length or max_tokens)
    token_ids = model.ids(text).tolist() if model.tokenizer is None else model.encode(text)
    if len(token_ids) <= window_size:
        if window_number not in (None, 1):
            raise RheoscopeError(f"the text is read whole, in one window, got window {window_number}; type window 1")
        return None
    prefix_ids, text_ids, suffix_ids = split_special_tokens(model, token_ids)
    text_tokens = window_size - len(prefix_ids) - len(suffix_ids)
    n_windows = -(-len(text_ids) // text_tokens)
    window_number = 1 if window_number is None else window_number
    if not 1 <= window_number <= n_windows:
        raise RheoscopeError(
            f"the text has {n_windows} windows of {window_size:,} tokens, got window {window_number}; type window 1 to {n_windows}"
        )
    start = (window_number - 1) * text_tokens
    window_ids = text_ids[start : start + text_tokens]
    return Window(
        window_number,
        n_windows,
        start + 1,
        start + len(window_ids),
        len(text_ids),
        torch.tensor([*prefix_ids, *window_ids, *suffix_ids]),
    )

"""Windows of a long text: consecutive runs of tokens that fit the model and the limit of the server."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from rheoscope.messages.advice import page_setting
from rheoscope.messages.message import Message
from rheoscope.report.long_texts import split_special_tokens
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Text


@dataclass(frozen=True)
class Window:
    """Window `number` of `total`, with the tokens `first` to `last` of `tokens`. All of them count from 1.

    `model_input` are the token ids that the model reads: the window between the special tokens of the tokenizer.
    """

    number: int
    total: int
    first: int
    last: int
    tokens: int
    model_input: Text = field(repr=False, compare=False)

    @property
    def description(self) -> Message:
        return Message("tokens {first}–{last} of {tokens}", first=self.first, last=self.last, tokens=self.tokens)

    @property
    def json_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "model_input"}


def select_window(model: RunnableModel, text: str, max_tokens: int, window_number: int | None) -> Window | None:
    """Window `window_number` of a text (default 1), or None if the text fits into one window.

    Every window has the special tokens that the tokenizer puts around a text. They count toward `max_tokens`.
    """
    window_size = min(max_tokens, model.view.context_length or max_tokens)
    token_ids = model.ids(text).tolist() if model.tokenizer is None else model.encode(text)
    if len(token_ids) <= window_size:
        if window_number not in (None, 1):
            raise RheoscopeError(
                Message("the text fits into one window, got window {received}", received=window_number),
                page_setting("window=1"),
            )
        return None
    prefix_ids, text_ids, suffix_ids = split_special_tokens(model, token_ids)
    text_tokens = window_size - len(prefix_ids) - len(suffix_ids)
    n_windows = -(-len(text_ids) // text_tokens)
    window_number = 1 if window_number is None else window_number
    if not 1 <= window_number <= n_windows:
        raise RheoscopeError(
            Message(
                "window must lie between 1 and {count}, got {received}; each window has {size:,} tokens",
                count=n_windows,
                received=window_number,
                size=window_size,
            ),
            page_setting("window=1"),
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

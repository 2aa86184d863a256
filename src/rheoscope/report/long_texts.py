"""Texts that are longer than a model reads: the first tokens of them, or all of them in pieces of one length."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rheoscope.report.input_text import format_size
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Text

MIN_WINDOW_TOKENS = 16
"""Tokens of a piece, below which most analyses have nothing to say."""
MAX_WINDOWS = 1000
"""Pieces beyond which nobody waits for the end."""
QUICK_CHARS = 2**20
"""Letters that are tokenised in a moment."""
CHARS_PER_TOKEN = 16
"""Letters of a text for every token that a model reads: a text is looked at so far before it is tokenised whole."""


@dataclass(frozen=True)
class TextWindows:
    """What of a text is analysed: one text as it was typed, one that was cut, or several; `left` tokens are in none."""

    texts: Sequence[Text]
    n_tokens: int = 0
    n_dropped: int = 0

    @property
    def description(self) -> str:
        """Several pieces in words.

        >>> TextWindows([torch.arange(16)] * 3, 50, 2).description
        '50 tokens in 3 pieces of 16, the last 2 left out'
        """
        dropped_note = f", the last {self.n_dropped} left out" if self.n_dropped else ""
        return f"{self.n_tokens:,} tokens in {len(self.texts):,} pieces of {len(self.texts[0]):,}{dropped_note}"


def split_into_windows(
    model: RunnableModel, text: str, n_first: int | None, window_size: int | None = None, allows_windows: bool = True
) -> TextWindows:
    """A text as it is where the model reads all of it; its first tokens, or pieces, where that was typed; else it is refused.

    What the tokenizer puts before and after a text stands before and after each piece and counts as its tokens. `pieces` says
    whether the command knows --window.
    """
    context = model.view.context_length
    _check_window_size(window_size, context)
    n_wanted = n_first if n_first is not None else None if window_size else context
    ids, is_complete = _encode_start(model, text, n_wanted)
    if n_first is None and window_size is None:
        if context is not None and len(ids) > context:
            raise RheoscopeError(_too_long_message(len(ids), is_complete, text, context, allows_windows))
        return TextWindows([text], len(ids))
    prefix, body, suffix = split_special_tokens(model, ids)
    if n_first is not None:
        body = body[: max(1, n_first - len(prefix) - len(suffix))]
    tokens_per_window = len(body) if window_size is None else window_size - len(prefix) - len(suffix)
    n_windows = 1 if window_size is None or len(body) <= tokens_per_window else len(body) // tokens_per_window
    if n_windows > MAX_WINDOWS:
        raise RheoscopeError(
            f"{len(ids):,} tokens are {n_windows:,} pieces of {window_size}, expected {MAX_WINDOWS:,} at "
            f"most; type --first {MAX_WINDOWS * tokens_per_window} as well"
        )
    texts = [
        torch.tensor([*prefix, *window_ids, *suffix])
        for window_ids in _window_slices(body, tokens_per_window, n_windows)
    ]
    if context is not None and len(texts[0]) > context:
        raise RheoscopeError(
            f"the model reads at most {context:,} tokens, got --first {n_first}; type --first {context}"
        )
    return TextWindows(texts, len(prefix) + len(body) + len(suffix), max(0, len(body) - tokens_per_window * n_windows))


def truncate_text(model: RunnableModel, text: str, n_first: int | None) -> Text:
    """The text, or its first tokens: for commands that are about one text."""
    return split_into_windows(model, text, n_first, allows_windows=False).texts[0]


def split_special_tokens(model: RunnableModel, ids: list[int]) -> tuple[list[int], list[int], list[int]]:
    """The ids of a text as what the tokenizer puts before any text, the text's own, and what it puts after."""
    return split_by_special_ids(model.encode(""), ids)


def split_by_special_ids(special_ids: list[int], ids: list[int]) -> tuple[list[int], list[int], list[int]]:
    """The same, where `bare` are the ids of no text at all.

    >>> split_by_special_ids([1, 2], [1, 7, 8, 2])
    ([1], [7, 8], [2])
    """
    n_prefix = next(
        (
            index
            for index, (special_id, token_id) in enumerate(zip(special_ids, ids, strict=False))
            if special_id != token_id
        ),
        min(len(special_ids), len(ids)),
    )
    suffix = special_ids[n_prefix:] if ids[len(ids) - len(special_ids) + n_prefix :] == special_ids[n_prefix:] else []
    return special_ids[:n_prefix], ids[n_prefix : len(ids) - len(suffix)], suffix


def _window_slices(body: list[int], tokens_per_window: int, n_windows: int) -> list[list[int]]:
    return [body[index * tokens_per_window : (index + 1) * tokens_per_window] for index in range(n_windows)]


def _check_window_size(window_size: int | None, context: int | None) -> None:
    max_window = context or window_size or MIN_WINDOW_TOKENS
    if window_size is not None and not MIN_WINDOW_TOKENS <= window_size <= max_window:
        raise RheoscopeError(
            f"a piece has {MIN_WINDOW_TOKENS} to {max_window:,} tokens, got --window {window_size}; type --window {min(512, max_window)}"
        )


def _encode_start(model: RunnableModel, text: str, n_wanted: int | None) -> tuple[list[int], bool]:
    """The ids of a text, and whether of all of it: where its beginning has more tokens than are wanted, the rest is not looked at."""
    if model.tokenizer is None:
        return model.ids(text).tolist(), True
    n_chars = len(text) if n_wanted is None else min(len(text), max(QUICK_CHARS, CHARS_PER_TOKEN * n_wanted))
    while n_chars < len(text):
        ids = model.encode(text[:n_chars])
        if n_wanted is not None and len(ids) > n_wanted + 8:  # what is cut may end in other tokens than the whole
            return ids[:-4], False
        n_chars = min(len(text), 4 * n_chars)
    return model.encode(text), True


def _too_long_message(n_tokens: int, is_complete: bool, text: str, context: int, allows_windows: bool) -> str:
    length_text = f"{n_tokens:,} tokens" if is_complete else f"{format_size(len(text))}, more than {context:,} tokens"
    window_advice = f", or --window {min(512, context)} to analyse all of it in pieces" if allows_windows else ""
    return f"the text has {length_text}, the model reads at most {context:,}; type --first {context}{window_advice}"

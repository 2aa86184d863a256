"""Texts that are longer than the context: their first tokens, or windows of equal length."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.report.input_text import format_size
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Text

MIN_WINDOW_TOKENS = 16
"""The smallest window. Most analyses need this many tokens."""
MAX_WINDOWS = 1000
"""The largest number of windows."""
QUICK_CHARS = 2**20
"""The number of characters that are always tokenised."""
CHARS_PER_TOKEN = 16
"""Characters per requested token that are tokenised first, before the whole text is."""


@dataclass(frozen=True)
class TextWindows:
    """The parts of a text that are analysed: the text, its first tokens, or windows. `n_dropped` tokens are in none."""

    texts: Sequence[Text]
    n_tokens: int = 0
    n_dropped: int = 0

    @property
    def description(self) -> Message:
        """The number of windows and their size.

        >>> TextWindows([torch.arange(16)] * 3, 50, 2).description
        '50 tokens in 3 windows of 16, the last 2 left out'
        """
        sizes = {"tokens": self.n_tokens, "windows": len(self.texts), "size": len(self.texts[0])}
        if not self.n_dropped:
            return Message("{tokens:,} tokens in {windows:,} windows of {size:,}", **sizes)
        return Message(
            "{tokens:,} tokens in {windows:,} windows of {size:,}, the last {dropped} left out",
            dropped=self.n_dropped,
            **sizes,
        )


def split_into_windows(
    model: RunnableModel, text: str, n_first: int | None, window_size: int | None = None, allows_windows: bool = True
) -> TextWindows:
    """The text, its first `n_first` tokens or its windows. Raises if the text is longer than the context.

    The special tokens of the tokenizer start and end every window and count as its tokens. `allows_windows` is False if the
    command has no option --window.
    """
    context = model.view.context_length
    _check_window_size(window_size, context)
    n_wanted = n_first if n_first is not None else None if window_size else context
    ids, is_complete = _encode_start(model, text, n_wanted)
    if n_first is None and window_size is None:
        if context is not None and len(ids) > context:
            raise _too_long(len(ids), is_complete, text, context, allows_windows)
        return TextWindows([text], len(ids))
    prefix, body, suffix = split_special_tokens(model, ids)
    if n_first is not None:
        body = body[: max(1, n_first - len(prefix) - len(suffix))]
    tokens_per_window = len(body) if window_size is None else window_size - len(prefix) - len(suffix)
    n_windows = 1 if window_size is None or len(body) <= tokens_per_window else len(body) // tokens_per_window
    if n_windows > MAX_WINDOWS:
        raise RheoscopeError(
            Message(
                "{tokens:,} tokens are {windows:,} windows of {size}, expected at most {limit:,}",
                tokens=len(ids),
                windows=n_windows,
                size=window_size,
                limit=MAX_WINDOWS,
            ),
            Advice("", f"--window {window_size} --first {MAX_WINDOWS * tokens_per_window}"),
        )
    texts = [
        torch.tensor([*prefix, *window_ids, *suffix])
        for window_ids in _window_slices(body, tokens_per_window, n_windows)
    ]
    if context is not None and len(texts[0]) > context:
        raise RheoscopeError(
            Message("the model reads at most {context:,} tokens, got --first {n}", context=context, n=n_first),
            Advice("", f"--first {context}"),
        )
    return TextWindows(texts, len(prefix) + len(body) + len(suffix), max(0, len(body) - tokens_per_window * n_windows))


def truncate_text(model: RunnableModel, text: str, n_first: int | None) -> Text:
    """The text or its first tokens, for commands without windows."""
    return split_into_windows(model, text, n_first, allows_windows=False).texts[0]


def split_special_tokens(model: RunnableModel, ids: list[int]) -> tuple[list[int], list[int], list[int]]:
    """The ids of a text in three parts: special tokens before it, its own tokens, special tokens after it."""
    return split_by_special_ids(model.encode(""), ids)


def split_by_special_ids(special_ids: list[int], ids: list[int]) -> tuple[list[int], list[int], list[int]]:
    """The same, given the ids of the empty text.

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
    if context is None and window_size is not None and window_size < MIN_WINDOW_TOKENS:
        raise RheoscopeError(
            Message("a window has at least {low} tokens, got {size}", low=MIN_WINDOW_TOKENS, size=window_size),
            Advice("", f"--window {MIN_WINDOW_TOKENS}"),
        )
    max_window = context or window_size or MIN_WINDOW_TOKENS
    if window_size is not None and not MIN_WINDOW_TOKENS <= window_size <= max_window:
        raise RheoscopeError(
            Message(
                "a window has {low} to {high:,} tokens, got {size}",
                low=MIN_WINDOW_TOKENS,
                high=max_window,
                size=window_size,
            ),
            Advice("", f"--window {min(512, max_window)}"),
        )


def _encode_start(model: RunnableModel, text: str, n_wanted: int | None) -> tuple[list[int], bool]:
    """The ids of a text and whether they are complete. Stops once there are more than `n_wanted` tokens."""
    if model.tokenizer is None:
        return model.ids(text).tolist(), True
    n_chars = len(text) if n_wanted is None else min(len(text), max(QUICK_CHARS, CHARS_PER_TOKEN * n_wanted))
    while n_chars < len(text):
        ids = model.encode(text[:n_chars])
        if n_wanted is not None and len(ids) > n_wanted + 8:  # the last tokens of a truncated text may differ
            return ids[:-4], False
        n_chars = min(len(text), 4 * n_chars)
    return model.encode(text), True


def _too_long(n_tokens: int, is_complete: bool, text: str, context: int, allows_windows: bool) -> RheoscopeError:
    problem = (
        Message("the text has {n:,} tokens, the model reads at most {context:,}", n=n_tokens, context=context)
        if is_complete
        else Message("the text has {size}, more than {context:,} tokens", size=format_size(len(text)), context=context)
    )
    windows = f", or --window {min(512, context)} to analyse all of it" if allows_windows else ""
    return RheoscopeError(problem, Advice("", f"--first {context}{windows}"))

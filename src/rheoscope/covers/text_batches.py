"""Texts cut into windows and batched, with their losses in the unchanged model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import logits_numel
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model, as_text_list
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

WindowIds = Int[Tensor, " _"]
"""The token ids of one window. Windows may differ in length."""
OnProgress = Callable[[int, int], None]
"""Called with the number of finished steps and the total."""


def split_into_windows(model: Model, text: Any, window: int = 512) -> list[WindowIds]:
    """The token ids of one or several texts, cut into windows of 2 to `window` tokens.

    >>> import rheoscope as rs
    >>> [len(ids) for ids in split_into_windows(rs.load(), list(range(10)), window=4)]
    [4, 4, 2]
    """
    if window < 2:
        raise RheoscopeError(
            Message("window must be at least {low} tokens, got {received}", low=2, received=window), use(window=512)
        )
    longest = min(window, model.view.context_length or window)
    all_windows = [ids for single_text in as_text_list(text) for ids in _token_ids(model, single_text).split(longest)]
    windows = [ids for ids in all_windows if len(ids) > 1]
    if not windows:
        raise RheoscopeError(Message("a loss needs at least 2 tokens; use a longer text"))
    return windows


def _token_ids(model: Model, text: Any) -> Int[Tensor, " n"]:
    """The token ids of a text, which may be longer than the context of the model."""
    if isinstance(text, str) and text and model.tokenizer is not None:
        return torch.tensor(model.encode(text)).long()
    return model.ids(text)


@dataclass(frozen=True, eq=False)
class Batch:
    """Windows of one length as a batch, with their Traces and logits in the unchanged model.

    `window_indices` are their indices among all windows. `is_included` marks the tokens in the mean of each cloud. `losses_before` are
    the losses of the next tokens.
    """

    window_indices: list[int]
    ids: Int[Tensor, "b n"]
    traces: Traces
    logits: Float[Tensor, "b n vocabulary"]
    is_included: Bool[Tensor, "b n"]
    losses_before: Float[Tensor, "b m"]


def window_batches(model: Model, windows: list[WindowIds]) -> Iterator[Batch]:
    """All windows in batches of equal length, as large as memory allows."""
    for length in sorted({len(ids) for ids in windows}, reverse=True):
        window_indices = [index for index, ids in enumerate(windows) if len(ids) == length]
        batch_size = max_texts(model, length)
        for start in range(0, len(window_indices), batch_size):
            yield open_batch(model, windows, window_indices[start : start + batch_size])


def measure_windows(
    model: Model, windows: list[WindowIds], measure: Callable[[Batch], dict[int, Any]], progress: OnProgress | None
) -> list[Any]:
    """Measurements of every window, made batch by batch and returned in the order of the windows."""
    results: dict[int, Any] = {}
    for batch in window_batches(model, windows):
        results |= measure(batch)
        if progress is not None:
            progress(len(results), len(windows))
    return [results[index] for index in range(len(windows))]


def max_texts(model: Model, length: int) -> int:
    """The number of texts of a length whose logits fit in memory."""
    return max(1, logits_numel(model.device) // (length * len(model.view.embed)))


def open_batch(model: Model, windows: list[WindowIds], window_indices: list[int]) -> Batch:
    """The batch of some windows of one length, run in the unchanged model."""
    ids = torch.stack([windows[index] for index in window_indices]).to(model.view.embed.device)
    traces = model.trace([windows[index] for index in window_indices], logits=True)
    assert traces.logits is not None
    is_included = torch.stack([included_tokens(trace) for trace in traces])
    return Batch(window_indices, ids, traces, traces.logits, is_included, next_token_losses(traces.logits, ids))


def included_tokens(trace: Trace) -> Bool[Tensor, " n"]:
    """The tokens in the mean of a cloud: those that are not massive, or all if every token is massive."""
    is_included = torch.ones(len(trace), dtype=torch.bool, device=trace.points.device)
    is_included[trace.massive_tokens()] = False
    return is_included if bool(is_included.any()) else ~is_included


def next_token_losses(logits: Float[Tensor, "*b n vocabulary"], ids: Int[Tensor, "*b n"]) -> Float[Tensor, "*b m"]:
    """−log p of every next token, in float32 or better."""
    rows, next_ids = at_least_float32(logits[..., :-1, :]).reshape(-1, logits.shape[-1]), ids[..., 1:].to(logits.device)
    return torch.nn.functional.cross_entropy(rows, next_ids.reshape(-1), reduction="none").reshape(next_ids.shape)


def mean_kl(
    logits_before: Float[Tensor, "*b n vocabulary"], logits_after: Float[Tensor, "*b n vocabulary"]
) -> Float[Tensor, "*b"]:
    """The mean over tokens of KL(before ‖ after)."""
    return token_kl(logits_before, logits_after).mean(-1)


def token_kl(
    logits_before: Float[Tensor, "*b n vocabulary"], logits_after: Float[Tensor, "*b n vocabulary"]
) -> Float[Tensor, "*b n"]:
    """KL(before ‖ after) of the prediction at every token."""
    p, q = (at_least_float32(x).log_softmax(-1) for x in (logits_before, logits_after))
    return torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1)

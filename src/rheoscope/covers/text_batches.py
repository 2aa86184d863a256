"""Texts as pieces that a model reads side by side: what they are before anything is changed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import logits_at_once
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model, as_list
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

Piece = Int[Tensor, " _"]
"""Token ids; every piece may have a length of its own."""
Progress = Callable[[int, int], None]
"""Told how much of how much is done."""


def pieces(model: Model, text: Any, window: int = 512) -> list[Piece]:
    """A text, or a list of texts, as ids cut into pieces of at most `window` tokens, each long enough to predict one.

    >>> import rheoscope as rs
    >>> [len(one) for one in pieces(rs.load(), list(range(10)), window=4)]
    [4, 4, 2]
    """
    if window < 2:
        raise RheoscopeError(f"a window has at least 2 tokens, got {window}; type window=512")
    longest = min(window, model.view.context or window)
    cut = [piece for one in as_list(text) for piece in _ids(model, one).split(longest)]
    found = [piece for piece in cut if len(piece) > 1]
    if not found:
        raise RheoscopeError("a loss needs at least 2 tokens; type a longer text")
    return found


def _ids(model: Model, text: Any) -> Int[Tensor, " n"]:
    """Ids of a text that may be longer than the model's context: it is cut afterwards."""
    if isinstance(text, str) and text and model.tokenizer is not None:
        return torch.tensor(model.encode(text)).long()
    return model.ids(text)


@dataclass(frozen=True, eq=False)
class Batch:
    """Pieces of one length side by side, and what the model makes of them as it is.

    `which` are their numbers, `kept` the tokens that make the mean of each one's cloud, `before` the losses of their next tokens.
    """

    which: list[int]
    ids: Int[Tensor, "b n"]
    traces: Traces
    logits: Float[Tensor, "b n vocabulary"]
    kept: Bool[Tensor, "b n"]
    before: Float[Tensor, "b m"]


def batches(model: Model, cut: list[Piece]) -> Iterator[Batch]:
    """All pieces, those of one length together, as many as there is room for."""
    for length in sorted({len(piece) for piece in cut}, reverse=True):
        which = [at for at, piece in enumerate(cut) if len(piece) == length]
        most = most_texts(model, length)
        for first in range(0, len(which), most):
            yield opened(model, cut, which[first : first + most])


def measured(
    model: Model, cut: list[Piece], measure: Callable[[Batch], dict[int, Any]], progress: Progress | None
) -> list[Any]:
    """What is measured of every piece (by its number), batch after batch, in the order of the pieces."""
    found: dict[int, Any] = {}
    for batch in batches(model, cut):
        found |= measure(batch)
        if progress is not None:
            progress(len(found), len(cut))
    return [found[at] for at in range(len(cut))]


def most_texts(model: Model, length: int) -> int:
    """How many texts of a length there is room for at once."""
    return max(1, logits_at_once(model.device) // (length * len(model.view.embed)))


def opened(model: Model, cut: list[Piece], which: list[int]) -> Batch:
    """Pieces of one length, run as they are."""
    ids = torch.stack([cut[at] for at in which]).to(model.view.embed.device)
    traces = model.trace([cut[at] for at in which], logits=True)
    assert traces.logits is not None
    kept = torch.stack([kept_tokens(trace) for trace in traces])
    return Batch(which, ids, traces, traces.logits, kept, losses(traces.logits, ids))


def kept_tokens(trace: Trace) -> Bool[Tensor, " n"]:
    """Which tokens make the mean of a cloud: those that are not massive, or all where none is left."""
    kept = torch.ones(len(trace), dtype=torch.bool, device=trace.points.device)
    kept[trace.massive()] = False
    return kept if bool(kept.any()) else ~kept


def losses(logits: Float[Tensor, "*b n vocabulary"], ids: Int[Tensor, "*b n"]) -> Float[Tensor, "*b m"]:
    """−log p of every next token, in float32 or better."""
    rows, next_ids = exact(logits[..., :-1, :]).reshape(-1, logits.shape[-1]), ids[..., 1:].to(logits.device)
    return torch.nn.functional.cross_entropy(rows, next_ids.reshape(-1), reduction="none").reshape(next_ids.shape)


def divergence(
    before: Float[Tensor, "*b n vocabulary"], after: Float[Tensor, "*b n vocabulary"]
) -> Float[Tensor, "*b"]:
    """Mean over tokens of KL(before ‖ after)."""
    p, q = (exact(x).log_softmax(-1) for x in (before, after))
    return torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1).mean(-1)

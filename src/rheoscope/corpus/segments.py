"""Segments of texts: tokenised, cut or packed to a length, and batched by similar length.

A segment starts and ends as the tokenizer starts and ends any text, so its numbers equal those of `model.trace` on
it alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from rheoscope.corpus.input_texts import Row
from rheoscope.messages.message import Message
from rheoscope.report.long_texts import split_by_special_ids
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError

MAX_FILES, MAX_ROWS, MAX_SEGMENTS = 2**16, 2**32, 2**15
"""The numbers of files, rows and segments that a text id can distinguish, 63 bits together."""
ROWS_PER_BATCH = 64
"""The number of rows passed to the tokenizer at once."""


@dataclass(frozen=True, eq=False)
class Segment:
    """A text as the model reads it.

    `text_id` depends only on the input. The text starts at token `first_token` of row `row`.
    """

    text_id: int
    row: int
    first_token: int
    ids: Int[Tensor, " n"]


@dataclass(frozen=True)
class Reject:
    """A row of an input file, or a segment of it, that has no results, and the reason."""

    row: int
    reason: str
    first_token: int = 0
    analysis: str = ""


@runtime_checkable
class SegmentSettings(Protocol):
    """How texts become segments: between `least` and `length` tokens each.

    With `pack`, rows are joined by `join` first.
    """

    @property
    def length(self) -> int: ...
    @property
    def least(self) -> int: ...
    @property
    def pack(self) -> bool: ...
    @property
    def join(self) -> str: ...


def text_id(file: int, row: int, segment: int) -> int:
    """The id of a text. Later files, rows and segments have larger ids.

    >>> text_id(0, 0, 1) < text_id(0, 1, 0) < text_id(1, 0, 0) < 2**63
    True
    """
    return (file * MAX_ROWS + row) * MAX_SEGMENTS + segment


def cut_segments(
    model: RunnableModel, file: int, rows: Iterable[Row], settings: SegmentSettings
) -> tuple[list[Segment], list[Reject]]:
    """The segments of some rows, and the rejects."""
    segments: list[Segment] = []
    rejects: list[Reject] = []
    empty_ids = model.encode("")
    prefix, _, suffix = split_by_special_ids(empty_ids, model.encode("a"))
    content_length = settings.length - len(prefix) - len(suffix)
    texts = _tokenise(model, empty_ids, rows, settings, rejects)
    for row, first_token, segment_index, content_ids in (
        _packed_segments(texts, content_length) if settings.pack else _segments_per_text(texts, content_length)
    ):
        ids = torch.tensor([*prefix, *content_ids, *suffix])
        if len(ids) < settings.least:
            rejects.append(Reject(row, Message("fewer than {least} tokens", least=settings.least), first_token))
        elif segment_index >= MAX_SEGMENTS:
            rejects.append(Reject(row, Message("more than {n:,} segments", n=MAX_SEGMENTS), first_token))
        else:
            segments.append(Segment(text_id(file, row, segment_index), row, first_token, ids))
    return segments, rejects


def _tokenise(
    model: RunnableModel, empty_ids: list[int], rows: Iterable[Row], settings: SegmentSettings, rejects: list[Reject]
) -> Iterator[tuple[int, list[int]]]:
    """(row, the tokens of its text without special tokens)."""
    remaining = iter(rows)
    while chunk := list(islice(remaining, ROWS_PER_BATCH)):
        rejects += [Reject(row.number, row.reason) for row in chunk if row.reason]
        usable = [row for row in chunk if not row.reason]
        for row, ids in zip(
            usable, _encode(model, [row.text + settings.join * settings.pack for row in usable]), strict=True
        ):
            content_ids = [] if isinstance(ids, RheoscopeError) else split_by_special_ids(empty_ids, ids)[1]
            if content_ids:
                yield row.number, content_ids
            else:
                reason = ids.message if isinstance(ids, RheoscopeError) else Message("no tokens")
                rejects.append(Reject(row.number, reason))


def _encode(model: RunnableModel, texts: list[str]) -> list[list[int] | RheoscopeError]:
    """The ids of every text, or the error for a text that cannot be encoded."""
    try:
        return [*model.encode_batch(texts)]
    except RheoscopeError as error:
        if len(texts) == 1:
            return [error]
    return [ids for text in texts for ids in _encode(model, [text])]


def _segments_per_text(
    texts: Iterable[tuple[int, list[int]]], content_length: int
) -> Iterator[tuple[int, int, int, list[int]]]:
    """(row, first token, number of the segment, its tokens), text by text."""
    for row, content_ids in texts:
        for index, start in enumerate(range(0, len(content_ids), content_length)):
            yield row, start, index, content_ids[start : start + content_length]


def _packed_segments(
    texts: Iterable[tuple[int, list[int]]], content_length: int
) -> Iterator[tuple[int, int, int, list[int]]]:
    """The same for all texts joined. A segment belongs to the row in which it starts."""
    pending: list[int] = []
    segment_start, index = (0, 0), 0
    for row, content_ids in texts:
        start = 0
        while start < len(content_ids):
            if not pending:
                index = index + 1 if segment_start[0] == row and start else 0
                segment_start = row, start
            chunk = content_ids[start : start + content_length - len(pending)]
            pending, start = pending + chunk, start + len(chunk)
            if len(pending) == content_length:
                yield *segment_start, index, pending
                pending = []
    if pending:
        yield *segment_start, index, pending


def batches(segments: Sequence[Segment], max_tokens: int) -> Iterator[list[Segment]]:
    """Segments of similar length together, shortest first, with at most `max_tokens` tokens including padding.

    >>> segments = [Segment(number, number, 0, torch.arange(n)) for number, n in enumerate([5, 2, 5, 3])]
    >>> [[len(segment.ids) for segment in batch] for batch in batches(segments, 10)]
    [[2, 3], [5, 5]]
    """
    batch: list[Segment] = []
    for segment in sorted(segments, key=lambda candidate: (len(candidate.ids), candidate.text_id)):
        if batch and (len(batch) + 1) * len(segment.ids) > max_tokens:
            yield batch
            batch = []
        batch.append(segment)
    if batch:
        yield batch

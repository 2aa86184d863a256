"""The small fixed batch on which the monitor measures: a few texts of equal length."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.runner import RunnableModel
from rheoscope.running.token_ids import as_token_ids
from rheoscope.shapes import RheoscopeError
from rheoscope.space.view import View

MAX_TEXTS, MAX_TOKENS = 4, 64
"""The largest batch: 4 texts of 64 tokens."""
MIN_TOKENS = 10
"""Agreement needs a query with 8 earlier keys."""


def texts_of(batch: Any) -> list[Int[Tensor, " n"]] | None:
    """The texts of a training batch: of `input_ids`, of the first of several tensors, or of examples; None if there are none.

    >>> [len(text) for text in texts_of({"input_ids": torch.ones(2, 3, dtype=torch.long)})]
    [3, 3]
    """
    if isinstance(batch, Mapping):
        if "input_ids" not in batch:
            return None
        ids = torch.as_tensor(batch["input_ids"])
        mask = torch.as_tensor(batch.get("attention_mask", torch.ones_like(ids))).bool()
        rows = zip(ids, mask, strict=True) if ids.ndim == 2 else [(ids, mask)]
        return [row[is_token] for row, is_token in rows]
    if isinstance(batch, Tensor):
        is_ids = batch.ndim == 2 and not batch.is_floating_point()
        return list(batch.long()) if is_ids else None
    if isinstance(batch, Sequence) and len(batch):
        first = texts_of(batch[0])
        if not isinstance(batch[0], Mapping):
            return first
        return None if first is None else [text for example in batch for text in texts_of(example) or []]
    return None


def random_texts(view: View) -> list[Int[Tensor, " n"]]:
    """Random tokens, the same in every run, for a training whose batches the monitor does not see."""
    if not view.reads_tokens:
        raise RheoscopeError(
            Message("this model reads no tokens, so the monitor needs a batch"),
            Advice("rs.Monitor(model, texts=[pixels])"),
        )
    length = min(MAX_TOKENS, view.context_length or MAX_TOKENS)
    generator = torch.Generator().manual_seed(0)
    return list(torch.randint(len(view.embed), (MAX_TEXTS, length), generator=generator))


def fixed_batch(model: RunnableModel, texts: Sequence[Any]) -> list[Any]:
    """The first texts, cut to the length of the shortest of them. Inputs of models without tokens stay as they are."""
    if isinstance(texts, str):
        texts = [texts]
    if not model.view.reads_tokens:
        return list(texts)[:MAX_TEXTS]
    rows = [model.ids(text if isinstance(text, str) else as_token_ids(text)) for text in list(texts)[:MAX_TEXTS]]
    length = min([MAX_TOKENS, *map(len, rows)])
    if length < MIN_TOKENS:
        raise RheoscopeError(
            Message(
                "the texts of the monitor need at least {minimum} tokens, got {length}",
                minimum=MIN_TOKENS,
                length=length,
            )
        )
    return [row[:length] for row in rows]

"""Token ids from the forms in which people have them: a list, an array, a tensor, or the output of a tokenizer."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError


def as_token_ids(text: Any) -> Int[Tensor, " n"]:
    """Token ids from a list, an array, a tensor of integers or the output of a tokenizer; raises for anything else.

    A tensor (1, n) is one text. Padding, which the attention mask of a tokenizer marks, is left out.
    """
    if isinstance(text, Mapping) and "input_ids" in text:
        all_ids, is_token = as_token_ids(text["input_ids"]), torch.as_tensor(text.get("attention_mask", True)).bool()
        return all_ids[is_token.reshape(-1)] if is_token.numel() == len(all_ids) else all_ids
    try:
        ids = torch.as_tensor(text)
        ids = ids[0] if isinstance(text, Tensor) and ids.ndim == 2 and len(ids) == 1 else ids
    except (TypeError, ValueError, RuntimeError):
        ids = None
    if ids is not None and ids.ndim == 1 and not len(ids):
        return ids.long()
    if ids is None or ids.ndim != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype is torch.bool:
        received = (
            type(text).__name__
            if ids is None
            else Message("{dtype} of shape {shape}", dtype=str(ids.dtype), shape=str(tuple(ids.shape)))
        )
        raise RheoscopeError(
            Message("a text must be a string or a list of token ids, got {received}", received=received),
            Advice("model.trace([1, 2, 3])"),
        )
    return ids.long().cpu()

"""The cost of edits: how far they change the predictions of a text, and its loss before and after."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.predictions import next_token_logprobs
from rheoscope.space.trace import Trace

MAX_LOGITS = 2**24
"""Largest number of logits of each model that are held at a time."""


@dataclass(frozen=True)
class EditCost:
    """The cost of edits on one text, in nats.

    `kl` is the mean over tokens of KL(before ‖ after), and `kl_last` is that of the last token. The losses are means of −log p
    of the next token. A model that does not predict the next token, and a text of one token, have none.
    """

    kl: float
    kl_last: float
    loss_before: float | None
    loss_after: float | None


@torch.no_grad()
def edit_cost(before: Trace, after: Trace) -> EditCost:
    """Compare the predictions of a text without edits (`before`) and with them, at every token."""
    if not before.view.predicts_tokens:
        raise RheoscopeError(Message("the cost of an edit needs an unembedding, and this model has none"))
    block_size = max(1, MAX_LOGITS // len(before.view.embed))
    blocks = [slice(start, start + block_size) for start in range(0, len(before), block_size)]
    columns = zip(*(_compare_block(before, after, block) for block in blocks), strict=True)
    divergences, losses_before, losses_after = (torch.cat(column) for column in columns)
    has_loss = before.view.predicts_next_token and len(losses_before) > 0
    return EditCost(
        float(divergences.mean()),
        float(divergences[-1]),
        float(losses_before.mean()) if has_loss else None,
        float(losses_after.mean()) if has_loss else None,
    )


def _compare_block(
    before: Trace, after: Trace, block: slice
) -> tuple[Float[Tensor, " m"], Float[Tensor, " n"], Float[Tensor, " n"]]:
    """KL(before ‖ after) of a block of tokens, and both losses of those that have a next token."""
    p, q = (next_token_logprobs(trace.view, trace.points[-1, block]) for trace in (before, after))
    next_ids = before.ids[1:][block].to(p.device)[:, None]
    losses = [-logprobs[: len(next_ids)].gather(1, next_ids)[:, 0] for logprobs in (p, q)]
    return (p.exp() * (p - q)).sum(-1), losses[0], losses[1]

"""How far the predictions of two models differ on a text: KL divergence, losses and likeliest tokens."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.space.predictions import next_token_logits
from rheoscope.space.trace import Trace

MAX_LOGITS = 2**24
"""Largest number of logits of each model that are held at a time."""


@dataclass(frozen=True, eq=False)
class PredictionChanges:
    """KL(first ‖ second) at every token, both losses of tokens with a next token, and both likeliest tokens everywhere.

    A vocabulary that is longer in one model counts up to the shorter one's length.
    """

    kl: Float[Tensor, " n"]
    first_losses: Float[Tensor, " m"]
    second_losses: Float[Tensor, " m"]
    first_tokens: Int[Tensor, " n"]
    second_tokens: Int[Tensor, " n"]


@torch.no_grad()
def prediction_changes(first: Trace, second: Trace) -> PredictionChanges:
    """Compare the predictions of two Traces of the same token ids, in blocks of tokens."""
    n_ids = min(len(first.view.embed), len(second.view.embed))
    block_size = max(1, MAX_LOGITS // n_ids)
    blocks = [slice(start, start + block_size) for start in range(0, len(first), block_size)]
    columns = zip(*(_compare_block(first, second, block, n_ids) for block in blocks), strict=True)
    return PredictionChanges(*(torch.cat(column).cpu() for column in columns))


def _compare_block(first: Trace, second: Trace, block: slice, n_ids: int) -> tuple[Tensor, ...]:
    p, q = (log_probabilities(trace, block, n_ids).to(first.points.device) for trace in (first, second))
    next_ids = first.ids[1:][block].to(p.device)[:, None]
    losses = [-log_probs[: len(next_ids)].gather(1, next_ids)[:, 0] for log_probs in (p, q)]
    return (p.exp() * (p - q)).sum(-1).clamp(min=0), *losses, p.argmax(-1), q.argmax(-1)


def log_probabilities(trace: Trace, block: slice, n_ids: int) -> Float[Tensor, "m v"]:
    """Log probabilities of the next token among the first `n_ids` of the vocabulary."""
    return next_token_logits(trace.view, trace.points[-1, block])[..., :n_ids].log_softmax(-1)


def likeliest_tokens(trace: Trace, n_ids: int, top: int) -> tuple[Int[Tensor, " k"], Float[Tensor, " k"]]:
    """The likeliest tokens after the last one, and their probabilities."""
    best = log_probabilities(trace, slice(len(trace) - 1, len(trace)), n_ids)[0].topk(min(top, n_ids))
    return best.indices.cpu(), best.values.exp().cpu()

"""The claim that symmetrising M costs loss."""

from collections.abc import Iterator
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.covers.head_replacement import (
    OperatorEdit,
    model_edits,
    plan_edits,
    replacement_edit,
    same_size_control,
)
from rheoscope.covers.head_selection import select_heads
from rheoscope.covers.surgery.analysis import check_predictions
from rheoscope.covers.text_batches import max_texts, next_token_losses
from rheoscope.messages.message import Message
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample, Measured
from rheoscope.space.prefetch import prefetch
from rheoscope.space.traces import Traces


@torch.no_grad()
def measure(sample: ClaimSample) -> dict[str, Measured]:
    losses = []
    for edits in prefetch(model_changes(sample)):
        losses.append(text_losses(sample, edits))
        if sample.progress is not None:
            sample.progress(len(losses), sample.draws + 2)
    costs = torch.stack(losses[1:]) - losses[0]
    return {"asymmetry": Measured(costs[0], draws=costs[1:])}


@torch.no_grad()
def model_changes(sample: ClaimSample) -> Iterator[list[OperatorEdit]]:
    """No edit, the symmetric part of M in all heads, and random changes of the same size, which all texts share."""
    view, generator = sample.model.view, Generator().manual_seed(sample.seed)
    check_predictions(view)
    plans = plan_edits(view, select_heads(view, None), "symmetric", None)
    yield []
    yield [replacement_edit(plan, generator) for plan in plans]
    for _ in range(sample.draws):
        yield [same_size_control(plan, generator) for plan in plans]


def text_losses(sample: ClaimSample, edits: list[OperatorEdit]) -> Float[Tensor, " text"]:
    """The mean −log p of the next tokens of every text under some edits."""
    starts = accumulate((len(traces) for traces in sample.batches), initial=0)
    return torch.cat(
        [batch_losses(sample, traces, start, edits) for traces, start in zip(sample.batches, starts, strict=False)]
    )


def batch_losses(sample: ClaimSample, traces: Traces, start: int, edits: list[OperatorEdit]) -> Float[Tensor, " b"]:
    """The same for one batch, whose first text has the index `start`. Causal models ignore the padding after a text."""
    is_included = traces.valid_mask()
    is_predicted, means = traces.is_token[:, 1:], []
    for texts in torch.arange(len(traces)).split(max_texts(sample.model, traces.ids.shape[-1])):
        rows, model = slice(int(texts[0]), int(texts[-1]) + 1), sample.model_for((texts + start).tolist())
        logits = model.run_batch(traces.ids[rows], edit=model_edits(is_included[rows], edits))
        losses = next_token_losses(logits, traces.ids[rows]).double().to(is_predicted.device)
        means.append(torch.where(is_predicted[rows], losses, 0).sum(-1) / is_predicted[rows].sum(-1))
    return torch.cat(means)


CLAIMS = (
    Claim(
        order=14,
        name="asymmetry",
        statement=Message("Symmetrising M costs loss, more than a random change of the same size"),
        parts=(
            ClaimPart(
                "asymmetry",
                Message(
                    "loss with ½(M + Mᵀ) in all heads minus the loss of the model, in nats per token; centred form"
                ),
                0.02,
                is_skewed=True,
            ),
        ),
        reason=Message(
            "a loss higher by .02 nats makes every token 2 % less likely, and seeds of one model differ by about .01"
        ),
        null=Message("random changes of M with the same singular values"),
        random_models="edited",
        measure=measure,
        needs_words=True,
        document="A",
    ),
)

"""The cost of edits: how far they change the predictions of a text, and its loss before and after."""

from dataclasses import dataclass

import torch

from rheoscope.messages.message import Message
from rheoscope.model_comparison.prediction_changes import prediction_changes
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace


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
    changes = prediction_changes(before, after)
    has_loss = before.view.predicts_next_token and len(changes.first_losses) > 0
    return EditCost(
        float(changes.kl.mean()),
        float(changes.kl[-1]),
        float(changes.first_losses.mean()) if has_loss else None,
        float(changes.second_losses.mean()) if has_loss else None,
    )

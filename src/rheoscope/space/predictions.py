"""Predictions of tokens from points, by the model's own final norm and unembedding or by its prediction head."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.float32_products import mixed_precision_matmul
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.view import View


def next_token_logprobs(view: View, points: Float[Tensor, "*p d"]) -> Float[Tensor, "*p vocabulary"]:
    """Log probabilities of the next token, from points through the model's final norm and unembedding."""
    return next_token_logits(view, points).log_softmax(-1)


def next_token_logits(view: View, points: Float[Tensor, "*p d"]) -> Float[Tensor, "*p vocabulary"]:
    """The model's own logits of the next token, with its bias and its cap."""
    if view.prediction_head is not None:
        return at_least_float32(view.prediction_head(view.to_model_precision(points)))
    if view.unembed is None or view.unembed_model_precision is None:
        raise RheoscopeError(
            Message(
                "{model} has no unembedding, so it predicts no tokens; use a language model",
                model=str(view.facts.get("model")),
            )
        )
    logits = mixed_precision_matmul(
        view.final_norm.apply(view.to_model_precision(points)), view.unembed_model_precision
    )[..., : view.unembed.shape[-1]]
    logits = logits if view.unembed_bias is None else logits + view.unembed_bias
    cap = view.logit_cap
    return logits if cap is None else cap * torch.tanh(logits / cap)

"""What points predict: the final norm and the unembedding, as the model has them."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.float32_products import product
from rheoscope.space.view import View


def predictions(view: View, points: Float[Tensor, "*p d"]) -> Float[Tensor, "*p vocabulary"]:
    """Log probabilities of the next token, read off points by the model's final norm and unembedding."""
    if view.unembed is None or view.unembed_as_read is None:
        raise RheoscopeError(
            f"{view.facts.get('model')} has no unembedding, so nothing can be read out; type a language model"
        )
    logits = product(view.final_norm.own(view.as_read(points)), view.unembed_as_read)[..., : view.unembed.shape[-1]]
    logits = logits if view.unembed_bias is None else logits + view.unembed_bias
    cap = view.logit_cap
    return (logits if cap is None else cap * torch.tanh(logits / cap)).log_softmax(-1)

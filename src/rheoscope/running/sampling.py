"""The next token of every text: sampled from the logits that temperature, top_k and top_p retain.

p(next) = softmax( filter( logits / temperature ) )
"""

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

Logits = Float[Tensor, "b v"]
NextTokens = Int[Tensor, " b"]


def sample_token(
    logits: Logits, temperature: float, top_k: int | None, top_p: float | None, generator: Generator
) -> NextTokens:
    """The next token of every text.

    >>> sample_token(torch.tensor([[0.0, 2.0, 1.0]]), 0.0, None, None, Generator())
    tensor([1])
    """
    if temperature == 0:
        return logits.argmax(-1)
    shifted = logits.float() - logits.float().amax(-1, keepdim=True)
    # the largest stays 0 even if the temperature underflows in float32
    logits = torch.where(shifted < 0, shifted / temperature, 0)
    if top_k is not None:
        logits = top_k_filter(logits, top_k)
    if top_p is not None:
        logits = top_p_filter(logits, top_p)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]


def top_k_filter(logits: Logits, k: int) -> Logits:
    """Keep the k largest logits of every row and set the others to -inf (arXiv:1805.04833). Ties with the last are kept.

    >>> top_k_filter(torch.tensor([[0.0, 2.0, 1.0]]), 2)
    tensor([[-inf, 2., 1.]])
    """
    threshold = logits.topk(min(k, logits.shape[-1])).values[..., -1:]
    return logits.masked_fill(logits < threshold, -torch.inf)


def top_p_filter(logits: Logits, p: float) -> Logits:
    """Keep the smallest set of most likely tokens with total probability p or more (arXiv:1904.09751); the others are -inf.

    >>> top_p_filter(torch.tensor([[0.2, 0.5, 0.3]]).log(), 0.7).exp()
    tensor([[0.0000, 0.5000, 0.3000]])
    """
    ordered, order = logits.sort(descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    is_outside = probabilities.cumsum(-1) - probabilities >= p
    is_outside[..., 0] = False  # the most likely token stays even if p underflows in float32
    return torch.empty_like(logits).scatter(-1, order, ordered.masked_fill(is_outside, -torch.inf))


def check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raise for sampling settings that leave no distribution."""
    if not 0 <= temperature < float("inf"):
        raise RheoscopeError(
            Message("temperature must be finite and at least 0, got {value!r}", value=temperature), use(temperature=0.8)
        )
    if top_k is not None and (not isinstance(top_k, int) or top_k < 1):
        raise RheoscopeError(
            Message("top_k must be an integer of at least 1, got {value!r}", value=top_k), use(top_k=40)
        )
    if top_p is not None and not 0 < top_p <= 1:
        raise RheoscopeError(Message("top_p must be above 0 and at most 1, got {value!r}", value=top_p), use(top_p=0.9))

"""What would the model say if it stopped here? Every step of a token through the final norm and the unembedding."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.flow.cloud import dataset
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray

DEFINITIONS = {
    "probability": "probability of the answer, read off this step",
    "rank": "how many tokens are likelier than the answer at this step, plus 1",
    "entropy": "entropy of what this step predicts, in nats",
    "kl": "KL divergence from what the last step predicts to what this step predicts, in nats",
    "top_probabilities": "probabilities of the likeliest tokens at this step, falling",
    "log_probability_elsewhere": "log probability of the answer at the last step of other tokens: is it this place's own?",
    "top_tokens": "ids of the likeliest tokens at this step",
}


@torch.no_grad()
def readout(view: View, trace: Trace, token: int = -1, answer: int | None = None, k: int = 5) -> "xarray.Dataset":
    """The logit lens: what each step of a token predicts.

    **Answers** "where in the network does the prediction form, and what did it look like before?"

    **Formula** p_step = softmax(final_norm(x_step) W_U + b), with the model's own final norm and logit cap, in float32.
    The answer is the token that the last step finds likeliest, or `answer` (a token id).

    **Gives** (point): `probability`, `rank` (1 is best), `entropy` and `kl` to the last step (nats); (point, k):
    `top_tokens` (ids), `top_probabilities`; (elsewhere): `log_probability_elsewhere`, at most 64 other tokens.

    **Laws** the last step predicts what the model predicts; kl is 0 there and never negative; unchanged by a turn of the
    axes of E that the model follows.

    **Source** the logit lens (nostalgebraist, 2020). Early layers speak another dialect than the unembedding reads: a low
    probability there says that the prediction is not yet written in it, not that nothing is known.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> lens = rs.readout(model.view, model.trace("The keys to the cabinet are"))
    >>> float(lens.kl[-1]), int(lens["rank"][-1])
    (0.0, 1)
    """
    laws = predictions(view, trace.points[:, token])
    answer = int(laws[-1].argmax()) if answer is None else answer
    if not 0 <= answer < laws.shape[-1]:
        raise RheoscopeError(f"the answer is a token id from 0 to {laws.shape[-1] - 1}, got {answer}")
    top = laws.topk(min(k, laws.shape[-1]))
    values = {
        "probability": laws[:, answer].exp(),
        "rank": (laws > laws[:, answer : answer + 1]).sum(-1) + 1,
        "entropy": -(laws.exp() * laws).sum(-1),
        "kl": (laws[-1].exp() * (laws[-1] - laws)).sum(-1).clamp(min=0),
        "top_tokens": top.indices,
        "top_probabilities": top.values.exp(),
    }
    named = {name: (("point", "k")[: x.ndim], x) for name, x in values.items()}
    others = elsewhere(len(trace), token % len(trace))
    told = predictions(view, trace.points[-1, others])[:, answer]
    named["log_probability_elsewhere"] = (("elsewhere",), told)
    attributes = {
        "analysis": "readout",
        "space": "normed",
        "token": token % len(trace),
        "answer": answer,
    }
    return dataset(named, DEFINITIONS, {"point": list(trace.steps), "elsewhere": others}, attributes | trace.provenance)


def elsewhere(n: int, token: int, most: int = 64) -> list[int]:
    """Other tokens, evenly over the text.

    >>> elsewhere(6, 2)
    [0, 1, 3, 4, 5]
    """
    others = [at for at in range(n) if at != token]
    return others if len(others) <= most else [others[len(others) * at // most] for at in range(most)]


def predictions(view: View, points: Float[Tensor, "p d"]) -> Float[Tensor, "p vocabulary"]:
    """Log probabilities of the next token, read off points by the model's final norm and unembedding."""
    if view.unembed is None:
        raise RheoscopeError(
            f"{view.facts.get('model')} has no unembedding, so nothing can be read out; type a language model"
        )
    # The unembedding reads the model's dtype, as the model itself does; what follows is float32 or better.
    logits = view.final_norm.own(points) @ view.unembed
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logits = logits if view.unembed_bias is None else logits + view.unembed_bias
    cap = view.facts.get("logit_cap")
    return (logits if cap is None else cap * torch.tanh(logits / cap)).log_softmax(-1)

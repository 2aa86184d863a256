"""What would the model say if it stopped here? Every step of a token through the final norm and the unembedding."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.components import checked, components
from rheoscope.space.dataset import dataset
from rheoscope.space.prediction import predictions
from rheoscope.space.step import Step
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
    "log_probability_elsewhere": "log probability of the answer at the last step of earlier tokens: is it this place's own?",
    "top_tokens": "ids of the likeliest tokens at this step",
    "said": "id of the token that each of the last places finds likeliest to come next, after the embedding and after every layer",
    "said_probability": "its probability",
    "attribution": "what a component writes into the answer's logit: its part of x̂ (scale of the final norm frozen) on the "
    "answer's column of W_U less the mean of all columns",
    "logit": "the answer's logit less the mean of all logits, before a cap: the sum of the attribution",
}


SAID = 8
"""Places whose predictions are told at the end of every layer."""
AT_ONCE = 48
"""Points that are read out at a time."""


@torch.no_grad()
def readout(view: View, trace: Trace, token: int = -1, answer: int | None = None, k: int = 5) -> "xarray.Dataset":
    """The logit lens: what each step of a token predicts.

    **Answers** "where in the network does the prediction form, and what did it look like before?"

    **Formula** p_step = softmax(final_norm(x_step) W_U + b), with the model's own final norm and logit cap, in float32.
    The answer is the token that the last step finds likeliest, or `answer` (a token id).

    Direct logit attribution: logit − mean = Σ_c (c C) D_g (W_U[answer] − mean W_U) · scale, over all components c of the
    last point (`rheoscope.space.components`), the scale of the final norm as the model has it, biases as components.

    **Gives** (point): `probability`, `rank` (1 is best), `entropy` and `kl` to the last step (nats); (point, k):
    `top_tokens` (ids), `top_probabilities`; (component): `attribution` of `embed`, `L3.H1`, `L3.mlp`, `L3.bias`, …;
    `logit`, its sum; (elsewhere): `log_probability_elsewhere`, at most 64 earlier tokens; (end, position): `said` (ids) and
    `said_probability` of the token and at most 7 before it, at the end of every layer.

    **Laws** the last step predicts what the model predicts; kl is 0 there and never negative; the attribution sums to the
    logit; all unchanged by a turn of the axes of E that the model follows.

    **Source** the logit lens (nostalgebraist, 2020). Early layers speak another dialect than the unembedding reads: a low
    probability there says that the prediction is not yet written in it, not that nothing is known.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> lens = rs.readout(model.view, model.trace("The keys to the cabinet are"))
    >>> float(lens.kl[-1]), int(lens["rank"][-1])
    (0.0, 1)
    """
    token = checked([token], len(trace))[0]
    laws = predictions(view, trace.points[:, token])
    answer = int(laws[-1].argmax()) if answer is None else answer
    if not 0 <= answer < laws.shape[-1]:
        raise RheoscopeError(f"the answer is a token id from 0 to {laws.shape[-1] - 1}, got {answer}")
    written = attribution(view, trace, token, answer)
    top = laws.topk(min(k, laws.shape[-1]))
    values = {
        "probability": laws[:, answer].exp(),
        "rank": torch.stack([(law > law[answer]).sum() for law in laws]) + 1,
        "entropy": torch.stack([-(law.exp() * law).sum() for law in laws]),
        "kl": torch.stack([(laws[-1].exp() * (laws[-1] - law)).sum() for law in laws]).clamp(min=0),
        "top_tokens": top.indices,
        "top_probabilities": top.values.exp(),
    }
    named: dict[str, tuple[tuple[str, ...], Tensor]] = {
        name: (("point", "k")[: x.ndim], x) for name, x in values.items()
    }
    named["attribution"] = (("component",), torch.stack(list(written.values())))
    named["logit"] = ((), named["attribution"][1].sum())
    others = elsewhere(token)
    told = predictions(view, trace.points[-1, others])[:, answer]
    named["log_probability_elsewhere"] = (("elsewhere",), told)
    ends, there = layer_ends(trace.steps), list(range(max(0, token - SAID + 1), token + 1))
    named |= {name: (("end", "position"), x) for name, x in along(view, trace, ends, there).items()}
    attributes = {
        "analysis": "readout",
        "space": "normed",
        "token": token,
        "answer": answer,
    }
    coords: dict[str, Any] = {
        "point": [str(step) for step in trace.steps],
        "component": list(written),
        "elsewhere": others,
        "position": there,
    }
    coords |= {"end": [str(trace.steps[at]) for at in ends], "word": ("position", [trace.tokens[at] for at in there])}
    return dataset(named, DEFINITIONS, coords, attributes | trace.provenance)


def layer_ends(steps: Sequence[Step]) -> list[int]:
    """The embedding, and the end of every layer."""
    return [at for at, step in enumerate(steps) if at == 0 or step.is_end_of_layer]


def along(view: View, trace: Trace, ends: list[int], there: list[int]) -> dict[str, Tensor]:
    """What each of several places finds likeliest at the end of every layer; no table of all predictions exists."""
    points = trace.points[torch.tensor(ends)[:, None], there].flatten(0, 1)
    best = [predictions(view, some).max(-1) for some in points.split(AT_ONCE)]
    shape = (len(ends), len(there))
    return {
        "said": torch.cat([one.indices for one in best]).reshape(shape),
        "said_probability": torch.cat([one.values for one in best]).exp().reshape(shape),
    }


def elsewhere(token: int, most: int = 64) -> list[int]:
    """Earlier tokens, evenly over the text.

    >>> elsewhere(3), elsewhere(9, 3)
    ([0, 1, 2], [0, 3, 6])
    """
    return list(range(token)) if token <= most else [token * at // most for at in range(most)]


def attribution(view: View, trace: Trace, token: int, answer: int) -> dict[str, Float[Tensor, ""]]:
    """The answer's logit, less the mean of all logits and before a cap, as a sum over all that wrote it."""
    assert view.unembed is not None
    made, norm = components(trace, tokens=[token]), view.final_norm
    x = trace.points[-1, token].to(made.parts.dtype)
    towards = (view.unembed[:, answer] - view.unembed.mean(-1)).to(x.dtype)
    read = towards if norm.gain is None else norm.gain.to(x.dtype) * towards
    each = norm.centre(made.parts[:, 0]) * norm.scale(x) @ read
    written = dict(zip(made.names, each, strict=True))
    if norm.bias is not None:
        written["final_norm.bias"] = norm.bias.to(x.dtype) @ towards
    if view.unembed_bias is not None:
        written["unembed.bias"] = (view.unembed_bias[answer] - view.unembed_bias.mean()).to(x.dtype)
    return written

"""The backward pass as attention: how the loss wants every score to change (R), for all heads from one backward pass."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.gradient import reversed_scores
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import checked, end_of
from rheoscope.space.head import Heads, of_head
from rheoscope.space.model import Model, check_made_by
from rheoscope.space.prediction import predictions
from rheoscope.space.pullback import adds_up, pulled_back
from rheoscope.space.share import exact
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.transposed import transposed

if TYPE_CHECKING:
    import xarray


def reversed_attention(
    model: Model, trace: Trace, target: str | int | None = None, token: int = -1
) -> "xarray.Dataset":
    """R = ∂L/∂S of every head: the gradient of the scores (reversed attention), L = −log p(target) after a token.

    **Answers** "which heads would have to look elsewhere for the model to say this, and at what?"

    **Formula** G = ∂L/∂O, D = GVᵀ, R = A ∘ (D − rowsum(A ∘ D)) under softmax; other normalisers by their own derivative. R_ij > 0:
    a lower score of j would lower the loss.

    **Shapes** `target` is a token as text or as an id (default: what the model finds likeliest), `token` the place
    after which it is said, counted from 0, from the end where negative.

    **Gives** (layer, head): `norm`, `rank`; (layer, head, token): `received`, `pull`; `loss`. One map: `reversed_map`. No map is kept: one
    head's is made at a time.

    **Laws** equal to autograd's gradient of the scores in every family; rows of R sum to 0 under softmax; no gauge moves R.

    **Source** Katz and Wolf 2024 (arXiv:2412.17019), whose code keeps the scale inside R.

    **Siblings** `attention_gradients` is one call of attention; `readout` attributes the logit forwards.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> found = rs.reversed_attention(model, model.trace("The keys to the cabinet are"), target=" on")
    >>> found.norm.shape == (model.view.layers, model.view.heads)
    True
    """
    loss, pulled, wanted, at = backward(model, trace, target, token)
    layers = [kernel(heads, trace.read_by(at), pulled[at]) for at, heads in enumerate(trace.view.blocks)]
    norm, received, pull = (torch.stack(each) for each in zip(*layers, strict=True))
    rank = norm.flatten().argsort(descending=True).argsort().reshape(norm.shape) + 1
    values = {"norm": norm, "rank": rank, "received": received, "pull": pull, "loss": loss}
    coords = {
        "layer": range(trace.view.layers),
        "head": range(trace.view.heads),
        "token": range(len(trace)),
        "word": ("token", trace.tokens),
    }
    return REVERSED_ATTENTION.answer(values, coords, {"target": wanted, "token": at} | trace.provenance)


def kernel(
    heads: Heads, x: Float[Tensor, "n d"], pulled: Float[Tensor, "n d"]
) -> tuple[Float[Tensor, " h"], Float[Tensor, "h n"], Float[Tensor, "h n"]]:
    """‖R‖, Σ_i |R_ij| and Σ_i R_ij of every head of a layer, from the gradient of what its attention wrote."""
    found = [(R.norm(), R.abs().sum(-2), R.sum(-2)) for R in maps(heads, x, pulled)]
    norm, received, pull = (torch.stack(each) for each in zip(*found, strict=True))
    return norm, received, pull


def reversed_map(
    model: Model, trace: Trace, layer: int, head: int, target: str | int | None = None, token: int = -1
) -> Float[Tensor, "n n"]:
    """R of one head, row = query: how the loss wants each of its scores to change (see `reversed_attention`).

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> R = rs.reversed_map(model, model.trace("The keys to the cabinet are"), layer=2, head=1, target=" on")
    >>> bool(R.sum(-1).abs().max() < 1e-5)
    True
    """
    trace.view.heads_of(layer, head)
    pulled = backward(model, trace, target, token)[1]
    return one_map(trace.view.blocks[layer], trace.read_by(layer), head, pulled[layer])


def backward(
    model: Model, trace: Trace, target: str | int | None, token: int
) -> tuple[Tensor, list[Float[Tensor, "n d"]], int, int]:
    """The loss and its gradient by what attention wrote, layer by layer, from one backward pass; target and token as numbers.

    Where the stream is a sum its points are all that is needed; else the model itself runs with gradients.
    """
    check_made_by(model, trace)
    (at,) = checked([token], len(trace))
    jumping = [layer for layer, heads in enumerate(trace.view.blocks) if not heads.mechanism.domain.differentiable]
    if jumping:
        raise RheoscopeError(
            f"the weights of layer {jumping[0]} jump, so its scores have no gradient; type rs.surgery(…) for what a change costs"
        )
    wanted: list[int] = [] if target is None else [target_id(model, target)]

    def loss(law: Float[Tensor, " vocabulary"]) -> Tensor:
        if not wanted:
            wanted.append(int(law.argmax()))
        return -law[wanted[0]]

    if trace.view.unembed is None or not adds_up(trace):
        value, gradients = model.gradients(trace.ids, lambda logits: loss(exact(logits[at]).log_softmax(-1)))
        return value, [gradients[str(written_at(trace, layer))] for layer in range(trace.view.layers)], wanted[0], at
    last = trace.points[-1].detach().requires_grad_()
    with torch.enable_grad():
        value = loss(predictions(trace.view, last[at : at + 1])[0])
    return value.detach(), pulled_back(trace, torch.autograd.grad(value, last)[0]), wanted[0], at


def written_at(trace: Trace, layer: int) -> Step:
    """The step whose gradient is that of what attention wrote: after attention, or after a parallel block."""
    middle = trace.steps[trace.middle[layer]]
    return trace.steps[end_of(trace, layer)] if middle in trace.not_read else middle


def target_id(model: Model, target: str | int) -> int:
    """A target as a token id; a text must be one token of the model's own, as it is typed, or with a space before it."""
    if isinstance(target, int):
        size = len(model.view.embed)
        if not 0 <= target < size:
            raise RheoscopeError(f"token ids lie in 0 to {size - 1}, got {target}; type an id of this model")
        return target
    readings = [spelled(model, text) for text in (target, f" {target.lstrip()}", target.strip()) if text.strip(" ")]
    one = next((ids[0] for ids in readings if len(ids) == 1), None)
    if one is None:
        parts = " ".join(map(repr, model.words(readings[0]))) if readings else "none"
        raise RheoscopeError(
            f"the target must be one token, {target!r} is {len(readings[0]) if readings else 0} ({parts}); type another word, "
            "or the id of a token (#262 in a shell)"
        )
    return one


def spelled(model: Model, text: str) -> list[int]:
    """The ids of a text as it stands inside another: without what the tokenizer puts at the start."""
    alone, twice = (model.ids(one).tolist() for one in (text, text + text))
    for length in range(1, len(alone) + 1):
        if twice[-length:] == alone[-length:] and twice[-2 * length : -length] == alone[-length:]:
            return alone[-length:]
    return alone


@torch.no_grad()
def one_map(heads: Heads, x: Float[Tensor, "n d"], head: int, pulled: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """R of one head from the gradient of what its layer's attention wrote."""
    return _one(heads, heads.read(x), at_outputs(heads, x, pulled), head)


@torch.no_grad()
def maps(heads: Heads, x: Float[Tensor, "n d"], pulled: Float[Tensor, "n d"]) -> Iterator[Float[Tensor, "n n"]]:
    """R of every head of a layer, one after the other."""
    projected, g = heads.read(x), at_outputs(heads, x, pulled)
    for head in range(heads.count):
        yield _one(heads, projected, g, head)


def _one(heads: Heads, projected: Any, g: Float[Tensor, "h n e"], head: int) -> Float[Tensor, "n n"]:
    q, k, v = projected
    group = heads.group(head)
    q, k, v = q[:, head : head + 1], k[:, group : group + 1], v[:, group : group + 1]
    return reversed_scores(of_head(heads.mechanism, head), q, k, v, g[None, head : head + 1])[0, 0]


def at_outputs(heads: Heads, x: Float[Tensor, "n d"], pulled: Float[Tensor, "n d"]) -> Float[Tensor, "h n e"]:
    """The gradient at the output of every head, before W_O and, where there is one, before the norm after attention."""
    if heads.after is not None:
        with torch.enable_grad():
            total = (heads.outputs(x) @ heads.W_O).sum(0)
            total = (total if heads.b_O is None else total + heads.b_O).detach().requires_grad_()
            pulled = transposed(heads.after.own(total), total, pulled)
    return pulled @ heads.W_O.detach().mT


REVERSED_ATTENTION = Analysis(
    name="reversed_attention",
    question="Which heads would have to look elsewhere for the model to say this, and at what?",
    ask=reversed_attention,
    needs="model",
    fields={
        "norm": Field(
            ("layer", "head"), "‖R‖: how strongly the loss pulls at the scores of the head, over all pairs of tokens"
        ),
        "rank": Field(("layer", "head"), "place of the head when all are ordered by ‖R‖, 1 the strongest"),
        "received": Field(
            ("layer", "head", "token"),
            "Σ_i |R_ij| of the head: how strongly the loss pulls at what tokens look at token j",
        ),
        "pull": Field(
            ("layer", "head", "token"),
            "Σ_i R_ij of the head: below 0 the loss wants tokens to look more at token j",
        ),
        "loss": Field((), "−log p of the target after the token", "nats"),
    },
)

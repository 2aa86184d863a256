"""The backward pass as attention: how the loss wants every score to change (R), for all heads from one backward pass."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.definition import for_every_head, positions
from rheoscope.attention.gradient import reversed_rows, reversed_scores
from rheoscope.attention.lower.block_size import numbers_in_cache
from rheoscope.attention.mask import Mask
from rheoscope.running.stream_pullback import adds_up, pulled_back
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.autograd_pullback import transposed
from rheoscope.space.components import checked, end_of
from rheoscope.space.float32_products import product
from rheoscope.space.head import Heads, of_head
from rheoscope.space.model import Model, check_made_by
from rheoscope.space.predictions import predictions
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

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
    values = {name: x[0] for name, x in _values(Traces.of(trace), loss[None], [g[None] for g in pulled]).items()}
    coords = {
        "layer": range(trace.view.layers),
        "head": range(trace.view.heads),
        "token": range(len(trace)),
        "word": ("token", trace.tokens),
    }
    return REVERSED_ATTENTION.answer(values, coords, {"target": wanted, "token": at} | trace.provenance)


def many(traces: Traces, target: int | None = None, token: int = -1) -> dict[str, Tensor]:
    """The same of many texts at once, from one backward pass: every field, (text, *dims); NaN beyond the end of a text.

    `target` is the id of a token, by default what the model finds likeliest in each text. Where the stream is no sum (a norm after
    it), one text is asked at a time.
    """
    if traces.view.unembed is None or not adds_up(traces):
        raise RheoscopeError(
            "the stream of this model is no sum, so its texts are asked one at a time; type rs.reversed_attention(model, traces[0])"
        )
    shortest = int(traces.lengths.min())
    if not -shortest <= token < shortest:
        raise RheoscopeError(f"the shortest text has {shortest} tokens, got token={token}; type token=-1")
    check_differentiable(traces.view)
    at = traces.lengths + token if token < 0 else torch.full_like(traces.lengths, token)
    loss, pulled, _ = pulled_by_loss(traces, target, at)
    found = _values(traces, loss, pulled)
    there = traces.real[:, None, None]
    return found | {name: torch.where(there, found[name], torch.nan) for name in ("received", "pull")}


def _values(traces: Traces, loss: Float[Tensor, " b"], pulled: list[Float[Tensor, "b n d"]]) -> dict[str, Tensor]:
    read = traces.view.as_read
    layers = [
        kernel(heads, read(traces.read_by(at)), read(pulled[at]), traces.unseen(at))
        for at, heads in enumerate(traces.view.blocks)
    ]
    norm, received, pull = (torch.stack(each, 1) for each in zip(*layers, strict=True))
    rank = norm.flatten(1).argsort(-1, descending=True).argsort(-1).reshape(norm.shape) + 1
    return {"norm": norm, "rank": rank, "received": received, "pull": pull, "loss": loss}


@torch.no_grad()
def kernel(
    heads: Heads, x: Float[Tensor, "b n d"], pulled: Float[Tensor, "b n d"], unseen: Mask | None
) -> tuple[Float[Tensor, "b h"], Float[Tensor, "b h n"], Float[Tensor, "b h n"]]:
    """‖R‖, Σ_i |R_ij| and Σ_i R_ij of every head of a layer, from the gradient of what its attention wrote; some rows at a time."""
    mechanism, n = heads.mechanism.under(unseen), x.shape[-2]
    (i, _), g = positions(n, n, x.device), at_outputs(heads, x, pulled, unseen)
    q, k, v = (for_every_head(exact(part), heads.count) for part in heads.read(x))
    q, k, v = mechanism.position.place(q, i), mechanism.position.place(k, i), mechanism.value(v)
    square = torch.zeros(q.shape[:2], dtype=torch.float64, device=x.device)
    received, pull = (torch.zeros(q.shape[:3], dtype=q.dtype, device=x.device) for _ in range(2))
    size = max(1, numbers_in_cache(x.device) // q[..., 0].numel()) if mechanism.normaliser.rowwise else n
    for low in range(0, n, size):
        rows, keys = slice(low, low + size), slice(*mechanism.mask.span(low, min(low + size, n), n))
        R = reversed_rows(
            mechanism, q[:, :, rows], k[:, :, keys], v[:, :, keys], g[:, :, rows].to(q.dtype), i[rows], i[keys]
        )
        square += torch.linalg.vector_norm(R, dim=(-2, -1), dtype=torch.float64).square()
        received[..., keys] += torch.linalg.vector_norm(R, 1, dim=-2)
        pull[..., keys] += R.sum(-2)
    return square.sqrt().to(q.dtype), received, pull


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
    check_differentiable(trace.view)
    wanted: list[int] = [] if target is None else [target_id(model, target)]

    def loss(law: Float[Tensor, " vocabulary"]) -> Tensor:
        if not wanted:
            wanted.append(int(law.argmax()))
        return -law[wanted[0]]

    if trace.view.unembed is None or not adds_up(trace):
        value, gradients = model.gradients(trace.ids, lambda logits: loss(exact(logits[at]).log_softmax(-1)))
        return value, [gradients[str(written_at(trace, layer))] for layer in range(trace.view.layers)], wanted[0], at
    value, pulled, said = pulled_by_loss(Traces.of(trace), wanted[0] if wanted else None, torch.tensor([at]))
    return value[0], [g[0] for g in pulled], int(said[0]), at


def check_differentiable(view: View) -> None:
    """Refuse a model whose weights jump somewhere."""
    jumping = [layer for layer, heads in enumerate(view.blocks) if not heads.mechanism.domain.differentiable]
    if jumping:
        raise RheoscopeError(
            f"the weights of layer {jumping[0]} jump, so its scores have no gradient; type rs.surgery(…) for what a change costs"
        )


def pulled_by_loss(
    traces: Traces, target: int | None, at: Int[Tensor, " b"]
) -> tuple[Float[Tensor, " b"], list[Float[Tensor, "b n d"]], Int[Tensor, " b"]]:
    """−log p of the target after token `at` of every text, its gradient by what attention wrote, and the targets."""
    last, rows = traces.at(-1).detach().requires_grad_(), torch.arange(len(traces), device=traces.points.device)
    with torch.enable_grad():
        law = predictions(traces.view, last[rows, at.to(rows.device)])
        wanted = law.argmax(-1) if target is None else torch.full_like(rows, target)
        value = -law[rows, wanted]
        by_last = torch.autograd.grad(value.sum(), last)[0]
    return value.detach(), pulled_back(traces, by_last), wanted


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


def at_outputs(
    heads: Heads, x: Float[Tensor, "*b n d"], pulled: Float[Tensor, "*b n d"], unseen: Mask | None = None
) -> Float[Tensor, "*b h n e"]:
    """The gradient at the output of every head, before W_O, before a gate and before a norm after attention, where there are any."""
    W_O = heads.W_O.detach()
    if heads.after is not None:
        with torch.enable_grad():
            outputs = heads.gated(heads.outputs(x, unseen), x).transpose(-3, -2).flatten(-2)
            total = outputs @ W_O.to(outputs.dtype).flatten(0, 1)
            total = (total if heads.b_O is None else total + heads.b_O).detach().requires_grad_()
            pulled = transposed(heads.after.own(total), total, pulled)
    return heads.gated(product(pulled, W_O.flatten(0, 1).mT).unflatten(-1, W_O.shape[:2]).transpose(-3, -2), x)


REVERSED_ATTENTION = Analysis(
    name="reversed_attention",
    question="Which heads would have to look elsewhere for the model to say this, and at what?",
    ask=reversed_attention,
    needs="model",
    batch=many,
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

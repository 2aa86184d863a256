"""Attention patching: what the loss does when every head's weights move along the gradient of its scores."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import for_every_head
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.head_selection import Asked, Chosen, chosen_heads, names_of
from rheoscope.covers.reversed_attention.analysis import at_outputs, backward, one_map
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.head import Heads
from rheoscope.space.model import LayerEdit, Model
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

ETAS = (-1.0, -0.3, -0.1, -0.03, 0.0, 0.03, 0.1, 0.3, 1.0)


def attention_patching(
    model: Model,
    trace: Trace,
    target: str | int | None = None,
    etas: Sequence[float | int] = ETAS,
    heads: Asked = None,
    token: int = -1,
) -> "xarray.Dataset":
    """The loss when R is added to the weights: A' = A + ηR, after the softmax, not renormalised.

    **Answers** "is it enough to look where the gradient says, for the model to say this?"

    **Formula** o_i = Σ_j (A_ij + η R_ij) v_j with R of the text as it is (`reversed_attention`), in the chosen heads (all, unless
    said); to first order L(η) = L + η Σ_h ⟨∂L/∂A_h, R_h⟩.

    **Gives** (eta): `loss`, `predicted`; (layer, head): `slope`. Rows of R sum to 0, so rows of A' sum to 1, but a weight may be
    negative.

    **Laws** the derivative of the loss at η = 0 is the sum of the slopes; under softmax no slope is negative (it is the variance of
    ∂L/∂A along A), so small η < 0 lowers the loss; η = 0 changes no bit.

    **Source** Katz and Wolf 2024 (arXiv:2412.17019).

    **Siblings** `reversed_attention` gives ‖R‖; `faithfulness` asks whether the heads with large ‖R‖ are those that matter.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> found = rs.attention_patching(model, model.trace("The keys to the cabinet are"), " on", etas=(-0.1, 0.0))
    >>> bool(found.loss[0] < found.loss[1])
    True
    """
    chosen = chosen_heads(trace.view, heads)
    loss, pulled, wanted, at = backward(model, trace, target, token)
    slope = exact(loss.new_zeros(trace.view.layers, trace.view.heads))
    for layer, some in chosen.items():
        slope[layer, some] = kernel(trace.view.blocks[layer], trace.read_by(layer), some, pulled[layer]).to(slope)
    values = {
        "loss": [_patched(model, trace, chosen, pulled, float(eta), wanted, at) for eta in etas],
        "predicted": [float(loss) + float(eta) * float(slope.double().sum()) for eta in etas],
        "slope": slope,
    }
    coords = {"eta": list(map(float, etas)), "layer": range(trace.view.layers), "head": range(trace.view.heads)}
    settings = {"target": wanted, "token": at, "heads": "all" if heads is None else names_of(chosen)}
    return ATTENTION_PATCHING.answer(values, coords, settings | trace.provenance)


@torch.no_grad()
def kernel(heads: Heads, x: Float[Tensor, "n d"], some: list[int], pulled: Float[Tensor, "n d"]) -> Float[Tensor, " c"]:
    """⟨∂L/∂A, R⟩ of some heads of a layer; ∂L/∂A = G g(V)ᵀ."""
    g = at_outputs(heads, x, pulled)
    v = heads.mechanism.value(for_every_head(heads.read(x)[2], heads.count))[0]
    return torch.stack([(g[head] @ v[head].mT * one_map(heads, x, head, pulled)).sum() for head in some])


@torch.no_grad()
def _patched(
    model: Model, trace: Trace, chosen: Chosen, pulled: list[Tensor], eta: float, target: int, at: int
) -> float:
    layers = {} if eta == 0 else chosen
    edits = {
        layer: _adding(trace.view.blocks[layer], trace.read_by(layer), some, pulled[layer], eta)
        for layer, some in layers.items()
    }
    return float(-exact(model.run(trace.ids, edit=edits)[at]).log_softmax(-1)[target])


def _adding(
    heads: Heads, x: Float[Tensor, "n d"], some: list[int], pulled: Float[Tensor, "n d"], eta: float
) -> LayerEdit:
    """R is made again for each run, one head at a time: no map of all heads is ever kept."""

    def change(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        values, new = mechanism.value(for_every_head(v, q.shape[1])), out.clone()
        for head in some:
            new[:, head] += eta * (one_map(heads, x, head, pulled).to(values) @ values[:, head])
        return new

    return change


ATTENTION_PATCHING = Analysis(
    name="attention_patching",
    question="Is it enough to look where the gradient says, for the model to say this?",
    ask=attention_patching,
    needs="model",
    fields={
        "loss": Field(
            ("eta",), "−log p of the target after the token with A + ηR in the place of the weights A", "nats"
        ),
        "predicted": Field(
            ("eta",), "the same to first order: the loss as it is and η times the sum of the slopes", "nats"
        ),
        "slope": Field(
            ("layer", "head"),
            "⟨∂L/∂A, R⟩ of the head: how fast the loss changes with η; 0 where the head is not patched",
        ),
    },
)

"""Attention patching: the loss when the gradient of the scores is added to the attention weights."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import repeat_kv_heads
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.head_selection import HeadsByLayer, HeadSelection, format_heads, select_heads
from rheoscope.covers.reversed_attention.analysis import head_output_gradients, loss_gradients, reversed_map_of_head
from rheoscope.covers.reversed_attention.words import PATCH_ETA
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.head import Heads
from rheoscope.space.model import LayerEdit, Model
from rheoscope.space.report_run import ReportRun
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.settings import Bounds, TokenId, TokenIndex
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

DEFAULT_ETAS = (-1.0, -0.3, -0.1, -0.03, 0.0, 0.03, 0.1, 0.3, 1.0)


def attention_patching(
    model: Model,
    trace: Trace,
    target: str | TokenId | None = None,
    etas: Sequence[Annotated[float | int, Bounds(-1e6, 1e6)]] = DEFAULT_ETAS,
    heads: HeadSelection = None,
    token: TokenIndex = -1,
) -> "xarray.Dataset":
    """The loss of a target token when A + ηR replaces the attention weights A.

    **Question** Is it enough to move attention along the gradient of the scores to make the model predict the target?

    **Formula** o_i = Σ_j (A_ij + η R_ij) v_j in the chosen heads. The patch follows the softmax and is not renormalised.
    R is the gradient of the scores on the original text (`reversed_attention`). To first order,
    L(η) = L + η Σ_h ⟨∂L/∂A_h, R_h⟩.

    **Settings** `heads=None` patches all heads. `token` is the position after which the target is predicted.

    **Returns** (eta): `loss` and `predicted_loss`. (layer, head): `slope`. Rows of R sum to 0, so rows of A + ηR sum to
    1. Single weights may become negative.

    **Laws** The derivative of the loss at η = 0 is the sum of the slopes. Under softmax a slope is the variance of ∂L/∂A
    under A, so it is never negative and a small η < 0 lowers the loss. η = 0 leaves the model bit-identical.

    **Source** Katz and Wolf 2024 (arXiv:2412.17019).

    **See also** `reversed_attention` returns ‖R‖. `faithfulness` tests whether heads with a large ‖R‖ matter.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> result = rs.attention_patching(model, model.trace("The keys to the cabinet are"), " on", etas=(-0.1, 0.0))
    >>> bool(result.loss[0] < result.loss[1])
    True
    """
    heads_by_layer = select_heads(trace.view, heads)
    loss, attention_grads, target_token_id, position = loss_gradients(model, trace, target, token)
    slope = at_least_float32(loss.new_zeros(trace.view.layers, trace.view.heads))
    for layer, head_indices in heads_by_layer.items():
        slope[layer, head_indices] = kernel(
            trace.view.layer_heads[layer], trace.layer_input(layer), head_indices, attention_grads[layer]
        ).to(slope)
    values = {
        "loss": [
            _patched_loss(model, trace, heads_by_layer, attention_grads, float(eta), target_token_id, position)
            for eta in etas
        ],
        "predicted_loss": [float(loss) + float(eta) * float(slope.double().sum()) for eta in etas],
        "slope": slope,
    }
    coords = {"eta": list(map(float, etas)), "layer": range(trace.view.layers), "head": range(trace.view.heads)}
    settings = {
        "target": target_token_id,
        "token": position,
        "heads": "all" if heads is None else format_heads(heads_by_layer),
    }
    return ATTENTION_PATCHING.label(values, coords, settings | trace.provenance)


@torch.no_grad()
def kernel(
    heads: Heads, x: Float[Tensor, "n d"], head_indices: list[int], attention_grad: Float[Tensor, "n d"]
) -> Float[Tensor, " c"]:
    """⟨∂L/∂A, R⟩ of some heads of a layer, with ∂L/∂A = G g(V)ᵀ."""
    output_grads = head_output_gradients(heads, x, attention_grad)
    v = heads.mechanism.value(repeat_kv_heads(heads.qkv(x)[2], heads.n_heads))[0]
    return torch.stack(
        [
            (output_grads[head] @ v[head].mT * reversed_map_of_head(heads, x, head, attention_grad)).sum()
            for head in head_indices
        ]
    )


@torch.no_grad()
def _patched_loss(
    model: Model,
    trace: Trace,
    heads_by_layer: HeadsByLayer,
    attention_grads: list[Tensor],
    eta: float,
    target_token_id: int,
    position: int,
) -> float:
    patched_heads = {} if eta == 0 else heads_by_layer
    edits = {
        layer: _add_reversed_map(
            trace.view.layer_heads[layer], trace.layer_input(layer), head_indices, attention_grads[layer], eta
        )
        for layer, head_indices in patched_heads.items()
    }
    return float(-at_least_float32(model.run(trace.ids, edit=edits)[position]).log_softmax(-1)[target_token_id])


def _add_reversed_map(
    heads: Heads, x: Float[Tensor, "n d"], head_indices: list[int], attention_grad: Float[Tensor, "n d"], eta: float
) -> LayerEdit:
    """An edit that adds ηR to the weights. It recomputes R one head at a time, so no map of all heads is stored."""

    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        values, patched_out = mechanism.value(repeat_kv_heads(v, q.shape[1])), out.clone()
        for head in head_indices:
            patched_out[:, head] += eta * (
                reversed_map_of_head(heads, x, head, attention_grad).to(values) @ values[:, head]
            )
        return patched_out

    return edit


ATTENTION_PATCHING = Analysis(
    name="attention_patching",
    question="Does moving attention along the gradient of its scores make the model predict the target?",
    ask=attention_patching,
    needs="model",
    report_runs=(
        ReportRun("reverse", 1, options=("target", "token"), settings={"etas": (PATCH_ETA, 0.0)}),
        ReportRun("reverse", 2, options=("target", "token"), for_files=True),
    ),
    fields={
        "loss": Field(("eta",), "−log p of the target when A + ηR replaces the weights A", "nats"),
        "predicted_loss": Field(
            ("eta",), "first-order prediction of loss: the original loss plus η times the sum of the slopes", "nats"
        ),
        "slope": Field(
            ("layer", "head"),
            "derivative ⟨∂L/∂A, R⟩ of the loss by η in this head; 0 if the head is not patched",
        ),
    },
)

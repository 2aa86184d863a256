"""Reversed attention: the gradient R of the loss with respect to every attention score, from one backward pass."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.definition import query_key_positions, repeat_kv_heads
from rheoscope.attention.gradient import score_gradient_rows, score_gradients
from rheoscope.attention.lower.block_size import cache_block_numel
from rheoscope.attention.mask import Mask
from rheoscope.messages.advice import Advice, analyse, use
from rheoscope.messages.message import Message
from rheoscope.running.block_device import on_block
from rheoscope.running.stream_pullback import is_residual_sum, pull_back_gradient
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.autograd_pullback import pullback_by_autograd
from rheoscope.space.components import last_step_of_layer, resolve_positions
from rheoscope.space.float32_products import mixed_precision_matmul
from rheoscope.space.head import Heads, single_head_mechanism
from rheoscope.space.model import Model, check_same_weights
from rheoscope.space.predictions import next_token_logprobs
from rheoscope.space.report_run import ReportRun
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.settings import TokenId, TokenIndex
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray


def reversed_attention(
    model: Model, trace: Trace, target: str | TokenId | None = None, token: TokenIndex = -1
) -> "xarray.Dataset":
    """The gradient R = ∂L/∂S of the scores of every head (reversed attention), with L = −log p(target) after a token.

    **Question** Which heads would have to attend to other tokens for the model to predict the target, and to which?

    **Formula** G = ∂L/∂O, D = GVᵀ, R = A ∘ (D − rowsum(A ∘ D)) under softmax. Other normalisers use their own derivative. If
    R_ij > 0, a lower score of key j would lower the loss.

    **Settings**
    `target` is a token as text or as an id. The default is the most likely next token.
    `token` is the position after which the target is predicted. Negative positions count from the end.

    **Returns** (layer, head): `norm`, `rank`. (layer, head, token): `gradient_sum`, `gradient_abs_sum`. Scalar: `loss`. No map is
    stored; `reversed_map` returns that of one head.

    **Laws** R equals autograd's gradient of the scores in every model family. Under softmax the rows of R sum to 0.
    Transformations that leave the logits unchanged leave R unchanged.

    **Source** Katz and Wolf 2024 (arXiv:2412.17019). Their code includes the scale in R.

    **See also** `attention_gradients`, for one call of attention; `readout`, which attributes the logit in the forward direction.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> result = rs.reversed_attention(model, model.trace("The keys to the cabinet are"), target=" on")
    >>> result.norm.shape == (model.view.layers, model.view.heads)
    True
    """
    loss, attention_grads, target_token_id, position = loss_gradients(model, trace, target, token)
    values = {
        name: x[0]
        for name, x in _values(Traces.from_trace(trace), loss[None], [grad[None] for grad in attention_grads]).items()
    }
    coords = {
        "layer": range(trace.view.layers),
        "head": range(trace.view.heads),
        "token": range(len(trace)),
        "token_text": ("token", trace.tokens),
    }
    return REVERSED_ATTENTION.label(values, coords, {"target": target_token_id, "token": position} | trace.provenance)


def batch(traces: Traces, target: int | None = None, token: int = -1) -> dict[str, Tensor]:
    """Every field (text, *dims) for many texts, from one backward pass. NaN at padding.

    `target` is a token id. The default is the most likely next token of each text. A model with norms after its residual sums is
    refused, because it needs one text at a time.
    """
    if traces.view.unembed is None or not is_residual_sum(traces):
        raise RheoscopeError(
            Message("the residual stream of this model is not a plain sum, so it needs one text at a time"),
            Advice("rs.reversed_attention(model, traces[0])"),
        )
    min_length = int(traces.lengths.min())
    if not -min_length <= token < min_length:
        raise RheoscopeError(
            Message("the shortest text has {n} tokens, got token {received}", n=min_length, received=token),
            use(token=-1),
        )
    check_differentiable(traces.view)
    target_positions = traces.lengths + token if token < 0 else torch.full_like(traces.lengths, token)
    loss, attention_grads, _ = batch_loss_gradients(traces, target, target_positions)
    values = _values(traces, loss, attention_grads)
    is_token = traces.is_token[:, None, None]
    return values | {
        name: torch.where(is_token, values[name], torch.nan) for name in ("gradient_abs_sum", "gradient_sum")
    }


def _values(
    traces: Traces, loss: Float[Tensor, " b"], attention_grads: list[Float[Tensor, "b n d"]]
) -> dict[str, Tensor]:
    as_read = traces.view.to_model_precision
    layer_values = [
        kernel(
            heads, as_read(traces.layer_input(layer)), as_read(attention_grads[layer]), traces.padding_for_layer(layer)
        )
        for layer, heads in enumerate(traces.view.layer_heads)
    ]
    norm, gradient_abs_sum, gradient_sum = (torch.stack(per_layer, 1) for per_layer in zip(*layer_values, strict=True))
    rank = norm.flatten(1).argsort(-1, descending=True).argsort(-1).reshape(norm.shape) + 1
    return {
        "norm": norm,
        "rank": rank,
        "gradient_abs_sum": gradient_abs_sum,
        "gradient_sum": gradient_sum,
        "loss": loss,
    }


@on_block
@torch.no_grad()
def kernel(
    heads: Heads, x: Float[Tensor, "b n d"], attention_grad: Float[Tensor, "b n d"], unseen: Mask | None
) -> tuple[Float[Tensor, "b h"], Float[Tensor, "b h n"], Float[Tensor, "b h n"]]:
    """‖R‖, Σ_i |R_ij| and Σ_i R_ij of every head, from the gradient of the layer's attention output, in blocks of rows."""
    mechanism, n = heads.mechanism.with_mask(unseen), x.shape[-2]
    (i, _), output_grads = query_key_positions(n, n, x.device), head_output_gradients(heads, x, attention_grad, unseen)
    q, k, v = (repeat_kv_heads(at_least_float32(projection), heads.n_heads) for projection in heads.qkv(x))
    q, k, v = mechanism.position.encode(q, i), mechanism.position.encode(k, i), mechanism.value(v)
    squared_norm = torch.zeros(q.shape[:2], dtype=torch.float64, device=x.device)
    gradient_abs_sum, gradient_sum = (torch.zeros(q.shape[:3], dtype=q.dtype, device=x.device) for _ in range(2))
    rows_at_once = max(1, cache_block_numel(x.device) // q[..., 0].numel()) if mechanism.normaliser.is_rowwise else n
    for low in range(0, n, rows_at_once):
        rows, keys = (
            slice(low, low + rows_at_once),
            slice(*mechanism.mask.key_range(low, min(low + rows_at_once, n), n)),
        )
        R = score_gradient_rows(
            mechanism,
            q[:, :, rows],
            k[:, :, keys],
            v[:, :, keys],
            output_grads[:, :, rows].to(q.dtype),
            i[rows],
            i[keys],
        )
        squared_norm += torch.linalg.vector_norm(R, dim=(-2, -1), dtype=torch.float64).square()
        gradient_abs_sum[..., keys] += torch.linalg.vector_norm(R, 1, dim=-2)
        gradient_sum[..., keys] += R.sum(-2)
    return squared_norm.sqrt().to(q.dtype), gradient_abs_sum, gradient_sum


def reversed_map(
    model: Model, trace: Trace, layer: int, head: int, target: str | int | None = None, token: int = -1
) -> Float[Tensor, "n n"]:
    """R of one head, with one row per query: the gradient of the loss by each of its scores (see `reversed_attention`).

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> R = rs.reversed_map(model, model.trace("The keys to the cabinet are"), layer=2, head=1, target=" on")
    >>> bool(R.sum(-1).abs().max() < 1e-5)
    True
    """
    trace.view.heads_of(layer, head)
    attention_grads = loss_gradients(model, trace, target, token)[1]
    return reversed_map_of_head(trace.view.layer_heads[layer], trace.layer_input(layer), head, attention_grads[layer])


def loss_gradients(
    model: Model, trace: Trace, target: str | int | None, token: int
) -> tuple[Tensor, list[Float[Tensor, "n d"]], int, int]:
    """The loss, its gradient by the attention output of every layer, the target id and the token position.

    If the residual stream is a plain sum, its points are enough. Otherwise the model runs with gradients.
    """
    check_same_weights(model, trace)
    (position,) = resolve_positions([token], len(trace))
    check_differentiable(trace.view)
    target_ids: list[int] = [] if target is None else [target_id(model, target)]

    def target_loss(log_probs: Float[Tensor, " vocabulary"]) -> Tensor:
        if not target_ids:
            target_ids.append(int(log_probs.argmax()))
        return -log_probs[target_ids[0]]

    if trace.view.unembed is None or not is_residual_sum(trace):
        loss_value, gradients = model.gradients(
            trace.ids, lambda logits: target_loss(at_least_float32(logits[position]).log_softmax(-1))
        )
        return (
            loss_value,
            [gradients[str(attention_output_step(trace, layer))] for layer in range(trace.view.layers)],
            target_ids[0],
            position,
        )
    loss_value, attention_grads, batch_target_ids = batch_loss_gradients(
        Traces.from_trace(trace), target_ids[0] if target_ids else None, torch.tensor([position])
    )
    return loss_value[0], [grad[0] for grad in attention_grads], int(batch_target_ids[0]), position


def check_differentiable(view: View) -> None:
    """Refuse a model with attention weights that are not a continuous function of the scores."""
    discontinuous_layers = [
        layer for layer, heads in enumerate(view.layer_heads) if not heads.mechanism.domain.is_differentiable
    ]
    if discontinuous_layers:
        raise RheoscopeError(
            Message(
                "the attention weights of layer {layer} are a discontinuous function of its scores, so they have no gradient",
                layer=discontinuous_layers[0],
            ),
            analyse("surgery", "model, text"),
        )


def batch_loss_gradients(
    traces: Traces, target: int | None, target_positions: Int[Tensor, " b"]
) -> tuple[Float[Tensor, " b"], list[Float[Tensor, "b n d"]], Int[Tensor, " b"]]:
    """−log p of the target at one position per text, its gradients by the attention outputs, and the target ids."""
    last_points, rows = (
        traces.points_at(-1).detach().requires_grad_(),
        torch.arange(len(traces), device=traces.points.device),
    )
    with torch.enable_grad():
        log_probs = next_token_logprobs(traces.view, last_points[rows, target_positions.to(rows.device)])
        target_ids = log_probs.argmax(-1) if target is None else torch.full_like(rows, target)
        losses = -log_probs[rows, target_ids]
        last_grad = torch.autograd.grad(losses.sum(), last_points)[0]
    return losses.detach(), pull_back_gradient(traces, last_grad), target_ids


def attention_output_step(trace: Trace, layer: int) -> Step:
    """The step whose gradient is that of the attention output: after attention, or after a parallel block."""
    middle = trace.steps[trace.mid_steps[layer]]
    return trace.steps[last_step_of_layer(trace, layer)] if middle in trace.unread_steps else middle


def target_id(model: Model, target: str | int) -> int:
    """The id of a target. A string must be one token, as typed or after a space."""
    if isinstance(target, int):
        vocabulary_size = len(model.view.embed)
        if not 0 <= target < vocabulary_size:
            raise RheoscopeError(
                Message(
                    "token ids lie in 0 to {last}, got {received}",
                    last=vocabulary_size - 1,
                    received=target,
                ),
                Advice("target=262", "--target '#262'"),
            )
        return target
    spellings = [
        inner_token_ids(model, text) for text in (target, f" {target.lstrip()}", target.strip()) if text.strip(" ")
    ]
    token_id = next((ids[0] for ids in spellings if len(ids) == 1), None)
    if token_id is None:
        tokens = model.token_strings(spellings[0]) if spellings else []
        raise RheoscopeError(
            Message(
                "the target must be one token, {target!r} is {n} ({tokens}); use another word or a token id",
                target=target,
                n=len(tokens),
                tokens=" ".join(map(repr, tokens)) or Message("none"),
            ),
            Advice("target=262", "--target '#262'"),
        )
    return token_id


def inner_token_ids(model: Model, text: str) -> list[int]:
    """The ids of a text without the special tokens that the tokenizer adds at the start."""
    single_ids, double_ids = (model.ids(variant).tolist() for variant in (text, text + text))
    for length in range(1, len(single_ids) + 1):
        if double_ids[-length:] == single_ids[-length:] and double_ids[-2 * length : -length] == single_ids[-length:]:
            return single_ids[-length:]
    return single_ids


@torch.no_grad()
def reversed_map_of_head(
    heads: Heads, x: Float[Tensor, "n d"], head: int, attention_grad: Float[Tensor, "n d"]
) -> Float[Tensor, "n n"]:
    """R of one head, from the gradient of its layer's attention output."""
    return _reversed_map(heads, heads.qkv(x), head_output_gradients(heads, x, attention_grad), head)


@torch.no_grad()
def reversed_maps_of_layer(
    heads: Heads, x: Float[Tensor, "n d"], attention_grad: Float[Tensor, "n d"]
) -> Iterator[Float[Tensor, "n n"]]:
    """R of every head of a layer, one at a time."""
    projections, output_grads = heads.qkv(x), head_output_gradients(heads, x, attention_grad)
    for head in range(heads.n_heads):
        yield _reversed_map(heads, projections, output_grads, head)


def _reversed_map(
    heads: Heads, projections: Any, output_grads: Float[Tensor, "h n e"], head: int
) -> Float[Tensor, "n n"]:
    q, k, v = projections
    group = heads.kv_head(head)
    q, k, v = q[:, head : head + 1], k[:, group : group + 1], v[:, group : group + 1]
    return score_gradients(single_head_mechanism(heads.mechanism, head), q, k, v, output_grads[None, head : head + 1])[
        0, 0
    ]


def head_output_gradients(
    heads: Heads, x: Float[Tensor, "*b n d"], attention_grad: Float[Tensor, "*b n d"], unseen: Mask | None = None
) -> Float[Tensor, "*b h n e"]:
    """The gradient at the output of every head, before W_O, a gate and an output norm."""
    W_O = heads.W_O.detach()
    if heads.output_norm is not None:
        with torch.enable_grad():
            outputs = heads.outputs(x, unseen)
            outputs = heads.apply_gate(outputs, x, all_outputs=outputs).transpose(-3, -2).flatten(-2)
            total = outputs @ W_O.to(outputs.dtype).flatten(0, 1)
            total = (total if heads.b_O is None else total + heads.b_O).detach().requires_grad_()
            attention_grad = pullback_by_autograd(heads.output_norm.apply(total), total, attention_grad)
    gradients = (
        mixed_precision_matmul(attention_grad, W_O.flatten(0, 1).mT).unflatten(-1, W_O.shape[:2]).transpose(-3, -2)
    )
    if heads.heads_norm is None:
        return heads.apply_gate(gradients, x)
    with torch.enable_grad():
        head_outputs = heads.outputs(x, unseen).detach().requires_grad_()
        return pullback_by_autograd(
            heads.apply_gate(head_outputs, x, all_outputs=head_outputs), head_outputs, gradients
        )


REVERSED_ATTENTION = Analysis(
    name="reversed_attention",
    question="Which heads would have to attend elsewhere for the model to predict the target, and to which tokens?",
    ask=reversed_attention,
    needs="model",
    shown_with=("attention_patching",),
    see_also=("surgery",),
    report_runs=(ReportRun("reverse", 0, options=("target", "token")),),
    batch=batch,
    fields={
        "norm": Field(("layer", "head"), "‖R‖, the norm of the gradient of the loss by the scores of the head"),
        "rank": Field(("layer", "head"), "rank of the head by ‖R‖ among all heads (1 is the largest)"),
        "gradient_abs_sum": Field(
            ("layer", "head", "token"),
            "Σ_i |R_ij|, the absolute gradient of the loss by the scores of key j, summed over queries",
        ),
        "gradient_sum": Field(
            ("layer", "head", "token"),
            "Σ_i R_ij, the gradient of the loss by the scores of key j (below 0: more attention to j lowers the loss)",
        ),
        "loss": Field((), "−log p of the target at the position of the token", "nats"),
    },
)

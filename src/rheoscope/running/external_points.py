"""Points that another engine computed, as a Trace: `rs.trace_from` fills in the points inside the layers and proves each layer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.certificate import tolerance
from rheoscope.running.runner import RunnableModel, allocate_points, make_traces
from rheoscope.running.stream import apply_hooks, record_points
from rheoscope.running.token_ids import as_token_ids
from rheoscope.shapes import RheoscopeError
from rheoscope.space.step import EMBED, Step
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

STATES_KEY, IDS_KEY = "hidden_states", "token_ids"
"""The names in the safetensors files of vLLM's extract_hidden_states: states (n, layers, d) and token ids (n)."""
SAMPLE_TOKENS = 64
"""The MLP of a layer is checked on at most this many tokens, at equal distances."""
Cloud = Float[Tensor, "n d"]


@torch.no_grad()
def trace_from(points: Any, ids: Any, view_or_model: View | RunnableModel) -> Trace:
    """Points that another engine computed, as a Trace that every analysis reads.

    **Question** What does a text do in a model that runs elsewhere, for example in vLLM?

    **Formula** The other engine has x_0, …, x_L, the points between layers. The point inside a layer is
    x_mid = x_l + attention(x_l), computed by the View or by the model itself. Running the rest of the layer from x_mid gives
    x̂_{l+1}. The layer is proved if x̂_{l+1} = x_{l+1} up to the rounding of the points.

    **Returns** A Trace. `trace.facts["unproved_layers"]` lists the layers whose points do not follow from these weights, and
    `trace.facts["layer_errors"]` holds ‖x̂_{l+1} − x_{l+1}‖ / ‖x_{l+1} − x_l‖ for every layer.

    **Settings** `points` are the L + 1 hidden states of transformers (`output_hidden_states=True`; if the last one is after the
    final norm, it is computed again), a tensor (L + 1, n, d), or the path of a safetensors file with `hidden_states` (n, L, d)
    or (n, L + 1, d), as vLLM's extract_hidden_states writes with all layer ids. `ids` are the token ids; None reads
    `token_ids` from the file. `view_or_model`: a View needs L + 1 points and a stream that adds attention and MLP. A model also
    fills in the embedding, reads every family, and names the tokens.

    **Laws** Points of the model itself give its own Trace. If no layer is proved, an error says so.

    **See also** `model.trace(text)` computes the points here.

    >>> import rheoscope as rs, torch
    >>> model = rs.load()
    >>> trace = model.trace([5, 6, 7])
    >>> elsewhere = trace.points[[0, *(step + 1 for step in trace.mid_steps)]]
    >>> rs.trace_from(elsewhere, [5, 6, 7], model.view).facts["unproved_layers"]
    []
    """
    model = view_or_model if isinstance(view_or_model, RunnableModel) else None
    view = view_or_model if model is None else model.view
    if not isinstance(view, View):
        raise RheoscopeError(
            Message("trace_from expects a View or a model, got {received}", received=type(view_or_model).__name__),
            Advice("rs.trace_from(points, ids, model.view)"),
        )
    view.check_current()
    if view.cross_heads:
        raise RheoscopeError(
            Message("points of an encoder-decoder cannot be read, since they have two sides"),
            Advice("model.trace((source, target))"),
        )
    states = read_states(points, ids, view, needs_embedding=model is None)
    layers = _run_view(view, states) if model is None else _run_model(model, states)
    return _proved_trace(states, layers)


@dataclass(frozen=True)
class GivenStates:
    """The points between layers of another engine (the embedding may be missing), their ids, and the dtype they were stored in."""

    clouds: list[Cloud]
    ids: Int[Tensor, " n"]
    dtype: torch.dtype
    has_embedding: bool


@dataclass(frozen=True)
class RecomputedLayers:
    """A Trace whose points inside the layers come from the given ones, and the points that each layer computes from its input.

    `outputs[l]` are the points after layer l on the tokens `sample`.
    """

    trace: Trace
    outputs: list[Cloud]
    sample: Int[Tensor, " s"]


def read_states(points: Any, ids: Any, view: View, needs_embedding: bool) -> GivenStates:
    """Points and ids in any of the supported forms, checked against the View."""
    if isinstance(points, str | Path):
        points, ids = _read_file(Path(points), ids)
    points = getattr(points, "hidden_states", points)
    try:
        clouds = [torch.as_tensor(x) for x in points]
        clouds = [x[0] if x.ndim == 3 and len(x) == 1 else x for x in clouds]
        stacked = torch.stack(clouds)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _wrong_points(Message("points are {received}", received=type(points).__name__), view) from error
    if stacked.ndim != 3 or not stacked.is_floating_point():
        received = Message(
            "points have shape {shape} and dtype {dtype}", shape=str(tuple(stacked.shape)), dtype=str(stacked.dtype)
        )
        raise _wrong_points(received, view)
    token_ids = as_token_ids(ids)
    _check_states(stacked, token_ids, view, needs_embedding)
    dtype = torch.promote_types(view.embed.dtype, torch.float32)
    converted = stacked.to(view.embed.device, dtype)
    return GivenStates(list(converted), token_ids, stacked.dtype, len(converted) == view.layers + 1)


def _read_file(path: Path, ids: Any) -> tuple[Tensor, Any]:
    """The states (layers, n, d) and the ids of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        states = tensors[STATES_KEY]
    except (OSError, SafetensorError, KeyError) as error:
        raise RheoscopeError(
            Message(
                "{path} holds no hidden states ({reason}); expected safetensors with hidden_states (n, layers, d)",
                path=str(path),
                reason=str(error),
            )
        ) from error
    if ids is None and IDS_KEY not in tensors:
        raise RheoscopeError(
            Message("{path} holds no token_ids, so ids are needed", path=str(path)),
            Advice("rs.trace_from(path, [1, 2, 3], model.view)"),
        )
    return (states.transpose(0, 1) if states.ndim == 3 else states), tensors[IDS_KEY] if ids is None else ids


def _check_states(stacked: Float[Tensor, "p n d"], ids: Tensor, view: View, needs_embedding: bool) -> None:
    """Raise for a wrong number of layers or tokens, another width, ids outside the vocabulary, and NaN."""
    n_points, n_tokens, width = stacked.shape
    if width != view.width:
        raise RheoscopeError(
            Message(
                "points have width {received}, but the model has width {expected}; choose the model that computed them",
                received=width,
                expected=view.width,
            )
        )
    if n_points not in ((view.layers + 1,) if needs_embedding else (view.layers, view.layers + 1)):
        raise _wrong_points(Message("there are {n} points for each token", n=n_points), view)
    if n_tokens != len(ids):
        raise RheoscopeError(
            Message(
                "points have {received} tokens, but there are {expected} ids; pass those of the same text",
                received=n_tokens,
                expected=len(ids),
            )
        )
    if not bool(((ids >= 0) & (ids < len(view.embed))).all()):
        raise RheoscopeError(Message("token ids must lie between 0 and {maximum:,}", maximum=len(view.embed) - 1))
    for index, cloud in enumerate(stacked):
        if not bool(cloud.isfinite().all()):
            raise RheoscopeError(
                Message(
                    "points hold NaN or infinity in cloud {index} of {n}; compute them again", index=index, n=n_points
                )
            )


def _wrong_points(received: str, view: View) -> RheoscopeError:
    return RheoscopeError(
        Message(
            "{received}, but this model needs {n} of shape (n, {width}): the embedding and the point after each layer",
            received=received,
            n=view.layers + 1,
            width=view.width,
        ),
        Advice("rs.trace_from(network(ids, output_hidden_states=True).hidden_states, ids, model.view)"),
    )


def _run_model(model: RunnableModel, states: GivenStates) -> RecomputedLayers:
    """Every layer of the model on its given input. Points are recorded before they are replaced by the given ones."""
    ids = states.ids[None].to(model.device)
    points = allocate_points(model.description, ids)
    clouds = states.clouds if states.has_embedding else [None, *states.clouds]
    steps = [EMBED, *(Step(layer, "resid_post") for layer in range(model.view.layers))]
    hooks = {
        step: partial(_replace_points, cloud) for step, cloud in zip(steps, clouds, strict=True) if cloud is not None
    }
    with record_points(model.description, points), apply_hooks(model.description, hooks):
        model.forward_points(ids, None)
    tokens = [model.token_strings_in_text(states.ids)]
    trace = make_traces(model.view, model.description, points, [states.ids], tokens, [""])[0]
    outputs = [trace.points_at(step).clone() for step in steps[1:]]
    for step, cloud in zip(steps, clouds, strict=True):
        if cloud is not None:
            trace.points_at(step).copy_(cloud)
    return RecomputedLayers(trace, outputs, torch.arange(len(states.ids), device=points.device))


def _replace_points(cloud: Cloud, x: Float[Tensor, "1 n d"]) -> Float[Tensor, "1 n d"]:
    return cloud[None].to(x)


def _run_view(view: View, states: GivenStates) -> RecomputedLayers:
    """Attention of every layer on its given input, and its MLP on a sample: at the midpoint, or at the input of a parallel layer."""
    n_tokens, clouds = len(states.ids), states.clouds
    n_sample = min(n_tokens, SAMPLE_TOKENS)
    sample = torch.linspace(0, n_tokens - 1, n_sample, device=clouds[0].device).round().long().unique()
    middles, sequential, parallel = [], [], []
    for layer, heads in enumerate(view.layer_heads):
        x = clouds[layer]
        middle = x + heads.attention_update(x)
        rows = slice(None) if layer == view.layers - 1 else sample  # the last points may have to be computed
        middles.append(middle)
        sequential.append(middle[rows] + view.mlps[layer](middle[rows][None])[0])
        parallel.append(middle[rows] + view.mlps[layer](x[rows][None])[0])
    is_parallel = _distance(parallel[:-1] or parallel, clouds, sample) < _distance(
        sequential[:-1] or sequential, clouds, sample
    )
    points = torch.stack([clouds[0], *(x for pair in zip(middles, clouds[1:], strict=True) for x in pair)])
    layer_steps = [Step(layer, kind) for layer in range(view.layers) for kind in ("resid_mid", "resid_post")]
    trace = Trace(
        view,
        points,
        (EMBED, *layer_steps),
        [str(token_id) for token_id in states.ids.tolist()],
        states.ids,
        tuple(2 * layer for layer in range(view.layers)),
        tuple(2 * layer + 1 for layer in range(view.layers)),
        unread_steps=frozenset(layer_steps[::2] if is_parallel else ()),
        facts=dict(view.facts),
    )
    return RecomputedLayers(trace, parallel if is_parallel else sequential, sample)


def _distance(outputs: Sequence[Cloud], clouds: Sequence[Cloud], sample: Tensor) -> float:
    """The distance of recomputed outputs of the first layers from the given points, over the sample."""
    return sum(
        float((output - cloud[sample] if len(output) == len(sample) else output - cloud).norm())
        for output, cloud in zip(outputs, clouds[1:], strict=False)
    )


def _proved_trace(states: GivenStates, layers: RecomputedLayers) -> Trace:
    """The Trace with the error of every layer among its facts. Raises if no layer is proved."""
    trace, view = layers.trace, layers.trace.view
    limit = max(tolerance(states.dtype), tolerance(view.dtype))
    clouds = states.clouds[1:] if states.has_embedding else states.clouds
    errors, last_points = [], trace.points_at(Step(view.layers - 1, "resid_post"))
    for layer, (output, cloud) in enumerate(zip(layers.outputs, clouds, strict=True)):
        rows = layers.sample if len(output) == len(layers.sample) else slice(None)
        before, after = trace.layer_input(layer)[rows], cloud[rows]
        error = relative_error(output, after, before, limit, states.dtype)
        if layer == view.layers - 1 and error > limit:
            normalised = relative_error(view.final_norm.apply(output), after, before, limit, states.dtype)
            if normalised <= limit:  # transformers returns the last hidden state after the final norm
                last_points.copy_(output)
                error = normalised
        errors.append(error)
    unproved = [layer for layer, error in enumerate(errors) if not error <= limit]
    if len(unproved) == len(errors):
        raise RheoscopeError(
            Message(
                "these points do not follow from this model: layer 0 is off by {error:.1e}, but rounding explains at most {limit:.1e}",
                error=errors[0],
                limit=limit,
            ),
            Advice("rs.trace_from(points, ids, model)"),
        )
    facts = dict(view.facts) | {"points": "computed elsewhere", "layer_errors": errors, "unproved_layers": unproved}
    return replace(trace, facts=facts)


def relative_error(output: Cloud, after: Cloud, before: Cloud, limit: float, dtype: torch.dtype) -> float:
    """‖output − after‖ / ‖after − before‖. A displacement below the rounding of the points counts as that rounding.

    >>> relative_error(torch.ones(1, 2), torch.ones(1, 2), torch.zeros(1, 2), 1e-4, torch.float32)
    0.0
    """
    rounding = 2 * torch.finfo(dtype).eps / limit * after.norm()
    return float((output - after).norm() / (after - before).norm().maximum(rounding).clamp(min=1e-30))

"""From matched chains to the matrices of heads: W (g, d, k), b (g, k), norms, and the function that the model applies."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.chains import Normalisation, NormConstants, frontier, norm_constants, subtracts_mean
from rheoscope.pretrained.finder.coordinate_choice import Choice, coordinate_choice
from rheoscope.pretrained.finder.coordinates import coordinate_map
from rheoscope.pretrained.finder.plain_products import is_converted
from rheoscope.pretrained.finder.projections import NormStep, Projection, ProjectionPart, layout_source
from rheoscope.pretrained.finder.tape import ModuleCall, Tape, Value
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model_parts import LatentNorm, Norm, NormAcrossHeads, Projected

WeightFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class HeadProjection:
    """Queries, keys or values of every head: the matrices, and the same map computed by the model's own modules.

    The rows of the heads are `rows(*results)`, where each of `weights` gives a result. Projections may share a weight.
    """

    W: Float[Tensor, "g d k"]
    b: Float[Tensor, "g k"] | None
    norm: Norm | None
    weights: tuple[WeightFunction, ...]
    rows: Callable[..., Float[Tensor, "b g n k"]]


def project_together(projections: Iterable[HeadProjection], u: Float[Tensor, "b n d"]) -> Projected:
    """The rows of several projections. A weight that serves several of them is applied once."""
    results: dict[WeightFunction, Tensor] = {}
    for weight in (weight for x in projections for weight in x.weights):
        if weight not in results:
            results[weight] = weight(u)
    return tuple(x.rows(*(results[weight] for weight in x.weights)) for x in projections)  # type: ignore[return-value]


def module_between(tape: Tape, source: Value, result: Value) -> nn.Module | None:
    """The module that reads one tensor and returns the other, up to layout."""
    call = tape.share(("call between", source, result), lambda: _call_between(tape, source, result))
    return None if call is None else tape.own(call.module)


def _call_between(tape: Tape, source: Value, result: Value) -> ModuleCall | None:
    calls = tape.share("calls by result", lambda: _calls_by_result(tape))
    source = layout_source(tape, source)
    for call in calls.get(layout_source(tape, result), ()):
        if source in {layout_source(tape, v) for v in call.inputs}:
            return call
    return None


def _calls_by_result(tape: Tape) -> dict[Value, list[ModuleCall]]:
    """The calls that return a tensor first, up to layout, in order."""
    calls: dict[Value, list[ModuleCall]] = {}
    for call in tape.calls:
        for value in call.outputs[:1]:
            calls.setdefault(layout_source(tape, value), []).append(call)
    return calls


def first_result(module: nn.Module, x: Tensor) -> Tensor:
    """What a module returns, or the first of its results (I-BERT returns scales too)."""
    out = module(x)
    return out if isinstance(out, Tensor) else out[0]


def input_norm(tape: Tape, projection: Projection, points: Value, tokens: set[Value]) -> Norm:
    """The norm between the points and what the heads read; the identity if they read the points."""
    if layout_source(tape, points) == projection.source:
        return Norm()
    (stage,) = frontier(tape, projection.source, tokens, points)
    if isinstance(stage, int):
        return Norm()
    assert isinstance(stage, Normalisation)
    return read_norm(tape, stage, points, projection.source)


def read_norm(tape: Tape, stage: Normalisation, points: Value, result: Value) -> Norm:
    """A norm with its gain and its bias, applied by the model's own module if there is one."""
    constants = norm_constants(tape, stage, points)
    following = coordinate_map(tape, stage.result, result)
    gain, bias = following.gain, following.bias
    if stage.scale is None:
        weight, offset = (
            _parameter(tape, stage, index) for index in ((2, 3) if constants.subtracts_mean else (2, None))
        )
        gain = gain if weight is None else gain * weight
        bias = bias if offset is None else bias + following.gain * offset
    gain = gain * constants.gain
    centres = constants.subtracts_mean or (stage.scale is not None and subtracts_mean(tape, stage, points))
    dtype = torch.promote_types(tape.template(points).dtype, torch.float32)
    plain = Norm(lambda x: x, None, None, constants.eps, centres)
    module = module_between(tape, points, result)
    gain_or_none = None if bool((gain == 1).all()) else gain.to(dtype)
    bias_or_none = None if bool((bias == 0).all()) else bias.to(dtype)

    def apply(x: Tensor) -> Tensor:
        y = plain.normalise(x.to(torch.promote_types(x.dtype, torch.float32)))
        y = y if gain_or_none is None else y * gain_or_none.to(y)
        return (y if bias_or_none is None else y + bias_or_none.to(y)).to(x.dtype)

    own = apply if module is None else partial(first_result, module)
    return Norm(own, gain_or_none, bias_or_none, constants.eps, centres)


def _parameter(tape: Tape, stage: Normalisation, index: int | None) -> Tensor | None:
    argument = None if index is None else stage.operation.args[index]
    return None if argument is None else tape.tensors[argument.value].detach().double().flatten()


def head_projection(tape: Tape, projection: Projection, n_heads: int, groups: bool) -> HeadProjection:
    """The matrices of one projection. With `groups`, heads that share their coordinates are given once."""
    parts = projection.parts
    n_filled = sum(part.placement.is_filled.int() for part in parts)
    if not bool((torch.as_tensor(n_filled) == 1).all()):
        raise RheoscopeError(Message("some coordinates of the heads come from no weight matrix, or from several"))
    if len(parts) > 1 or parts[0].inner is not None:
        return _latent_projection(tape, parts, n_heads)
    (part,) = parts
    key = "by head", part.placement, n_heads, groups
    index, gain, bias = tape.share(key, lambda: _by_head(tape, part, n_heads, groups))
    if part.norm is None:
        return _plain_projection(tape, part, index, gain, bias)
    return _normed_projection(tape, part, part.norm, index, gain, bias)


def join_coordinates(projections: list[HeadProjection]) -> HeadProjection:
    """One projection with the coordinates of several, side by side in every head."""
    if len(projections) == 1:
        return projections[0]
    if any(x.norm is not None for x in projections) or len({x.b is None for x in projections}) > 1:
        raise RheoscopeError(Message("values of several products have a norm or different biases"))
    biases = [x.b for x in projections if x.b is not None]

    counts = [len(x.weights) for x in projections]

    def rows(*results: Tensor) -> Tensor:
        remaining = iter(results)
        return torch.cat([x.rows(*islice(remaining, n)) for x, n in zip(projections, counts, strict=True)], -1)

    return HeadProjection(
        torch.cat([x.W for x in projections], -1),
        torch.cat(biases, -1) if biases else None,
        None,
        tuple(weight for x in projections for weight in x.weights),
        rows,
    )


def _by_head(tape: Tape, part: ProjectionPart, n_heads: int, groups: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The coordinates of every head; with `groups`, every key/value head once, if consecutive heads share it."""
    placement = part.placement
    index, key = placement.index.view(n_heads, -1), ("heads of a group", placement.index, n_heads)
    n_shared = tape.share(key, lambda: n_heads // len(torch.unique(index, dim=0))) if groups else 1
    by_head = index, placement.gain.view(n_heads, -1), placement.bias.view(n_heads, -1)
    first = tuple(x[::n_shared] for x in by_head)
    is_shared = all(torch.equal(x.repeat_interleave(n_shared, 0), y) for x, y in zip(first, by_head, strict=True))
    return first if n_shared > 1 and is_shared else by_head  # type: ignore[return-value]


def weight_matrix(tape: Tape, part: ProjectionPart) -> Tensor:
    """The matrix (d, w) of a part, a view of the model's parameter."""
    matrix = tape.tensors[part.weight.matrix]
    return matrix.reshape(matrix.shape[-2:])


def weight_bias(tape: Tape, part: ProjectionPart) -> Tensor | None:
    return None if part.weight.bias is None else tape.tensors[part.weight.bias].flatten()


def apply_weight(tape: Tape, part: ProjectionPart) -> WeightFunction:
    """The weight as a function of its input: the model's own module, else the matrix. It is the same for all that read its result."""
    return tape.share(("weight function", part.weight.result), lambda: _weight_function(tape, part))


def _weight_function(tape: Tape, part: ProjectionPart) -> WeightFunction:
    module = module_between(tape, part.weight.source, part.weight.result)
    if module is not None and (is_converted(module) or not any(True for _ in module.children())):
        return partial(first_result, module)
    matrix, bias = weight_matrix(tape, part), weight_bias(tape, part)
    return lambda u: u @ matrix if bias is None else u @ matrix + bias


def _plain_projection(tape: Tape, part: ProjectionPart, index: Tensor, gain: Tensor, offset: Tensor) -> HeadProjection:
    """x ↦ x W + b. A bias that is added after the weight arrives as the offset."""
    bias, has_offset = weight_bias(tape, part), bool((offset != 0).any())
    of_heads = tape.share(("choice", index, gain), lambda: coordinate_choice(index, gain))
    W = of_heads(weight_matrix(tape, part)).movedim(-2, 0)
    b = None if bias is None else of_heads(bias)
    if has_offset:
        b = offset.to(W) if b is None else b + offset.to(b)

    def rows(result: Tensor) -> Tensor:
        columns = of_heads(result)
        return (columns + offset.to(columns) if has_offset else columns).transpose(-3, -2)

    return HeadProjection(W, b, None, (apply_weight(tape, part),), rows)


def _normed_projection(
    tape: Tape, part: ProjectionPart, step: NormStep, index: Tensor, gain: Tensor, offset: Tensor
) -> HeadProjection:
    """x ↦ norm(x W + b) gain per head: `index` counts the coordinates of the norm's source."""
    constants, before = step.constants, step.placement
    assert before is not None
    key = "before a norm", before, part.placement.index, index.shape
    own = tape.share(key, lambda: (before.index[index], before.gain[index], before.bias[index]))
    plain = _plain_projection(tape, part, *own)
    gain, offset = with_own_gain(tape, step.norm, index, gain, offset)
    dtype = torch.promote_types(plain.W.dtype, torch.float32)
    norm_gain, bias = (_shared_row(x).to(dtype) for x in (gain * constants.gain, offset))
    norm_class = _norm_class(constants, index)
    norm = norm_class(
        lambda x: x, norm_gain, bias if bool((bias != 0).any()) else None, constants.eps, constants.subtracts_mean
    )

    def rows(result: Tensor) -> Tensor:
        y = plain.rows(result)
        return norm.normed(y.to(torch.promote_types(y.dtype, torch.float32))).to(y.dtype)

    return HeadProjection(plain.W, plain.b, norm, plain.weights, rows)


def _norm_class(constants: NormConstants, index: Int[Tensor, "g k"]) -> type[Norm]:
    """The norm of each head, or of all heads together."""
    if constants.width == index.shape[1]:
        return Norm
    if constants.width == index.numel():
        return NormAcrossHeads
    raise RheoscopeError(
        Message("a norm of queries or keys spans {n} of {m} coordinates", n=constants.width, m=index.numel())
    )


def with_own_gain(
    tape: Tape, norm: Normalisation, index: Tensor, gain: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor]:
    """The gain and bias after a norm, with those inside the operation of a LayerNorm."""
    if norm.scale is not None:
        return gain, offset
    own_gain, own_bias = (
        _parameter(tape, norm, i) for i in ((2, 3) if norm.operation.name == "native_layer_norm" else (2, None))
    )
    offset = offset if own_bias is None else offset + gain * own_bias[index % len(own_bias)]
    return (gain if own_gain is None else gain * own_gain[index % len(own_gain)]), offset


def _shared_row(x: Float[Tensor, "g k"]) -> Tensor:
    """One row if all heads have the same, else a row per head that broadcasts over tokens."""
    return x[0] if bool((x == x[:1]).all()) else x[:, None]


def _latent_projection(tape: Tape, parts: tuple[ProjectionPart, ...], n_heads: int) -> HeadProjection:
    """Latent attention: coordinates come from norm(x A) B, and some directly from x W."""
    latent = [part for part in parts if part.inner is not None]
    if len(latent) != 1 or any(part.norm is not None for part in parts):
        raise RheoscopeError(Message("queries, keys or values have {n} latent parts, expected 1", n=len(latent)))
    columns = [_composed_columns(tape, part, n_heads) for part in parts]
    W = torch.stack([W for W, _ in columns]).sum(0)
    (outer,) = latent
    inner = outer.inner
    assert inner is not None
    is_scaled = outer.placement.is_filled.view(n_heads, -1)
    weights, rows = tuple(_part_weight(tape, part) for part in parts), _rows_of_parts(tape, parts, n_heads)
    if inner.norm is None:
        return HeadProjection(W, None, None, weights, rows)
    if not bool((is_scaled == is_scaled[:1]).all()):
        raise RheoscopeError(Message("heads share a latent vector in different coordinates"))
    constants = inner.norm.constants
    from_latent = _to_latent_rows(tape, outer, n_heads)
    norm = LatentNorm(
        lambda x: x, None, None, constants.eps, False, torch.linalg.pinv(from_latent.double()).to(W), is_scaled[0].to(W)
    )
    return HeadProjection(W, None, norm, weights, rows)


def _outer_columns(tape: Tape, part: ProjectionPart, n_heads: int) -> Float[Tensor, "r hk"]:
    """The columns of a weight at the coordinates of the heads, 0 where they come from elsewhere."""
    placement = part.placement
    if part.weight.bias is not None or bool((placement.bias != 0).any()):
        raise RheoscopeError(Message("a latent projection has a bias"))
    gain = torch.where(placement.is_filled, placement.gain, 0.0)
    matrix = weight_matrix(tape, part).double()
    return matrix[:, placement.index.clamp(max=matrix.shape[1] - 1)] * gain


def _to_latent_rows(tape: Tape, outer: ProjectionPart, n_heads: int) -> Float[Tensor, "r hk"]:
    """B: the rows of the heads for every coordinate of the normalised latent vector."""
    inner = outer.inner
    assert inner is not None
    B = _outer_columns(tape, outer, n_heads)
    gain = inner.placement.gain * (1.0 if inner.norm is None else inner.norm.constants.gain)
    if inner.norm is not None:
        gain, _ = with_own_gain(tape, inner.norm.norm, inner.placement.index, gain, torch.zeros_like(gain))
    by_coordinate = torch.zeros_like(B)
    return by_coordinate.index_add(0, inner.placement.index, gain[:, None] * B)


def _composed_columns(tape: Tape, part: ProjectionPart, n_heads: int) -> tuple[Float[Tensor, "h d k"], None]:
    """The map from what the layer reads to the coordinates of a part, without the scale of a norm."""
    if part.inner is None:
        columns = _outer_columns(tape, part, n_heads)
    else:
        inner, step = part.inner, part.inner.norm
        if inner.inner is not None or inner.weight.bias is not None:
            raise RheoscopeError(Message("a latent vector has a bias or a latent vector of its own"))
        A = weight_matrix(tape, inner).double()
        if step is not None and step.placement is not None:
            A = A[:, step.placement.index] * step.placement.gain
        columns = A @ _to_latent_rows(tape, part, n_heads)
    dtype = weight_matrix(tape, part).dtype
    return columns.unflatten(-1, (n_heads, -1)).transpose(0, 1).to(torch.promote_types(dtype, torch.float32)), None


def _rows_of_parts(tape: Tape, parts: tuple[ProjectionPart, ...], n_heads: int) -> Callable[..., Tensor]:
    """From the results of the weights of all parts to the rows of the heads."""
    choices = [_arriving_coordinates(tape, part) for part in parts]

    def rows(*results: Tensor) -> Tensor:
        chosen = [choose(result) for choose, result in zip(choices, results, strict=True)]
        return torch.stack(chosen).sum(0).unflatten(-1, (n_heads, -1)).transpose(-3, -2)

    return rows


def _arriving_coordinates(tape: Tape, part: ProjectionPart) -> Choice:
    """From the result of the weight of a part to the coordinates of the heads, 0 where they come from elsewhere."""
    placement, width = part.placement, weight_matrix(tape, part).shape[-1]
    gain = torch.where(placement.is_filled, placement.gain, 0.0)
    return coordinate_choice(placement.index.clamp(max=width - 1), gain)


def _part_weight(tape: Tape, part: ProjectionPart) -> WeightFunction:
    """The weight of a part after the part before it, by the model's own modules."""
    linear = apply_weight(tape, part)
    if part.inner is None:
        return linear
    before = _inner_function(tape, part.inner)
    return tape.share(("latent weight", part.weight.result), lambda: lambda u: linear(before(u)))


def _inner_function(tape: Tape, part: ProjectionPart) -> Callable[[Tensor], Tensor]:
    linear, step, placement = apply_weight(tape, part), part.norm, part.placement
    if step is None:
        arriving = coordinate_choice(placement.index, placement.gain)
        return lambda u: arriving(linear(u))
    before, constants = step.placement, step.constants
    assert before is not None
    gain, _ = with_own_gain(tape, step.norm, placement.index, placement.gain, torch.zeros_like(placement.gain))
    norm = Norm(lambda x: x, None, None, constants.eps, constants.subtracts_mean)
    to_norm = coordinate_choice(before.index, before.gain)
    from_norm = coordinate_choice(placement.index, gain * constants.gain)

    def apply(u: Tensor) -> Tensor:
        z = to_norm(linear(u))
        return from_norm(norm.normalise(z.to(torch.promote_types(z.dtype, torch.float32)))).to(z.dtype)

    return apply

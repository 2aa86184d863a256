"""The projection of a cloud onto three axes: the axes, the explained variance and the predicted point."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.reversed_attention.analysis import target_id
from rheoscope.flow.cloud import select_clouds
from rheoscope.flow.frames.analysis import logit_direction, predicted_token
from rheoscope.messages.advice import page_setting
from rheoscope.messages.message import Message
from rheoscope.report.parse_options import parse_token
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.trace import Trace

SPACES = ("raw", "sphere")
DEFAULT_AXES = "prediction"
"""The axes of a cloud unless others are named."""
DEFAULT_PROJECTION = (DEFAULT_AXES, "sphere")
"""The axes and the space of stored clouds."""
FindText = Callable[[str], tuple[Model, Trace]]
"""The model and the trace of a text by its id."""
MAX_EIGH_WIDTH = 1024
"""Largest width at which all eigenvectors of the covariance are computed. Above it, subspace iteration is used."""


@dataclass(frozen=True, eq=False)
class ProjectedCloud:
    """Coordinates of every token after every step, of the predicted token, and the variance fraction of each axis."""

    points: Float[Tensor, "p n 3"]
    predicted_point: Float[Tensor, " 3"]
    variance_fractions: Float[Tensor, " 3"]


@dataclass(frozen=True, eq=False)
class Axes:
    """Three orthonormal directions of E and a centre. Directions that do not exist are 0."""

    directions: Float[Tensor, "d 3"]
    centre: Float[Tensor, " d"]


@torch.no_grad()
def project_cloud(trace: Trace, axes: Axes, space: str) -> ProjectedCloud:
    """Project the cloud, massive tokens included, onto three axes."""
    centred_points = at_least_float32(select_clouds(trace, space, keep_massive=True).points) - axes.centre
    coordinates = centred_points @ axes.directions
    total_square = centred_points.square().sum().clamp(min=torch.finfo(coordinates.dtype).tiny)
    return ProjectedCloud(
        coordinates,
        (_predicted_point(trace, space) - axes.centre) @ axes.directions,
        coordinates.square().sum((0, 1)) / total_square,
    )


@torch.no_grad()
def principal_axes(trace: Trace, space: str) -> Axes:
    """The first three principal directions of the points of all steps."""
    return fit_axes(_nonmassive_points(trace, space))


@torch.no_grad()
def prediction_axes(trace: Trace, space: str) -> Axes:
    """The direction from the centre of the cloud to the predicted token, and the two principal directions across it.

    The way to the prediction is a small part of the variance, so principal axes may hide it. A model that predicts no token has
    principal axes.
    """
    if not trace.view.predicts_tokens:
        return principal_axes(trace, space)
    rows = _nonmassive_points(trace, space).flatten(0, -2)
    centre = rows.mean(0)
    first = torch.nn.functional.normalize(_predicted_point(trace, space) - centre, dim=0)
    centred_rows = rows - centre
    across = fit_axes(centred_rows - (centred_rows @ first)[:, None] * first).directions[:, :2]
    return Axes(torch.cat([first[:, None], across], 1), centre)


def resolve_axes_name(trace: Trace, axes_name: str) -> str:
    """The name of the axes that a trace has: `all` instead of `prediction` if its model predicts no token."""
    return axes_name if trace.view.predicts_tokens else re.sub(r"(^|/)prediction$", r"\1all", axes_name)


@torch.no_grad()
def parse_axes(model: Model, trace: Trace, axes_name: str, space: str, find_text: FindText) -> Axes:
    """Axes by name: `prediction`, `all` (principal axes), `from:2` (without the first), `layer:K`, `tokens:a,b,c`, or those of a text.

    `text:ID` uses the principal axes of that text, `text:ID/layer:K` and `text:ID/tokens:a,b` its other axes. This puts two
    clouds on the same axes.
    """
    if space not in SPACES:
        raise RheoscopeError(
            Message("space must be one of {spaces}, got {received!r}", spaces=", ".join(SPACES), received=space[:40]),
            page_setting("space=sphere"),
        )
    kind, _, argument = axes_name.partition(":")
    if kind == "all" and not argument:
        return principal_axes(trace, space)
    if kind == "prediction" and not argument:
        return prediction_axes(trace, space)
    if kind == "from":
        return fit_axes(_nonmassive_points(trace, space), _first_axis_number(argument))
    if kind == "layer":
        return fit_axes(_nonmassive_points(trace, space)[layer_end_step(trace, argument)])
    if kind == "text":
        text_id, _, lent_name = argument.partition("/")
        lending_model, lending_trace = find_text(text_id)
        if lending_trace.points.shape[-1] != trace.points.shape[-1]:
            raise RheoscopeError(
                Message(
                    "axes must come from a model of width {expected}, got width {received}",
                    expected=trace.points.shape[-1],
                    received=lending_trace.points.shape[-1],
                ),
                page_setting("axes=all"),
            )
        if lent_name.startswith("text:"):
            raise RheoscopeError(
                Message("axes of a text cannot refer to a third text"), page_setting("axes=text:ID/layer:3")
            )
        return parse_axes(lending_model, lending_trace, lent_name or "all", space, find_text)
    if kind == "tokens":
        return token_axes(model, argument, _nonmassive_points(trace, space))
    raise RheoscopeError(
        Message(
            "axes must be one of {axes}, got {received!r}",
            axes="prediction, all, from:2, layer:3, text:ID, tokens: on, of",
            received=axes_name[:80],
        ),
        page_setting("axes=all"),
    )


def _first_axis_number(number: str) -> int:
    """The number of the first axis, from 1."""
    if number not in ("1", "2", "3", "4"):
        raise RheoscopeError(
            Message("the number of the first axis must lie between 1 and 4, got {received!r}", received=number[:20]),
            page_setting("axes=from:2"),
        )
    return int(number)


def layer_end_step(trace: Trace, layer: str) -> int:
    """The index of the step after a layer."""
    if not layer.isdecimal() or len(layer) > 4:
        raise RheoscopeError(
            Message("the layer of the axes must be a number, got {received!r}", received=layer[:20]),
            page_setting("axes=layer:3"),
        )
    trace.view.heads_of(int(layer))
    return trace.index(f"L{int(layer)}.resid_post")


def _nonmassive_points(trace: Trace, space: str) -> Float[Tensor, "p n d"]:
    """The points that axes are fitted to. Massive tokens are left out, because each would take an axis."""
    return at_least_float32(select_clouds(trace, space).points)


def fit_axes(cloud: Float[Tensor, "*p n d"], first_axis: int = 1) -> Axes:
    """Three principal directions of a cloud, from number `first_axis` on. The largest coordinate along each is positive."""
    rows = cloud.flatten(0, -2)
    centre = rows.mean(0)
    centred_rows = rows - centre
    directions = leading_directions(centred_rows, first_axis)
    coordinates = centred_rows @ directions
    sign = coordinates.gather(0, coordinates.abs().argmax(0, keepdim=True)).sign()
    return Axes(directions * torch.where(sign == 0, 1, sign), centre)


def leading_directions(centred_rows: Float[Tensor, "m d"], first_axis: int = 1) -> Float[Tensor, "d 3"]:
    """Three principal directions of centred rows, from number `first_axis` on. Directions beyond their rank are 0."""
    width = centred_rows.shape[-1]
    directions = (
        _eigh_directions(centred_rows.double())
        if width <= MAX_EIGH_WIDTH
        else _iterated_directions(centred_rows.double())
    )
    rank = min(width, max(0, len(centred_rows) - 1))
    shown_directions = directions[:, :rank][:, first_axis - 1 : first_axis + 2]
    return torch.nn.functional.pad(shown_directions, (0, 3 - shown_directions.shape[-1])).to(centred_rows)


def _eigh_directions(centred_rows: Float[Tensor, "m d"]) -> Float[Tensor, "d d"]:
    return torch.linalg.eigh(centred_rows.mT @ centred_rows).eigenvectors.flip(-1)


def _iterated_directions(
    centred_rows: Float[Tensor, "m d"], block_size: int = 12, n_iterations: int = 24
) -> Float[Tensor, "d block"]:
    """The first principal directions by subspace iteration from a fixed start."""
    start = torch.randn(
        centred_rows.shape[-1], block_size, generator=torch.Generator().manual_seed(0), dtype=centred_rows.dtype
    )
    basis = torch.linalg.qr(start.to(centred_rows.device)).Q
    for _ in range(n_iterations):
        basis = torch.linalg.qr(centred_rows.mT @ (centred_rows @ basis)).Q
    projected = centred_rows @ basis
    return basis @ torch.linalg.eigh(projected.mT @ projected).eigenvectors.flip(-1)


def token_axes(model: Model, token_list: str, cloud: Float[Tensor, "p n d"]) -> Axes:
    """Axes along the logit directions of two or three tokens, each orthogonal to the ones before it."""
    token_texts = [token_text for token_text in token_list.split(",") if token_text]
    if not 2 <= len(token_texts) <= 3:
        raise RheoscopeError(
            Message("token axes need two or three tokens, got {received}", received=len(token_texts)),
            page_setting("axes=tokens: on, of"),
        )
    if model.view.unembed is None:
        raise RheoscopeError(
            Message("token axes need an unembedding, and this model has none"), page_setting("axes=all")
        )
    logit_directions = [
        logit_direction(model.view, target_id(model, parse_token(token_text))) for token_text in token_texts
    ]
    directions = torch.linalg.qr(torch.stack(logit_directions, -1).to(cloud)).Q
    directions = directions * (directions * torch.stack(logit_directions, -1).to(cloud)).sum(0).sign()
    return Axes(torch.nn.functional.pad(directions, (0, 3 - len(token_texts))), cloud.flatten(0, -2).mean(0))


def _predicted_point(trace: Trace, space: str) -> Float[Tensor, " d"]:
    """The logit direction of the predicted next token, on the sphere or with the norm of the last point."""
    if trace.view.unembed is None:
        return torch.full_like(at_least_float32(trace.points[-1, -1]), torch.nan)
    direction = logit_direction(trace.view, predicted_token(trace, -1)).to(at_least_float32(trace.points[-1, -1]))
    return direction if space == "sphere" else direction * at_least_float32(trace.points[-1, -1]).norm()

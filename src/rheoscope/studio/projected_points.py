"""The cloud on three axes: which axes, how much of it they show, and where the prediction lies among them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.reversed_attention.analysis import target_id
from rheoscope.flow.cloud import select_clouds
from rheoscope.flow.frames.analysis import logit_direction, predicted_token
from rheoscope.report.parse_options import parse_token
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.trace import Trace

SPACES = ("raw", "sphere")
FindText = Callable[[str], tuple[Model, Trace]]
"""Finds a text that lends its axes, and its model, by its id."""
MAX_EIGH_WIDTH = 1024
"""Dimensions up to which the covariance is taken apart whole; beyond, its leading directions are found step by step."""


@dataclass(frozen=True, eq=False)
class ProjectedCloud:
    """Every token after every step on three axes (p, n, 3), the prediction's place (3), the share of variance of each axis (3)."""

    points: Float[Tensor, "p n 3"]
    predicted_point: Float[Tensor, " 3"]
    variance_fractions: Float[Tensor, " 3"]


@dataclass(frozen=True, eq=False)
class Axes:
    """Three directions of E (orthonormal, or 0 where there are fewer) around a centre."""

    directions: Float[Tensor, "d 3"]
    centre: Float[Tensor, " d"]


@torch.no_grad()
def project_cloud(trace: Trace, axes: Axes, space: str) -> ProjectedCloud:
    """The cloud, massive tokens with it, on three axes."""
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
    """The three directions in which all steps together spread most."""
    return fit_axes(_nonmassive_points(trace, space))


@torch.no_grad()
def parse_axes(model: Model, trace: Trace, axes_name: str, space: str, find_text: FindText) -> Axes:
    """Axes by their name, in a space that the page knows: `all`, `layer:K`, `tokens:a,b,c`, or those of another text, which `other` finds.

    `text:ID` are its axes of all layers, `text:ID/layer:K` and `text:ID/tokens:a,b` its others: two clouds on the axes of one.
    """
    if space not in SPACES:
        raise RheoscopeError(f"unknown space {space[:40]!r}; type one of {', '.join(SPACES)}")
    kind, _, argument = axes_name.partition(":")
    if kind == "all" and not argument:
        return principal_axes(trace, space)
    if kind == "layer":
        return fit_axes(_nonmassive_points(trace, space)[layer_end_step(trace, argument)])
    if kind == "text":
        text_id, _, lent_name = argument.partition("/")
        lending_model, lending_trace = find_text(text_id)
        if lending_trace.points.shape[-1] != trace.points.shape[-1]:
            raise RheoscopeError("axes are lent by a text of the same width of E; type a text of the same model")
        if lent_name.startswith("text:"):
            raise RheoscopeError("a text lends its own axes, not another's; type text:ID or text:ID/layer:3")
        return parse_axes(lending_model, lending_trace, lent_name or "all", space, find_text)
    if kind == "tokens":
        return token_axes(model, argument, _nonmassive_points(trace, space))
    raise RheoscopeError(f"unknown axes {axes_name!r}; type all, layer:3, text:ID or tokens: on, of")


def layer_end_step(trace: Trace, layer: str) -> int:
    """The step at the end of a layer, by its number."""
    if not layer.isdecimal() or len(layer) > 4:
        raise RheoscopeError(f"axes of a layer are typed as layer:3, got {layer[:20]!r}")
    trace.view.heads_of(int(layer))
    return trace.index(f"L{int(layer)}.resid_post")


def _nonmassive_points(trace: Trace, space: str) -> Float[Tensor, "p n d"]:
    """The tokens that axes are fitted to: massive ones, which would take an axis each, are seen but do not count."""
    return at_least_float32(select_clouds(trace, space).points)


def fit_axes(cloud: Float[Tensor, "*p n d"]) -> Axes:
    """The three directions in which a cloud spreads most (PCA); the token farthest along one lies on its positive side."""
    rows = cloud.flatten(0, -2)
    centre = rows.mean(0)
    centred_rows = rows - centre
    directions = leading_directions(centred_rows)
    coordinates = centred_rows @ directions
    sign = coordinates.gather(0, coordinates.abs().argmax(0, keepdim=True)).sign()
    return Axes(directions * torch.where(sign == 0, 1, sign), centre)


def leading_directions(centred_rows: Float[Tensor, "m d"]) -> Float[Tensor, "d 3"]:
    """The three leading directions of centred rows, 0 where they span fewer."""
    width = centred_rows.shape[-1]
    directions = (
        _eigh_directions(centred_rows.double())
        if width <= MAX_EIGH_WIDTH
        else _iterated_directions(centred_rows.double())
    )
    rank = min(3, width, max(0, len(centred_rows) - 1))
    return torch.nn.functional.pad(directions[:, :rank], (0, 3 - rank)).to(centred_rows)


def _eigh_directions(centred_rows: Float[Tensor, "m d"]) -> Float[Tensor, "d d"]:
    return torch.linalg.eigh(centred_rows.mT @ centred_rows).eigenvectors.flip(-1)


def _iterated_directions(
    centred_rows: Float[Tensor, "m d"], block_size: int = 12, n_iterations: int = 24
) -> Float[Tensor, "d block"]:
    """Subspace iteration, from the same start every time."""
    start = torch.randn(
        centred_rows.shape[-1], block_size, generator=torch.Generator().manual_seed(0), dtype=centred_rows.dtype
    )
    basis = torch.linalg.qr(start.to(centred_rows.device)).Q
    for _ in range(n_iterations):
        basis = torch.linalg.qr(centred_rows.mT @ (centred_rows @ basis)).Q
    projected = centred_rows @ basis
    return basis @ torch.linalg.eigh(projected.mT @ projected).eigenvectors.flip(-1)


def token_axes(model: Model, token_list: str, cloud: Float[Tensor, "p n d"]) -> Axes:
    """Axes along the directions in which two or three tokens are predicted, each less what the ones before it show."""
    token_texts = [token_text for token_text in token_list.split(",") if token_text]
    if not 2 <= len(token_texts) <= 3:
        raise RheoscopeError(
            f"axes along tokens name two or three of them, got {len(token_texts)}; type tokens: on, of"
        )
    if model.view.unembed is None:
        raise RheoscopeError("this model has no unembedding, so no token has a direction; type axes=all")
    logit_directions = [
        logit_direction(model.view, target_id(model, parse_token(token_text))) for token_text in token_texts
    ]
    directions = torch.linalg.qr(torch.stack(logit_directions, -1).to(cloud)).Q
    directions = directions * (directions * torch.stack(logit_directions, -1).to(cloud)).sum(0).sign()
    return Axes(torch.nn.functional.pad(directions, (0, 3 - len(token_texts))), cloud.flatten(0, -2).mean(0))


def _predicted_point(trace: Trace, space: str) -> Float[Tensor, " d"]:
    """Where the likeliest next token's logit is largest: on the sphere, or as far out as the last token ends."""
    if trace.view.unembed is None:
        return torch.full_like(at_least_float32(trace.points[-1, -1]), torch.nan)
    direction = logit_direction(trace.view, predicted_token(trace, -1)).to(at_least_float32(trace.points[-1, -1]))
    return direction if space == "sphere" else direction * at_least_float32(trace.points[-1, -1]).norm()

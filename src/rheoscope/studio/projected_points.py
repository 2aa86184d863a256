"""The cloud on three axes: which axes, how much of it they show, and where the prediction lies among them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.reversed_attention.analysis import target_id
from rheoscope.flow.cloud import clouds
from rheoscope.flow.frames.analysis import direction_of, likeliest
from rheoscope.report.parse_options import token_of
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.trace import Trace

SPACES = ("raw", "sphere")
Other = Callable[[str], tuple[Model, Trace]]
"""Finds a text that lends its axes, and its model, by its id."""
WIDEST = 1024
"""Dimensions up to which the covariance is taken apart whole; beyond, its leading directions are found step by step."""


@dataclass(frozen=True, eq=False)
class Projected:
    """Every token after every step on three axes (p, n, 3), the prediction's place (3), the share of variance of each axis (3)."""

    points: Float[Tensor, "p n 3"]
    star: Float[Tensor, " 3"]
    shares: Float[Tensor, " 3"]


@dataclass(frozen=True, eq=False)
class Axes:
    """Three directions of E (orthonormal, or 0 where there are fewer) around a centre."""

    along: Float[Tensor, "d 3"]
    centre: Float[Tensor, " d"]


@torch.no_grad()
def projected(trace: Trace, on: Axes, space: str) -> Projected:
    """The cloud, massive tokens with it, on three axes."""
    apart = exact(clouds(trace, space, keep_massive=True).points) - on.centre
    flat = apart @ on.along
    whole = apart.square().sum().clamp(min=torch.finfo(flat.dtype).tiny)
    return Projected(flat, (_star(trace, space) - on.centre) @ on.along, flat.square().sum((0, 1)) / whole)


@torch.no_grad()
def widest(trace: Trace, space: str) -> Axes:
    """The three directions in which all steps together spread most."""
    return fitted(_ordinary(trace, space))


@torch.no_grad()
def axes_of(model: Model, trace: Trace, axes: str, space: str, other: Other) -> Axes:
    """Axes by their name, in a space that the page knows: `all`, `layer:K`, `tokens:a,b,c`, or those of another text, which `other` finds.

    `text:ID` are its axes of all layers, `text:ID/layer:K` and `text:ID/tokens:a,b` its others: two clouds on the axes of one.
    """
    if space not in SPACES:
        raise RheoscopeError(f"unknown space {space[:40]!r}; type one of {', '.join(SPACES)}")
    kind, _, rest = axes.partition(":")
    if kind == "all" and not rest:
        return widest(trace, space)
    if kind == "layer":
        return fitted(_ordinary(trace, space)[end_of(trace, rest)])
    if kind == "text":
        name, _, theirs = rest.partition("/")
        lending, found = other(name)
        if found.points.shape[-1] != trace.points.shape[-1]:
            raise RheoscopeError("axes are lent by a text of the same width of E; type a text of the same model")
        if theirs.startswith("text:"):
            raise RheoscopeError("a text lends its own axes, not another's; type text:ID or text:ID/layer:3")
        return axes_of(lending, found, theirs or "all", space, other)
    if kind == "tokens":
        return towards(model, rest, _ordinary(trace, space))
    raise RheoscopeError(f"unknown axes {axes!r}; type all, layer:3, text:ID or tokens: on, of")


def end_of(trace: Trace, layer: str) -> int:
    """The step at the end of a layer, by its number."""
    if not layer.isdecimal() or len(layer) > 4:
        raise RheoscopeError(f"axes of a layer are typed as layer:3, got {layer[:20]!r}")
    trace.view.heads_of(int(layer))
    return trace.index(f"L{int(layer)}.resid_post")


def _ordinary(trace: Trace, space: str) -> Float[Tensor, "p n d"]:
    """The tokens that axes are fitted to: massive ones, which would take an axis each, are seen but do not count."""
    return exact(clouds(trace, space).points)


def fitted(cloud: Float[Tensor, "*p n d"]) -> Axes:
    """The three directions in which a cloud spreads most (PCA); the token farthest along one lies on its positive side."""
    rows = cloud.flatten(0, -2)
    centre = rows.mean(0)
    apart = rows - centre
    along = leading(apart)
    flat = apart @ along
    sign = flat.gather(0, flat.abs().argmax(0, keepdim=True)).sign()
    return Axes(along * torch.where(sign == 0, 1, sign), centre)


def leading(apart: Float[Tensor, "m d"]) -> Float[Tensor, "d 3"]:
    """The three leading directions of centred rows, 0 where they span fewer."""
    width = apart.shape[-1]
    found = _at_once(apart.double()) if width <= WIDEST else _by_steps(apart.double())
    rank = min(3, width, max(0, len(apart) - 1))
    return torch.nn.functional.pad(found[:, :rank], (0, 3 - rank)).to(apart)


def _at_once(apart: Float[Tensor, "m d"]) -> Float[Tensor, "d d"]:
    return torch.linalg.eigh(apart.mT @ apart).eigenvectors.flip(-1)


def _by_steps(apart: Float[Tensor, "m d"], block: int = 12, steps: int = 24) -> Float[Tensor, "d block"]:
    """Subspace iteration, from the same start every time."""
    start = torch.randn(apart.shape[-1], block, generator=torch.Generator().manual_seed(0), dtype=apart.dtype)
    basis = torch.linalg.qr(start.to(apart.device)).Q
    for _ in range(steps):
        basis = torch.linalg.qr(apart.mT @ (apart @ basis)).Q
    seen = apart @ basis
    return basis @ torch.linalg.eigh(seen.mT @ seen).eigenvectors.flip(-1)


def towards(model: Model, typed: str, cloud: Float[Tensor, "p n d"]) -> Axes:
    """Axes along the directions in which two or three tokens are predicted, each less what the ones before it show."""
    words = [word for word in typed.split(",") if word]
    if not 2 <= len(words) <= 3:
        raise RheoscopeError(f"axes along tokens name two or three of them, got {len(words)}; type tokens: on, of")
    if model.view.unembed is None:
        raise RheoscopeError("this model has no unembedding, so no token has a direction; type axes=all")
    wanted = [direction_of(model.view, target_id(model, token_of(word))) for word in words]
    along = torch.linalg.qr(torch.stack(wanted, -1).to(cloud)).Q
    along = along * (along * torch.stack(wanted, -1).to(cloud)).sum(0).sign()
    return Axes(torch.nn.functional.pad(along, (0, 3 - len(words))), cloud.flatten(0, -2).mean(0))


def _star(trace: Trace, space: str) -> Float[Tensor, " d"]:
    """Where the likeliest next token's logit is largest: on the sphere, or as far out as the last token ends."""
    if trace.view.unembed is None:
        return torch.full_like(exact(trace.points[-1, -1]), torch.nan)
    direction = direction_of(trace.view, likeliest(trace, -1)).to(exact(trace.points[-1, -1]))
    return direction if space == "sphere" else direction * exact(trace.points[-1, -1]).norm()

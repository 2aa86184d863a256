"""How does every token move through the layers? Speed, path, straightness, turning, and who moves it."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.block_size import numbers_at_once
from rheoscope.flow.cloud import clouds, placed
from rheoscope.flow.head_motion import of_heads
from rheoscope.flow.projection import on_plane, plane
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.float32_products import inner
from rheoscope.space.masked_means import There, kept, mean
from rheoscope.space.safe_arithmetic import share
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def trajectory(
    trace: Trace, space: str = "raw", draws: int = 200, seed: int = 0, keep_massive: bool = False
) -> "xarray.Dataset":
    """The path of every token through the half-layers.

    **Answers** "how far does each layer move the tokens, do they go straight, and does attention or the MLP move them?"

    **Formula** with Δ_s = x_{s+1} − x_s: speed ‖Δ_s‖, path Σ‖Δ_s‖, chord ‖ΣΔ_s‖, straightness chord/path, turning
    angle(Δ_s, Δ_{s+1}).

    **Gives** (step, token): `speed`, `relative_speed`; (turn, token): `turning`; (token): `path_length`, `chord`,
    `straightness` and its null; (draw): `straightness_flipped`; (layer): `attention_share`; (layer, head): `head_speed`,
    `head_cosine`, whatever the space in the raw one; (layer, token): `straightness_so_far`; (point, token, axis): `place`,
    (axis): `place_share`, a map of the paths on the sphere. Massive tokens are dropped and listed in `attrs["massive"]`.

    **Laws** chord ≤ path; straightness lies in [0, 1]; unchanged by a turn of the axes of E, scaled by a scale.

    **Relation** `transport` asks of the whole cloud what this asks of each token.

    >>> import rheoscope as rs
    >>> path = rs.trajectory(rs.load().trace("The keys to the cabinet are"))
    >>> bool((path.chord <= path.path_length).all())
    True
    """
    seen = clouds(trace, space, "half", keep_massive)
    points, raw = seen.points, trace.points if len(seen.tokens) == len(trace) else trace.points[:, seen.tokens]
    moved = displacements(raw, trace.view)
    values = of_points(trace, points, moved if space == "raw" else None, points.norm(dim=-1), draws, seed)
    heads = of_heads(trace, raw, moved, rows=seen.tokens)
    values |= of_plane(points, trace)
    coords = {
        "point": list(seen.steps),
        "step": list(seen.steps[1:]),
        "token": seen.tokens,
        "word": ("token", seen.words),
        "layer": range(trace.view.layers),
        "head": range(trace.view.heads),
    }
    values |= {"head_speed": heads[0], "head_cosine": heads[1]}
    return TRAJECTORY.answer(values, coords, {"draws": draws, "seed": seed} | seen.attributes)


@torch.no_grad()
def batch(
    traces: Traces, space: str = "raw", draws: int = 200, seed: int = 0, keep_massive: bool = False
) -> dict[str, Tensor]:
    """Paths of many texts at once, and what heads do: all but the map of the paths, which is one text's."""
    there, moved = traces.counted(keep_massive), displacements(traces.points, traces.view)
    values = paths(traces, space, draws, seed, keep_massive, moved if space == "raw" else None)
    heads = of_heads(traces, traces.points, moved, there)
    return values | {"head_speed": heads[0], "head_cosine": heads[1]}


@torch.no_grad()
def paths(
    traces: Traces,
    space: str = "raw",
    draws: int = 200,
    seed: int = 0,
    keep_massive: bool = False,
    moved: Float[Tensor, "b n s d"] | None = None,
) -> dict[str, Tensor]:
    """The part of `batch` that needs no attention computed again: all that the points tell."""
    there, points = traces.counted(keep_massive), placed(traces.view, traces.points, space)
    length = traces.norms if space == "raw" else points.norm(dim=-1)
    values = of_points(traces, points, moved, length, draws, seed, there)
    per_token = (name for name in values if "token" in TRAJECTORY.fields[name].dims)
    return values | {name: kept(values[name], there, torch.nan) for name in per_token}


def ends_of(trace: Trace | Traces) -> list[int]:
    """The last point of every layer."""
    return [*trace.where[1:], len(trace.steps) - 1]


def of_points(
    trace: Trace | Traces,
    points: Float[Tensor, "*b p n d"],
    moved: Float[Tensor, "*b n s d"] | None,
    length: Float[Tensor, "*b p n"],
    draws: int,
    seed: int,
    there: There = None,
) -> dict[str, Tensor]:
    """All that the points of a text alone tell, from their inner products where displacements in half precision will do."""
    moved = displacements(points, trace.view) if moved is None else moved
    sign = signs(points, draws, seed)
    found = of_displacements(points, sign) if moved is None else of_inner_products(moved, sign)
    return kernel(found, length, trace.where, trace.middle, ends_of(trace), there)


def kernel(
    moves: "Moves",
    length: Float[Tensor, "*b p n"],
    starts: Sequence[int],
    middles: Sequence[int],
    ends: Sequence[int],
    there: There = None,
) -> dict[str, Tensor]:
    """All numbers of the paths of one text or of several, from what their displacements are like and the lengths of the points.

    `starts`, `middles` and `ends` are the points that each layer reads, that its attention leaves and that it leaves.
    """
    speed, chords, turning, drawn = moves
    path, chord = speed.sum(-2), chords[..., -1, :]
    last = slice(ends[0] - 1, None, ends[0] - starts[0])  # the last step of every layer: all have as many
    return {
        "speed": speed,
        "relative_speed": speed / length[..., :-1, :].clamp(min=1e-30),
        "turning": turning,
        "path_length": path,
        "chord": chord,
        "straightness": share(chord, path),
        "straightness_null": share(speed.square().sum(-2).sqrt(), path),
        "straightness_flipped": mean(share(drawn, path[..., None, :]), there),
        "straightness_so_far": share(chords[..., last, :], speed.cumsum(-2)[..., last, :]),
        "attention_share": attention_share(kept(speed, there), starts, middles, ends),
    }


Moves = tuple[Float[Tensor, "*b s n"], Float[Tensor, "*b s n"], Float[Tensor, "*b t n"], Float[Tensor, "*b draw n"]]
"""Speed, distance from the start, turning, and how far one would get with the signs of a draw."""


def of_displacements(points: Float[Tensor, "*b p n d"], sign: Float[Tensor, "draw s"]) -> Moves:
    """From displacements themselves, in the dtype of the points."""
    moved, first = points.diff(dim=-3), points[..., 0, :, :]
    chords = torch.stack([(x - first).norm(dim=-1) for x in points.unbind(-3)[1:]], -2)
    return moved.norm(dim=-1), chords, angles(moved), flipped(moved, sign)


def of_inner_products(moved: Float[Tensor, "*b n s d"], sign: Float[Tensor, "draw s"]) -> Moves:
    """From ⟨Δ_s, Δ_t⟩ of every token, sums in float32 or better: two passes over the points.

    Rounding is at random along E, so that an inner product is off by 2⁻⁹/√d of both lengths in bfloat16: far less than what the
    rounding of the points does to a displacement.
    """
    table = inner(moved)
    speed, ahead = table.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt().mT, table.diagonal(1, dim1=-2, dim2=-1).mT
    both = speed[..., 1:, :] * speed[..., :-1, :]
    turning = torch.where(both > 0, torch.acos((ahead / torch.where(both > 0, both, 1)).clamp(-1, 1)), 0)
    ways = torch.cat([sign.new_ones(sign.shape[1], sign.shape[1]).tril(), sign]).to(table)
    reached = table.flatten(-2) @ (ways[:, :, None] * ways[:, None, :]).flatten(1).mT  # ‖Σ_s way_s Δ_s‖²
    chords, drawn = reached.clamp(min=0).sqrt().mT.split([sign.shape[1], len(sign)], -2)
    return speed, chords, turning, drawn


def displacements(points: Float[Tensor, "*b p n d"], view: View) -> Float[Tensor, "*b n s d"] | None:
    """In half precision, token by token, so that those of one stand together; None where the model is not read in it."""
    dtype = view.as_read(points[:0]).dtype
    if dtype.itemsize >= 4:
        return None
    *texts, p, n, d = points.shape
    moved = torch.empty(*texts, n, p - 1, d, dtype=dtype, device=points.device)
    for step, (before, after) in enumerate(pairwise(points.unbind(-3))):
        torch.sub(after, before, out=moved[..., step, :])
    return moved


def of_plane(points: Float[Tensor, "p n d"], trace: Trace) -> dict[str, Tensor]:
    """A map of the paths on the sphere: the plane of `frames`."""
    place = on_plane(points, plane(points, [*trace.where, len(trace.steps) - 1]))
    return {"place": place, "place_share": place.square().mean((-3, -2))}


def angles(moved: Float[Tensor, "*b s n d"]) -> Float[Tensor, "*b t n"]:
    """Between each displacement and the next, by atan2 of chords: exact near 0 and π too; 0 where a token rests."""
    unit = (one / one.norm(dim=-1, keepdim=True).clamp(min=1e-30) for one in moved.unbind(-3))
    chords = [((after - before).norm(dim=-1), (after + before).norm(dim=-1)) for before, after in pairwise(unit)]
    return 2 * torch.atan2(*(torch.stack(chord, -2) for chord in zip(*chords, strict=True)))


def signs(points: Float[Tensor, "*b p n d"], draws: int, seed: int) -> Float[Tensor, "draw s"]:
    """Forwards or backwards, one sign a step for all tokens.

    One sign for all keeps what tokens do together, so that the draws are as spread as the mean over tokens really is.
    """
    sign = torch.randint(0, 2, (draws, points.shape[-3] - 1), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return sign.to(points.device, points.dtype, non_blocking=True)


def flipped(moved: Float[Tensor, "*b s n d"], sign: Float[Tensor, "draw s"]) -> Float[Tensor, "*b draw n"]:
    """How far every token gets whose steps are taken forwards or backwards."""
    chords = []
    for some in moved.split(_tokens_at_once(moved), dim=-2):
        gram = torch.einsum("...snd,...tnd->...nst", some, some)
        chords.append(torch.einsum("ks,...nst,kt->...kn", sign, gram, sign))
    return torch.cat(chords, -1).clamp(min=0).sqrt()


def _tokens_at_once(moved: Float[Tensor, "*b s n d"]) -> int:
    """As many as have their displacements, and the inner products of these, near the cores."""
    *texts, steps, _, width = moved.shape
    return max(1, numbers_at_once(moved.device) // (math.prod(texts) * steps * (steps + width)))


def attention_share(
    speed: Float[Tensor, "*b s n"], starts: Sequence[int], middles: Sequence[int], ends: Sequence[int]
) -> Float[Tensor, "*b layer"]:
    """Σ‖Δ_attention‖ / (Σ‖Δ_attention‖ + Σ‖Δ_rest‖) of every layer; all layers have the same steps."""
    step = speed.sum(-1)[..., starts[0] : ends[-1]].unflatten(-1, (len(starts), -1))
    return share(step[..., : middles[0] - starts[0]].sum(-1), step.sum(-1))


TRAJECTORY = Analysis(
    name="trajectory",
    question="How far does each layer move the tokens, do they go straight, and who moves them?",
    ask=trajectory,
    batch=batch,
    needs="trace",
    fields={
        "speed": Field(("step", "token"), "‖x_after − x_before‖, how far a half-layer moves a token"),
        "relative_speed": Field(("step", "token"), "speed over ‖x_before‖"),
        "turning": Field(
            ("turn", "token"),
            "angle between one half-layer's displacement and the next: 0 straight on, π back",
            unit="radians",
        ),
        "path_length": Field(("token",), "sum of the speeds of a token"),
        "chord": Field(("token",), "‖x_last − x_first‖ of a token"),
        "straightness": Field(
            ("token",),
            "chord over path length: 1 for a straight line; 1/√steps for steps at right angles",
            null="straightness_null",
        ),
        "straightness_null": Field(
            ("token",), "the same for displacements of the same lengths in random directions: √Σ speed² / Σ speed"
        ),
        "straightness_flipped": Field(
            ("draw",),
            "mean straightness where each half-layer moves all tokens forwards or backwards at random, by draw",
        ),
        "straightness_so_far": Field(
            ("layer", "token"), "chord over path length from the first step to the end of a layer"
        ),
        "place": Field(
            ("point", "token", "axis"),
            "a token's direction around the mean of its cloud, on the two directions in which those of all layers together "
            "spread most (PCA): the plane of `frames`",
        ),
        "place_share": Field(
            ("axis",), "share of the directions' variance, over all points, that each of the two holds"
        ),
        "attention_share": Field(
            ("layer",), "attention's share of the path in a layer: its summed speed over that of attention and MLP"
        ),
        "head_speed": Field(
            ("layer", "head"),
            "‖Δ_h‖, mean over tokens: how far what a head takes from the tokens moves one, in the stream as it is; without the "
            "bias of values, which no head owns",
        ),
        "head_cosine": Field(
            ("layer", "head"),
            "cos(Δ_h, Δ), mean over tokens, Δ what the attention of the layer adds as a whole: 1 pulls where all pull",
        ),
    },
)

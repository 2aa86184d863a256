"""How does every token move through the layers? Speed, path, straightness, turning, and who moves it."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.block_size import numbers_at_once
from rheoscope.flow.cloud import clouds
from rheoscope.flow.projection import on_plane, plane
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.share import share
from rheoscope.space.trace import Trace

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
    ends = [*trace.where[1:], len(trace.steps) - 1]
    heads = torch.stack([of_heads(trace, layer, seen.tokens) for layer in range(trace.view.layers)], 1)
    values = kernel(seen.points, trace.where, trace.middle, ends, draws, seed)
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


def kernel(
    points: Float[Tensor, "*b p n d"],
    starts: Sequence[int],
    middles: Sequence[int],
    ends: Sequence[int],
    draws: int,
    seed: int,
) -> dict[str, Tensor]:
    """All that the points alone tell, of one text or of several of one length, on any device.

    `starts`, `middles` and `ends` are the points that each layer reads, that its attention leaves and that it leaves.
    """
    moved, first = points.diff(dim=-3), points[..., 0, :, :]
    speed, chords = moved.norm(dim=-1), torch.stack([(x - first).norm(dim=-1) for x in points.unbind(-3)], -2)
    path, chord = speed.sum(-2), chords[..., -1, :]
    place = on_plane(points, plane(points, [*starts, ends[-1]]))
    return {
        "speed": speed,
        "relative_speed": speed / points[..., :-1, :, :].norm(dim=-1).clamp(min=1e-30),
        "turning": angles(moved),
        "path_length": path,
        "chord": chord,
        "straightness": share(chord, path),
        "straightness_null": share(speed.square().sum(-2).sqrt(), path),
        "straightness_flipped": flipped(moved, path, draws, seed),
        "straightness_so_far": share(chords[..., ends, :], speed.cumsum(-2)[..., [end - 1 for end in ends], :]),
        "place": place,
        "place_share": place.square().mean((-3, -2)),
        "attention_share": attention_share(speed, starts, middles, ends),
    }


def of_heads(trace: Trace, layer: int, kept: list[int]) -> Float[Tensor, "2 h"]:
    """Length of every head's displacement, and its cosine with that of the whole attention; means over tokens."""
    made = trace.carried(layer).at(kept).exact()
    before, after = (trace.points[at, kept].to(made.moved.dtype) for at in (trace.where[layer], trace.middle[layer]))
    whole, length = after - before, made.squares().sqrt()
    return torch.stack([length.mean(-1), share(made.along(whole), length * whole.norm(dim=-1)).mean(-1)])


def angles(moved: Float[Tensor, "*b s n d"]) -> Float[Tensor, "*b t n"]:
    """Between each displacement and the next, by atan2 of chords: exact near 0 and π too; 0 where a token rests."""
    unit = (one / one.norm(dim=-1, keepdim=True).clamp(min=1e-30) for one in moved.unbind(-3))
    chords = [((after - before).norm(dim=-1), (after + before).norm(dim=-1)) for before, after in pairwise(unit)]
    return 2 * torch.atan2(*(torch.stack(chord, -2) for chord in zip(*chords, strict=True)))


def flipped(
    moved: Float[Tensor, "*b s n d"], path: Float[Tensor, "*b n"], draws: int, seed: int
) -> Float[Tensor, "*b draw"]:
    """Mean straightness of paths whose steps are taken forwards or backwards, one sign a step for all tokens.

    One sign for all keeps what tokens do together, so that the draws are as spread as the mean over tokens really is.
    """
    sign = torch.randint(0, 2, (draws, moved.shape[-3]), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    sign, chords = sign.to(moved), []
    for some in moved.split(_tokens_at_once(moved), dim=-2):
        gram = torch.einsum("...snd,...tnd->...nst", some, some)
        chords.append(torch.einsum("ks,...nst,kt->...kn", sign, gram, sign))
    return share(torch.cat(chords, -1).clamp(min=0).sqrt(), path[..., None, :]).mean(-1)


def _tokens_at_once(moved: Float[Tensor, "*b s n d"]) -> int:
    """As many as have their displacements, and the inner products of these, near the cores."""
    *texts, steps, _, width = moved.shape
    return max(1, numbers_at_once(moved.device) // (math.prod(texts) * steps * (steps + width)))


def attention_share(
    speed: Float[Tensor, "*b s n"], starts: Sequence[int], middles: Sequence[int], ends: Sequence[int]
) -> Float[Tensor, "*b layer"]:
    """Σ‖Δ_attention‖ / (Σ‖Δ_attention‖ + Σ‖Δ_rest‖) of every layer."""
    step = speed.sum(-1)
    attention = torch.stack([step[..., a:m].sum(-1) for a, m in zip(starts, middles, strict=True)], -1)
    whole = torch.stack([step[..., a:e].sum(-1) for a, e in zip(starts, ends, strict=True)], -1)
    return share(attention, whole)


TRAJECTORY = Analysis(
    name="trajectory",
    question="How far does each layer move the tokens, do they go straight, and who moves them?",
    ask=trajectory,
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

"""How does every token move through the layers? Speed, path, straightness, turning, and who moves it."""

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.flow.cloud import Clouds, clouds
from rheoscope.space.dataset import dataset
from rheoscope.space.share import share
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

DEFINITIONS = {
    "speed": "‖x_after − x_before‖, how far a half-layer moves a token",
    "relative_speed": "speed over ‖x_before‖",
    "turning": "angle between one half-layer's displacement and the next, in radians: 0 straight on, π back",
    "path_length": "sum of the speeds of a token",
    "chord": "‖x_last − x_first‖ of a token",
    "straightness": "chord over path length: 1 for a straight line; 1/√steps for steps at right angles",
    "straightness_null": "the same for displacements of the same lengths in random directions: √Σ speed² / Σ speed",
    "straightness_flipped": "mean straightness where each half-layer moves all tokens forwards or backwards at random, by draw",
    "straightness_so_far": "chord over path length from the first step to the end of a layer",
    "place": "where a token is on the two directions in which the paths of all tokens spread most (PCA over all points)",
    "place_share": "share of the variance of all points that each of the two directions holds",
    "attention_share": "attention's share of the path in a layer: its summed speed over that of attention and MLP",
    "head_speed": "‖Δ_h‖, mean over tokens: how far what a head takes from the tokens moves one, in the stream as it is; without the "
    "bias of values, which no head owns",
    "head_cosine": "cos(Δ_h, Δ), mean over tokens, Δ what the attention of the layer adds as a whole: 1 pulls where all pull",
}


TOKENS = 64
"""Tokens whose displacements are compared at a time."""


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
    (axis): `place_share`, a map of the paths. Massive tokens are dropped and listed in `attrs["massive"]`.

    **Laws** chord ≤ path; straightness lies in [0, 1]; unchanged by a turn of the axes of E, scaled by a scale.

    **Relation** `transport` asks of the whole cloud what this asks of each token.

    >>> import rheoscope as rs
    >>> path = rs.trajectory(rs.load().trace("The keys to the cabinet are"))
    >>> bool((path.chord <= path.path_length).all())
    True
    """
    seen = clouds(trace, space, "half", keep_massive)
    moved, lengths, chords = paths(seen)
    speed = moved.norm(dim=-1)
    heads = torch.stack([of_heads(trace, layer, seen.kept) for layer in range(trace.view.layers)], 1)
    path, chord = speed.sum(0), chords[-1]
    place, place_share = plane(seen)
    values = {
        "speed": (("step", "token"), speed),
        "relative_speed": (("step", "token"), speed / lengths[:-1].clamp(min=1e-30)),
        "turning": (("turn", "token"), angles(moved)),
        "path_length": (("token",), path),
        "chord": (("token",), chord),
        "straightness": (("token",), share(chord, path)),
        "straightness_null": (("token",), share(speed.square().sum(0).sqrt(), path)),
        "straightness_flipped": (("draw",), flipped(moved, path, draws, seed)),
        "straightness_so_far": (("layer", "token"), straightness_so_far(trace, chords, speed)),
        "place": (("point", "token", "axis"), place),
        "place_share": (("axis",), place_share),
        "attention_share": (("layer",), attention_share(trace, speed)),
        "head_speed": (("layer", "head"), heads[0]),
        "head_cosine": (("layer", "head"), heads[1]),
    }
    coords = {
        "point": list(seen.steps),
        "step": list(seen.steps[1:]),
        "token": seen.kept,
        "word": ("token", seen.tokens),
        "layer": range(trace.view.layers),
        "head": range(trace.view.heads),
    }
    attributes = {"analysis": "trajectory", "draws": draws, "seed": seed} | seen.attributes
    return dataset(values, DEFINITIONS, coords, attributes)


def paths(seen: Clouds) -> tuple[Float[Tensor, "s n d"], Float[Tensor, "p n"], Float[Tensor, "p n"]]:
    """Every displacement; how long every point is, and how far from the first."""
    first = next(iter(seen))
    moved, lengths, chords, before = first.new_empty(len(seen) - 1, *first.shape), [], [], first
    for at, x in enumerate(seen):
        lengths.append(x.norm(dim=-1))
        chords.append((x - first).norm(dim=-1))
        if at:
            torch.sub(x, before, out=moved[at - 1])
        before = x
    return moved, torch.stack(lengths), torch.stack(chords)


def of_heads(trace: Trace, layer: int, kept: list[int]) -> Float[Tensor, "2 h"]:
    """Length of every head's displacement, and its cosine with that of the whole attention; means over tokens."""
    made = trace.carried(layer).at(kept).exact()
    before, after = (trace.points[at, kept].to(made.moved.dtype) for at in (trace.where[layer], trace.middle[layer]))
    whole, length = after - before, made.squares().sqrt()
    return torch.stack([length.mean(-1), share(made.along(whole), length * whole.norm(dim=-1)).mean(-1)])


def angles(moved: Float[Tensor, "s n d"]) -> Float[Tensor, "t n"]:
    """Between each displacement and the next, by atan2 of chords: exact near 0 and π too; 0 where a token rests."""
    unit = (one / one.norm(dim=-1, keepdim=True).clamp(min=1e-30) for one in moved)
    chords = [((after - before).norm(dim=-1), (after + before).norm(dim=-1)) for before, after in pairwise(unit)]
    return 2 * torch.atan2(*(torch.stack(chord) for chord in zip(*chords, strict=True)))


def flipped(moved: Float[Tensor, "s n d"], path: Float[Tensor, " n"], draws: int, seed: int) -> Float[Tensor, " draw"]:
    """Mean straightness of paths whose steps are taken forwards or backwards, one sign a step for all tokens.

    One sign for all keeps what tokens do together, so that the draws are as spread as the mean over tokens really is.
    """
    sign = torch.randint(0, 2, (draws, len(moved)), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    sign, chords = sign.to(moved), []
    for some in moved.split(TOKENS, dim=1):
        gram = torch.einsum("snd,tnd->nst", some, some)
        chords.append(torch.einsum("ks,nst,kt->kn", sign, gram, sign))
    return share(torch.cat(chords, -1).clamp(min=0).sqrt(), path).mean(-1)


def attention_share(trace: Trace, speed: Float[Tensor, "s n"]) -> Float[Tensor, " layer"]:
    """Σ‖Δ_attention‖ / (Σ‖Δ_attention‖ + Σ‖Δ_rest‖), the steps of a layer being those from one `where` to the next."""
    ends = [*trace.where[1:], len(trace.steps) - 1]
    shares = []
    for start, middle, end in zip(trace.where, trace.middle, ends, strict=True):
        attention, whole = speed[start:middle].sum(), speed[start:end].sum()
        shares.append(share(attention, whole))
    return torch.stack(shares)


def straightness_so_far(
    trace: Trace, chords: Float[Tensor, "p n"], speed: Float[Tensor, "s n"]
) -> Float[Tensor, "layer n"]:
    """Chord over path up to the end of every layer; the last row is the straightness of the whole way."""
    ends = torch.tensor([*trace.where[1:], len(trace.steps) - 1], device=speed.device)
    return share(chords[ends], speed.cumsum(0)[ends - 1])


def plane(seen: Clouds) -> tuple[Float[Tensor, "p n 2"], Float[Tensor, " 2"]]:
    """All points on the two directions in which they spread most, and the share of the variance that each holds.

    The sign of a direction is free: the point farthest along it is put on the positive side.
    """
    mean = torch.stack([x.mean(0) for x in seen]).mean(0)
    spread = torch.zeros_like(mean.outer(mean))
    for x in seen:
        spread += (x - mean).mT @ (x - mean)
    with torch.random.fork_rng(devices=[]):  # the same picture every time, and the caller's draws untouched
        torch.manual_seed(0)
        axes = torch.svd_lowrank(spread.cpu(), q=min(12, len(mean)), niter=8)[2][:, :2].to(mean)
    place = torch.stack([(x - mean) @ axes for x in seen]).cpu()
    place = torch.nn.functional.pad(place, (0, 2 - axes.shape[-1]))
    flat = place.flatten(0, 1)
    place = place * flat.gather(0, flat.abs().argmax(0, keepdim=True)).sign()
    return place, share(place.square().sum((0, 1)), spread.trace().cpu().expand(2))

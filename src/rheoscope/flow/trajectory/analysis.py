"""The path of every token through the layers: speed, straightness, turning angles, and the speed of every head."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.block_size import block_numel
from rheoscope.flow.cloud import select_clouds, to_space
from rheoscope.flow.head_motion import head_speeds_and_cosines
from rheoscope.flow.projection import fit_plane, project_on_plane
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.float32_products import pairwise_inner
from rheoscope.space.masked_means import ValidTokens, fill_invalid, masked_mean
from rheoscope.space.safe_arithmetic import safe_divide
from rheoscope.space.settings import Draws, Seed, SpaceName
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def trajectory(
    trace: Trace, space: SpaceName = "raw", draws: Draws = 200, seed: Seed = 0, keep_massive: bool = False
) -> "xarray.Dataset":
    """The path of every token through the half-layers.

    **Question** How far does each layer move the tokens, are their paths straight, and does attention or the MLP move them?

    **Formula** With Δ_s = x_{s+1} − x_s: speed ‖Δ_s‖, path length Σ‖Δ_s‖, chord ‖ΣΔ_s‖, straightness chord/path length, turning
    angle(Δ_s, Δ_{s+1}).

    **Returns** (step, token): `speed`, `relative_speed`. (turn, token): `turning`. (token): `path_length`, `chord`, `straightness`
    with its null. (draw): `straightness_null_draws`. (layer): `attention_share`. (layer, head): `head_speed`, `head_cosine`,
    always in the raw space. (layer, token): `straightness_so_far`. (point, token, axis): `plane_position` and (axis):
    `plane_variance_share`, the paths projected on the plane of `frames`. For the target of an encoder-decoder, (source_layer):
    `source_path`, and `source_straightness` with its null, describe the source. Massive tokens are left out and listed in
    `attrs["massive"]`.

    **Laws** chord ≤ path length, so straightness lies in [0, 1]. Rotating E changes nothing. Scaling E scales lengths.

    **See also** `transport` analyses the movement of the whole cloud.

    >>> import rheoscope as rs
    >>> path = rs.trajectory(rs.load().trace("The keys to the cabinet are"))
    >>> bool((path.chord <= path.path_length).all())
    True
    """
    clouds = select_clouds(trace, space, "half", keep_massive)
    points = clouds.points
    raw_points = points if space == "raw" else trace.points[:, clouds.positions]
    displacement = half_precision_displacements(raw_points, trace.view)
    values = point_statistics(trace, points, displacement if space == "raw" else None, points.norm(dim=-1), draws, seed)
    head_values = head_speeds_and_cosines(trace, raw_points, displacement, positions=clouds.positions)
    values |= path_map(points, trace) | source_values(trace, space, keep_massive)
    coords = {
        "point": list(clouds.steps),
        "step": list(clouds.steps[1:]),
        "token": clouds.positions,
        "token_text": ("token", clouds.token_texts),
        "layer": range(trace.view.layers),
        "head": range(trace.view.heads),
    }
    if trace.source_trace is not None:
        coords["source_layer"] = range(trace.source_trace.view.layers)
    values |= {"head_speed": head_values[0], "head_cosine": head_values[1]}
    return TRAJECTORY.label(values, coords, {"draws": draws, "seed": seed} | clouds.attributes)


@torch.no_grad()
def batch(
    traces: Traces, space: str = "raw", draws: int = 200, seed: int = 0, keep_massive: bool = False
) -> dict[str, Tensor]:
    """The paths and head speeds of many texts at once: every field but the projection of the paths."""
    valid, displacement = traces.valid_tokens(keep_massive), half_precision_displacements(traces.points, traces.view)
    values = path_statistics(traces, space, draws, seed, keep_massive, displacement if space == "raw" else None)
    head_values = head_speeds_and_cosines(traces, traces.points, displacement, valid)
    return values | {"head_speed": head_values[0], "head_cosine": head_values[1]}


@torch.no_grad()
def path_statistics(
    traces: Traces,
    space: str = "raw",
    draws: int = 200,
    seed: int = 0,
    keep_massive: bool = False,
    displacement: Float[Tensor, "b n s d"] | None = None,
) -> dict[str, Tensor]:
    """The fields of `batch` that need only the points, so that attention is not recomputed."""
    valid, points = traces.valid_tokens(keep_massive), to_space(traces.view, traces.points, space)
    lengths = traces.norms if space == "raw" else points.norm(dim=-1)
    values = point_statistics(traces, points, displacement, lengths, draws, seed, valid)
    per_token = (name for name in values if "token" in TRAJECTORY.fields[name].dims)
    return values | {name: fill_invalid(values[name], valid, torch.nan) for name in per_token}


@torch.no_grad()
def source_values(trace: Trace, space: str, keep_massive: bool) -> dict[str, Tensor]:
    """How the tokens of the source move through the encoder. Empty for a Trace without a source."""
    source = trace.source_trace
    if source is None:
        return {}
    paths = path_statistics(Traces.from_trace(source), space, 0, keep_massive=keep_massive)
    relative_speeds = paths["relative_speed"][0].nanmedian(-1).values
    layers = torch.tensor([step.layer for step in source.steps[1:]], device=relative_speeds.device)
    source_path = [relative_speeds[layers == layer].sum() for layer in range(source.view.layers)]
    return {
        "source_path": torch.stack(source_path),
        "source_straightness": paths["straightness"].nanmean(),
        "source_straightness_null": paths["straightness_null"].nanmean(),
    }


def layer_end_points(trace: Trace | Traces) -> list[int]:
    """The index of the last point of every layer."""
    return [*trace.input_steps[1:], len(trace.steps) - 1]


def point_statistics(
    trace: Trace | Traces,
    points: Float[Tensor, "*b p n d"],
    displacement: Float[Tensor, "*b n s d"] | None,
    lengths: Float[Tensor, "*b p n"],
    draws: int,
    seed: int,
    valid: ValidTokens = None,
) -> dict[str, Tensor]:
    """The fields that need only the points. In half precision they are computed from inner products of displacements."""
    displacement = half_precision_displacements(points, trace.view) if displacement is None else displacement
    signs = random_signs(points, draws, seed)
    measures = (
        measures_from_displacements(points, signs)
        if displacement is None
        else measures_from_inner_products(displacement, signs)
    )
    return kernel(measures, lengths, trace.input_steps, trace.mid_steps, layer_end_points(trace), valid)


def kernel(
    measures: "PathMeasures",
    lengths: Float[Tensor, "*b p n"],
    starts: Sequence[int],
    middles: Sequence[int],
    ends: Sequence[int],
    valid: ValidTokens = None,
) -> dict[str, Tensor]:
    """The statistics of the paths of one or several texts, from `PathMeasures` and the norms of the points.

    `starts`, `middles` and `ends` are the points before each layer, after its attention, and after the layer.
    """
    speed, chords, turning, flipped_chords = measures
    path, chord = speed.sum(-2), chords[..., -1, :]
    last_steps = slice(
        ends[0] - 1, None, ends[0] - starts[0]
    )  # the last step of every layer; all layers have equally many steps
    return {
        "speed": speed,
        "relative_speed": speed / lengths[..., :-1, :].clamp(min=1e-30),
        "turning": turning,
        "path_length": path,
        "chord": chord,
        "straightness": safe_divide(chord, path),
        "straightness_null": safe_divide(speed.square().sum(-2).sqrt(), path),
        "straightness_null_draws": masked_mean(safe_divide(flipped_chords, path[..., None, :]), valid),
        "straightness_so_far": safe_divide(chords[..., last_steps, :], speed.cumsum(-2)[..., last_steps, :]),
        "attention_share": attention_share(fill_invalid(speed, valid), starts, middles, ends),
    }


PathMeasures = tuple[
    Float[Tensor, "*b s n"], Float[Tensor, "*b s n"], Float[Tensor, "*b t n"], Float[Tensor, "*b draw n"]
]
"""Speed, distance from the start, turning angle, and the chord with the random signs of each draw."""


def measures_from_displacements(points: Float[Tensor, "*b p n d"], signs: Float[Tensor, "draw s"]) -> PathMeasures:
    """The measures from the displacements, in the dtype of the points, in chunks of tokens that fit in the cache."""
    chunks = points.split(_tokens_per_chunk(points), dim=-2)
    speed, chords, turning, flipped_chords = (
        torch.cat(column, -1)
        for column in zip(*(chunk_measures_from_displacements(chunk, signs) for chunk in chunks), strict=True)
    )
    return speed, chords, turning, flipped_chords


def chunk_measures_from_displacements(
    points: Float[Tensor, "*b p n d"], signs: Float[Tensor, "draw s"]
) -> PathMeasures:
    """The measures of some tokens."""
    displacement, start = points.diff(dim=-3), points[..., 0, :, :]
    chords = torch.stack([(x - start).norm(dim=-1) for x in points.unbind(-3)[1:]], -2)
    return displacement.norm(dim=-1), chords, turning_angles(displacement), chords_with_signs(displacement, signs)


def measures_from_inner_products(
    displacement: Float[Tensor, "*b n s d"], signs: Float[Tensor, "draw s"]
) -> PathMeasures:
    """The measures from ⟨Δ_s, Δ_t⟩ of every token, with sums in float32 or better.

    Rounding errors are independent over the coordinates of E. In bfloat16 an inner product is therefore off by 2⁻⁹/√d of both
    norms, far less than the effect of rounding the points.
    """
    gram = pairwise_inner(displacement)
    speed, next_products = gram.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt().mT, gram.diagonal(1, dim1=-2, dim2=-1).mT
    speed_products = speed[..., 1:, :] * speed[..., :-1, :]
    turning = torch.where(
        speed_products > 0,
        torch.acos((next_products / torch.where(speed_products > 0, speed_products, 1)).clamp(-1, 1)),
        0,
    )
    sign_patterns = torch.cat([signs.new_ones(signs.shape[1], signs.shape[1]).tril(), signs]).to(gram)
    squared_chords = (
        gram.flatten(-2) @ (sign_patterns[:, :, None] * sign_patterns[:, None, :]).flatten(1).mT
    )  # ‖Σ_s sign_s Δ_s‖²
    chords, flipped_chords = squared_chords.clamp(min=0).sqrt().mT.split([signs.shape[1], len(signs)], -2)
    return speed, chords, turning, flipped_chords


def half_precision_displacements(points: Float[Tensor, "*b p n d"], view: View) -> Float[Tensor, "*b n s d"] | None:
    """The displacements in half precision, contiguous per token; None if the model does not run in half precision."""
    dtype = view.to_model_precision(points[:0]).dtype
    if dtype.itemsize >= 4:
        return None
    *texts, p, n, d = points.shape
    displacement = torch.empty(*texts, n, p - 1, d, dtype=dtype, device=points.device)
    for step, (before, after) in enumerate(pairwise(points.unbind(-3))):
        torch.sub(after, before, out=displacement[..., step, :])
    return displacement


def path_map(points: Float[Tensor, "p n d"], trace: Trace) -> dict[str, Tensor]:
    """The paths projected on the plane of `frames`."""
    coordinates = project_on_plane(points, fit_plane(points, [*trace.input_steps, len(trace.steps) - 1]))
    return {"plane_position": coordinates, "plane_variance_share": coordinates.square().mean((-3, -2))}


def turning_angles(displacement: Float[Tensor, "*b s n d"]) -> Float[Tensor, "*b t n"]:
    """The angle between each displacement and the next, by atan2, so that it is exact near 0 and π; 0 if a token rests."""
    unit_steps = (step / step.norm(dim=-1, keepdim=True).clamp(min=1e-30) for step in displacement.unbind(-3))
    chords = [((after - before).norm(dim=-1), (after + before).norm(dim=-1)) for before, after in pairwise(unit_steps)]
    return 2 * torch.atan2(*(torch.stack(chord, -2) for chord in zip(*chords, strict=True)))


def random_signs(points: Float[Tensor, "*b p n d"], draws: int, seed: int) -> Float[Tensor, "draw s"]:
    """One random sign per step, shared by all tokens.

    A shared sign preserves the correlation between tokens, so that the null has the variance of the mean over tokens.
    """
    signs = torch.randint(0, 2, (draws, points.shape[-3] - 1), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return signs.to(points.device, points.dtype, non_blocking=True)


def chords_with_signs(
    displacement: Float[Tensor, "*b s n d"], signs: Float[Tensor, "draw s"]
) -> Float[Tensor, "*b draw n"]:
    """The chord of every token after its steps are multiplied by the signs."""
    gram = torch.einsum("...snd,...tnd->...nst", displacement, displacement)
    return torch.einsum("ks,...nst,kt->...kn", signs, gram, signs).clamp(min=0).sqrt()


def _tokens_per_chunk(points: Float[Tensor, "*b p n d"]) -> int:
    """The number of tokens whose displacements and Gram matrices fit in the cache."""
    *texts, steps, _, width = points.shape
    return max(1, block_numel(points.device) // (math.prod(texts) * steps * (steps + width)))


def attention_share(
    speed: Float[Tensor, "*b s n"], starts: Sequence[int], middles: Sequence[int], ends: Sequence[int]
) -> Float[Tensor, "*b layer"]:
    """Σ‖Δ_attention‖ / (Σ‖Δ_attention‖ + Σ‖Δ_rest‖) of every layer. All layers have the same steps."""
    layer_speeds = speed.sum(-1)[..., starts[0] : ends[-1]].unflatten(-1, (len(starts), -1))
    return safe_divide(layer_speeds[..., : middles[0] - starts[0]].sum(-1), layer_speeds.sum(-1))


TRAJECTORY = Analysis(
    name="trajectory",
    question="How far does each layer move the tokens, are their paths straight, and what moves them?",
    ask=trajectory,
    batch=batch,
    needs="trace",
    corpus=0,
    atlas=("relative_speed", "attention_share", "head_speed", "head_cosine"),
    atlas_settings={"draws": 0},
    colours_cloud=True,
    fields={
        "speed": Field(("step", "token"), "‖x_after − x_before‖, the distance by which a half-layer moves the token"),
        "relative_speed": Field(("step", "token"), "speed divided by ‖x_before‖"),
        "turning": Field(
            ("turn", "token"),
            "angle between the displacements by two consecutive half-layers",
            unit="radians",
        ),
        "path_length": Field(("token",), "sum of the speeds of the token"),
        "chord": Field(("token",), "‖x_last − x_first‖ of the token"),
        "straightness": Field(
            ("token",),
            "chord divided by path length: 1 for a straight line, 1/√steps for orthogonal steps of equal length",
            null="straightness_null",
        ),
        "straightness_null": Field(
            ("token",), "straightness of displacements with the same norms in random directions: √Σ speed² / Σ speed"
        ),
        "straightness_null_draws": Field(
            ("draw",),
            "mean straightness after multiplying the displacements of every half-layer by a random sign, per draw",
        ),
        "straightness_so_far": Field(
            ("layer", "token"), "chord divided by path length from the first step to the end of the layer"
        ),
        "plane_position": Field(
            ("point", "token", "axis"),
            "direction of the token around the mean of its cloud, projected on the first two principal components of all layers",
        ),
        "plane_variance_share": Field(
            ("axis",), "share of the variance of the directions at all points along each principal component"
        ),
        "attention_share": Field(("layer",), "share of attention in the path length of the layer; the rest is the MLP"),
        "source_path": Field(
            ("source_layer",),
            "path length of a token of the source in a layer of the encoder, relative to its norm before each step; median over tokens",
        ),
        "source_straightness": Field(
            (),
            "chord divided by path length of a token of the source in the encoder, mean over tokens",
            null="source_straightness_null",
        ),
        "source_straightness_null": Field(
            (), "mean straightness of the tokens of the source for displacements in random directions"
        ),
        "head_speed": Field(
            ("layer", "head"),
            "mean over tokens of ‖Δ_h‖, the head's displacement in the residual stream without the value bias",
        ),
        "head_cosine": Field(
            ("layer", "head"),
            "mean over tokens of cos(Δ_h, Δ), where Δ is the displacement by the whole attention of the layer",
        ),
    },
)

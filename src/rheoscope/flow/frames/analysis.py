"""The cloud as a few pictures, from the embedding to the last layer: where tokens stand on the sphere, on one plane for all."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.flow.cloud import select_clouds
from rheoscope.flow.projection import centred_directions, fit_plane, project_on_plane
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import resolve_positions
from rheoscope.space.pair_distances import cosines
from rheoscope.space.predictions import next_token_logprobs
from rheoscope.space.safe_arithmetic import safe_divide
from rheoscope.space.settings import Angle, Bounds, TokenId, TokenIndex
from rheoscope.space.single_linkage import single_linkage_labels
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def frames(
    trace: Trace,
    count: Annotated[int, Bounds(1, 10_000)] = 6,
    token: TokenIndex = -1,
    target: TokenId | None = None,
    angle: Angle = math.pi / 4,
    keep_massive: bool = False,
) -> "xarray.Dataset":
    """The cloud of tokens seen at a few layers, so that one can watch it move.

    **Answers** "what does the cloud look like, layer by layer, who stands with whom, and where is the prediction?"

    **Formula** u_i = (x_i − x̄)/‖x_i − x̄‖, the token's direction around the mean of its cloud; place = u_i P, P the two
    directions in which the u_i of the embedding and of all layers together spread most, every layer counting the same (PCA).
    P is one for all frames, so a token that moves on the picture moves on the sphere.

    The prediction is r = C D_g (W_U[target] − mean W_U)/‖·‖, the final norm's centring and gain before the unembedding: the
    point of the sphere at which the final norm and the unembedding give the target the largest logit above the mean of all.
    The target is the token that `token` finds likeliest after the last layer, or `target` (a token id).

    **Gives** (frame, token, axis): `place`; (frame, token): `label`, `toward_prediction`; (frame): `explained`; (axis):
    `prediction`. `attrs["token"]` is the token that predicts, `attrs["target"]` the id of what it predicts. Without an
    unembedding there is no prediction. Massive tokens are dropped and listed in `attrs["massive"]`.

    **Laws** ‖place‖ ≤ 1; `explained` is the mean of ‖place‖²; unchanged by a turn of the axes of E, by a shift and a scale
    of a cloud, and by how many frames are shown.

    **Siblings** `clusters` counts the clusters at all layers; `trajectory` draws every token's path on the same plane;
    `readout` says what each layer predicts.

    >>> import rheoscope as rs
    >>> seen = rs.frames(rs.load().trace("The keys to the cabinet are on the table"), count=4)
    >>> seen.frame.values.tolist()
    ['embed', 'L1.resid_post', 'L3.resid_post', 'L5.resid_post']
    """
    if count < 2:
        raise RheoscopeError(f"a cloud that moves has 2 frames or more, got {count}; type count=6")
    clouds = select_clouds(trace, "raw", "layer", keep_massive, min_tokens=3)
    frame_points, points = evenly_spaced(len(clouds), count), clouds.points
    token = resolve_positions([token], len(trace))[0]
    attributes: dict[str, Any] = {"token": token, "angle": angle}
    prediction_direction = None
    if trace.view.unembed is not None:
        target = predicted_token(trace, token) if target is None else target
        prediction_direction, attributes["target"] = logit_direction(trace.view, target).to(points), target
    coords = {
        "frame": [clouds.steps[k] for k in frame_points],
        "token": clouds.positions,
        "token_text": ("token", clouds.token_texts),
    }
    values = kernel(points, frame_points, prediction_direction, angle)
    return FRAMES.label(values, coords, attributes | clouds.attributes | {"space": "centred sphere"})


def kernel(
    points: Float[Tensor, "p n d"],
    frame_points: Sequence[int],
    prediction_direction: Float[Tensor, " d"] | None,
    angle: float,
) -> dict[str, Tensor]:
    """Frames `at` of all clouds, on the plane of all of them."""
    axes, frame_clouds = fit_plane(points, range(len(points))), points[list(frame_points)]
    coordinates, unit_directions = project_on_plane(frame_clouds, axes), centred_directions(frame_clouds)
    values = {
        "place": coordinates,
        "label": torch.stack([single_linkage_labels(cosines(u @ u.mT), angle) for u in unit_directions]),
        "explained": safe_divide(coordinates.square().sum((-1, -2)), unit_directions.square().sum((-1, -2))),
    }
    return (
        values
        if prediction_direction is None
        else values
        | {"prediction": prediction_direction @ axes, "toward_prediction": unit_directions @ prediction_direction}
    )


def evenly_spaced(n_points: int, count: int) -> list[int]:
    """At most `count` of some points, the first and the last among them.

    >>> evenly_spaced(7, 6), evenly_spaced(31, 4), evenly_spaced(3, 6)
    ([0, 1, 2, 4, 5, 6], [0, 10, 20, 30], [0, 1, 2])
    """
    count = min(count, n_points)
    return [(2 * k * (n_points - 1) + count - 1) // (2 * (count - 1)) for k in range(count)]


def predicted_token(trace: Trace, token: int) -> int:
    """What a token predicts after the last layer."""
    return int(next_token_logprobs(trace.view, trace.points[-1, [token]])[0].argmax())


def logit_direction(view: View, target: int) -> Float[Tensor, " d"]:
    """Where on the sphere the logit of a token, less the mean of all, is largest."""
    assert view.unembed is not None
    if not 0 <= target < view.unembed.shape[-1]:
        raise RheoscopeError(f"the target is a token id from 0 to {view.unembed.shape[-1] - 1}, got {target}")
    W = view.unembed.to(torch.promote_types(view.unembed.dtype, torch.float32))
    direction = view.final_norm.fold((W[:, target] - W.mean(-1))[:, None])[:, 0]
    return direction / direction.norm().clamp(min=1e-30)


FRAMES = Analysis(
    name="frames",
    question="What does the cloud look like, layer by layer, who stands with whom, and where is the prediction?",
    ask=frames,
    needs="trace",
    fields={
        "place": Field(
            ("frame", "token", "axis"),
            "a token's direction around the mean of its cloud, on the two directions in which those of all layers together "
            "spread most: one plane for all frames",
        ),
        "label": Field(
            ("frame", "token"),
            "which cluster a token is in at this frame, named by its first token: chains of steps below the angle",
            is_categorical=True,
        ),
        "explained": Field(
            ("frame",),
            "share of the directions' variance that the plane shows, mean of ‖place‖²: the rest is not seen",
        ),
        "prediction": Field(
            ("axis",),
            "on the same plane, the point of the sphere at which final norm and unembedding give the target its largest logit "
            "above the mean of all; its length is 1 where the plane holds it",
        ),
        "toward_prediction": Field(
            ("frame", "token"),
            "cosine, in all of E, of a token's direction and that of the prediction: 1 where they are one",
        ),
    },
)

"""Frames: the directions of all tokens at a few layers, projected on one plane."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.flow.cloud import select_clouds
from rheoscope.flow.projection import centred_directions, fit_plane, project_on_plane
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
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
    n_frames: Annotated[int, Bounds(1, 10_000)] = 6,
    token: TokenIndex = -1,
    target: TokenId | None = None,
    angle: Angle = math.pi / 4,
    keep_massive: bool = False,
) -> "xarray.Dataset":
    """The cloud of tokens at a few layers, projected on one plane.

    **Question** What does the cloud look like, layer by layer, which tokens are close together, and where is the prediction?

    **Formula** u_i = (x_i − x̄)/‖x_i − x̄‖ is the token's direction around the mean of its cloud. Its position on the plane is u_i P.
    P holds the first two principal components of the directions of the embedding and of all layers, with equal weight per layer.
    All frames share P, so a token that moves in the plot has moved on the sphere.

    The prediction is r = C D_g (W_U[target] − mean W_U)/‖·‖, with the centring C and the gain D_g of the final norm. At this point
    of the sphere the logit of the target, minus the mean logit, is largest. The target is the most likely next token of `token`
    after the last layer, unless `target` gives another one.

    **Returns** (frame, token, axis): `plane_position`. (frame, token): `label`, `toward_prediction`. (frame):
    `explained_variance`. (axis): `prediction`. `attrs["token"]` is the position whose prediction is shown, `attrs["target"]` the
    id of the predicted token. A model without an unembedding has no prediction. Massive tokens are left out and listed in
    `attrs["massive"]`.

    **Settings** `n_frames` is the number of layers that are shown. `target` is a token id. `angle` is the largest angle of a link
    between two tokens of a cluster, in radians.

    **Laws** ‖plane_position‖ ≤ 1. `explained_variance` is the mean of ‖plane_position‖². Rotating E, shifting or scaling a cloud,
    or choosing another number of frames changes nothing.

    **See also** `clusters` counts the clusters at all layers. `trajectory` draws the path of every token on the same plane.
    `readout` reports what each layer predicts.

    >>> import rheoscope as rs
    >>> result = rs.frames(rs.load().trace("The keys to the cabinet are on the table"), n_frames=4)
    >>> result.frame.values.tolist()
    ['embed', 'L1.resid_post', 'L3.resid_post', 'L5.resid_post']
    """
    if n_frames < 2:
        raise RheoscopeError(
            Message("n_frames must be at least {low}, got {received}", low=2, received=n_frames), use(n_frames=6)
        )
    clouds = select_clouds(trace, "raw", "layer", keep_massive, min_tokens=3)
    frame_points, points = evenly_spaced(len(clouds), n_frames), clouds.points
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
    """The clouds at `frame_points`, projected on the plane that is fitted to all clouds."""
    axes, frame_clouds = fit_plane(points, range(len(points))), points[list(frame_points)]
    coordinates, unit_directions = project_on_plane(frame_clouds, axes), centred_directions(frame_clouds)
    values = {
        "plane_position": coordinates,
        "label": torch.stack([single_linkage_labels(cosines(u @ u.mT), angle) for u in unit_directions]),
        "explained_variance": safe_divide(coordinates.square().sum((-1, -2)), unit_directions.square().sum((-1, -2))),
    }
    return (
        values
        if prediction_direction is None
        else values
        | {"prediction": prediction_direction @ axes, "toward_prediction": unit_directions @ prediction_direction}
    )


def evenly_spaced(n_points: int, count: int) -> list[int]:
    """The indices of at most `count` evenly spaced points, including the first and the last.

    >>> evenly_spaced(7, 6), evenly_spaced(31, 4), evenly_spaced(3, 6)
    ([0, 1, 2, 4, 5, 6], [0, 10, 20, 30], [0, 1, 2])
    """
    count = min(count, n_points)
    return [(2 * k * (n_points - 1) + count - 1) // (2 * (count - 1)) for k in range(count)]


def predicted_token(trace: Trace, token: int) -> int:
    """The most likely next token after a token, at the last layer."""
    return int(next_token_logprobs(trace.view, trace.points[-1, [token]])[0].argmax())


def logit_direction(view: View, target: int) -> Float[Tensor, " d"]:
    """The unit vector along which the logit of a token, minus the mean logit, grows fastest."""
    assert view.unembed is not None
    if not 0 <= target < view.unembed.shape[-1]:
        raise RheoscopeError(
            Message(
                "target must be a token id between 0 and {last}, got {received}",
                last=view.unembed.shape[-1] - 1,
                received=target,
            ),
            use(target=0),
        )
    W = view.unembed.to(torch.promote_types(view.unembed.dtype, torch.float32))
    direction = view.final_norm.fold((W[:, target] - W.mean(-1))[:, None])[:, 0]
    return direction / direction.norm().clamp(min=1e-30)


FRAMES = Analysis(
    name="frames",
    question="What does the cloud look like, layer by layer, which tokens are close together, and where is the prediction?",
    ask=frames,
    needs="trace",
    fields={
        "plane_position": Field(
            ("frame", "token", "axis"),
            "direction of the token around the mean of its cloud, projected on the first two principal components of all layers",
        ),
        "label": Field(
            ("frame", "token"),
            "cluster of the token in this frame, named by its first token (single linkage below the angle)",
            is_categorical=True,
        ),
        "explained_variance": Field(
            ("frame",),
            "share of the variance of the directions that lies in the plane, the mean of ‖plane_position‖²",
        ),
        "prediction": Field(
            ("axis",),
            "projection on the plane of the unit vector along which the target's logit, minus the mean logit, is largest",
        ),
        "toward_prediction": Field(
            ("frame", "token"),
            "cosine in E between the token's direction and the direction of the prediction",
        ),
    },
)

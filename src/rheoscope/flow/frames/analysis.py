"""The cloud as a few pictures, from the embedding to the last layer: where tokens stand on the sphere, on one plane for all."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.flow.cloud import clouds
from rheoscope.flow.projection import directions, on_plane, plane
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import checked
from rheoscope.space.pair_distances import cosines
from rheoscope.space.predictions import predictions
from rheoscope.space.safe_arithmetic import share
from rheoscope.space.single_linkage import linked
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def frames(
    trace: Trace,
    count: int = 6,
    token: int = -1,
    target: int | None = None,
    angle: float = math.pi / 4,
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
    seen = clouds(trace, "raw", "layer", keep_massive, least=3)
    at, points = evenly(len(seen), count), seen.points
    token = checked([token], len(trace))[0]
    attributes: dict[str, Any] = {"token": token, "angle": angle}
    towards = None
    if trace.view.unembed is not None:
        target = likeliest(trace, token) if target is None else target
        towards, attributes["target"] = direction_of(trace.view, target).to(points), target
    coords = {"frame": [seen.steps[k] for k in at], "token": seen.tokens, "word": ("token", seen.words)}
    values = kernel(points, at, towards, angle)
    return FRAMES.answer(values, coords, attributes | seen.attributes | {"space": "centred sphere"})


def kernel(
    points: Float[Tensor, "p n d"], at: Sequence[int], towards: Float[Tensor, " d"] | None, angle: float
) -> dict[str, Tensor]:
    """Frames `at` of all clouds, on the plane of all of them."""
    axes, shown = plane(points, range(len(points))), points[list(at)]
    place, unit = on_plane(shown, axes), directions(shown)
    values = {
        "place": place,
        "label": torch.stack([linked(cosines(u @ u.mT), angle) for u in unit]),
        "explained": share(place.square().sum((-1, -2)), unit.square().sum((-1, -2))),
    }
    return values if towards is None else values | {"prediction": towards @ axes, "toward_prediction": unit @ towards}


def evenly(points: int, count: int) -> list[int]:
    """At most `count` of some points, the first and the last among them.

    >>> evenly(7, 6), evenly(31, 4), evenly(3, 6)
    ([0, 1, 2, 4, 5, 6], [0, 10, 20, 30], [0, 1, 2])
    """
    count = min(count, points)
    return [(2 * k * (points - 1) + count - 1) // (2 * (count - 1)) for k in range(count)]


def likeliest(trace: Trace, token: int) -> int:
    """What a token predicts after the last layer."""
    return int(predictions(trace.view, trace.points[-1, [token]])[0].argmax())


def direction_of(view: View, target: int) -> Float[Tensor, " d"]:
    """Where on the sphere the logit of a token, less the mean of all, is largest."""
    assert view.unembed is not None
    if not 0 <= target < view.unembed.shape[-1]:
        raise RheoscopeError(f"the target is a token id from 0 to {view.unembed.shape[-1] - 1}, got {target}")
    W = view.unembed.to(torch.promote_types(view.unembed.dtype, torch.float32))
    towards = view.final_norm.fold((W[:, target] - W.mean(-1))[:, None])[:, 0]
    return towards / towards.norm().clamp(min=1e-30)


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
            names=True,
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

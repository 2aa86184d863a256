"""Which tokens are left out of the clouds, how large are they, and which coordinates of E hold them?"""

from typing import TYPE_CHECKING

import torch

from rheoscope.shapes import RheoscopeError
from rheoscope.space.dataset import dataset
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

DEFINITIONS = {
    "length": "‖x‖ of the massive token over the median length of all tokens at the same step",
    "largest": "the largest of these over the steps",
    "born": "the first step at which the token is longer than `times` the median, counted from 0",
    "coordinate": "the coordinates of E that hold most of the token where it is largest, most first (basis-dependent)",
    "coordinate_share": "share of ‖x‖² that the coordinate holds there, 1/d each for a token without preference (basis-dependent)",
    "spread": "robust standard deviation (1.48 · median distance) of log lengths over all tokens, at the step where the token is largest",
    "sink_mass": "share of all attention of a layer's heads that goes to the token; 1/n for a token like any other",
}


@torch.no_grad()
def massive(trace: Trace, times: float = 5.0, k: int = 3) -> "xarray.Dataset":
    """The massive tokens of a text: sinks that most tokens attend to and that hardly move with the cloud.

    **Answers** "which tokens did the statistics drop, since when are they so long, in which coordinates, do others attend to them?"

    **Formula** token i is massive where ‖x_i‖ > times · median_j ‖x_j‖ at any step.

    **Gives** (point, token): `length`; (token): `largest`, `born`, `spread`; (token, k): `coordinate`, `coordinate_share`; (layer,
    token): `sink_mass`. The tokens' texts are in `attrs["tokens"]`. No massive token: a Dataset without tokens.

    **Laws** lengths are unchanged by a turn and a scale of E; coordinates are of the model's own basis and turn with it.

    **Source** massive activations, Sun et al. 2024 (arXiv:2402.17762); attention sinks, Xiao et al. 2023 (arXiv:2309.17453).

    **Siblings** every analysis of the flow drops these tokens unless `keep_massive=True`.

    >>> import rheoscope as rs
    >>> found = rs.massive(rs.load().trace("The keys to the cabinet are"), times=1.5)
    >>> bool((found.largest > 1.5).all())
    True
    """
    if not times > 1 or not 1 <= k <= trace.points.shape[-1]:
        raise RheoscopeError(
            f"times is above 1 and k from 1 to {trace.points.shape[-1]}, got {times} and {k}; type times=5.0, k=3"
        )
    points = trace.points.to(torch.promote_types(trace.points.dtype, torch.float32))
    lengths = points.norm(dim=-1)
    ratio = lengths / lengths.median(-1, keepdim=True).values.clamp(min=1e-30)
    at = trace.massive(times)
    spread = 1.4826 * ratio.log().abs().median(-1).values
    ratio = ratio[:, at]
    largest = ratio.max(0)
    shares = points[largest.indices, at].square() / lengths[largest.indices, at].square()[:, None]
    top = shares.topk(k)
    received = [trace.statistics(layer)["received"].mean(0)[at] / len(trace) for layer in range(trace.view.layers)]
    values = {
        "length": (("point", "token"), ratio),
        "largest": (("token",), largest.values),
        "born": (("token",), (ratio > times).int().argmax(0)),
        "coordinate": (("token", "k"), top.indices),
        "coordinate_share": (("token", "k"), top.values),
        "spread": (("token",), spread[largest.indices]),
        "sink_mass": (("layer", "token"), torch.stack(received)),
    }
    attributes = {"analysis": "massive", "times": times, "tokens": [trace.tokens[i] for i in at], "n": len(trace)}
    coords = {"point": [str(step) for step in trace.steps], "token": at, "layer": range(trace.view.layers)}
    return dataset(values, DEFINITIONS, coords, attributes | trace.provenance)

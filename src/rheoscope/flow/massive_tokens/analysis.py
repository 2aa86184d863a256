"""Which tokens are left out of the clouds, how large are they, and which coordinates of E hold them?"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.masked_means import kept
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def massive_tokens(trace: Trace, times: float = 5.0, top: int = 3) -> "xarray.Dataset":
    """The massive tokens of a text: sinks that most tokens attend to and that hardly move with the cloud.

    **Answers** "which tokens did the statistics drop, since when are they so long, in which coordinates, do others attend to them?"

    **Formula** token i is massive where ‖x_i‖ > times · median_j ‖x_j‖ at any step.

    **Gives** (point, token): `length`; (token): `largest`, `born`, `spread`; (token, k): `coordinate`, `coordinate_share`; (layer,
    token): `sink_mass`. The tokens' texts are in `attrs["tokens"]`. No massive token: a Dataset without tokens.

    **Laws** lengths are unchanged by a turn and a scale of E; coordinates are of the model's own basis and turn with it.

    **Source** massive activations, Sun et al. 2024 (arXiv:2402.17762); attention sinks, Xiao et al. 2023 (arXiv:2309.17453).

    **Siblings** every analysis of the flow drops these tokens unless `keep_massive=True`.

    >>> import rheoscope as rs
    >>> found = rs.massive_tokens(rs.load().trace("The keys to the cabinet are"), times=1.5)
    >>> bool((found.largest > 1.5).all())
    True
    """
    _refuse(times, top, trace.points.shape[-1])
    at = trace.massive(times)
    received = [trace.statistics(layer)["received"].mean(0)[at] / len(trace) for layer in range(trace.view.layers)]
    values = kernel(exact(trace.points), at, times, top) | {"sink_mass": torch.stack(received)}
    attributes = {"times": times, "tokens": [trace.tokens[i] for i in at], "n": len(trace)}
    coords = {
        "point": [str(step) for step in trace.steps],
        "token": at,
        "word": ("token", [trace.tokens[k] for k in at]),
        "layer": range(trace.view.layers),
    }
    return MASSIVE_TOKENS.answer(values, coords, attributes | trace.provenance)


@torch.no_grad()
def batch(traces: Traces, times: float = 5.0, top: int = 3) -> dict[str, Tensor]:
    """How long massive tokens of many texts are, since when, and in which coordinates; not what heads give them."""
    _refuse(times, top, traces.points.shape[-1])
    there, lengths = traces.massive(times), traces.norms
    ratio = lengths / lengths.nanmedian(-1, keepdim=True).values.clamp(min=1e-30)
    largest = ratio.nan_to_num().max(1)
    texts, tokens = (torch.arange(size, device=there.device) for size in there.shape)
    longest = exact(traces.points[texts[:, None], largest.indices, tokens])
    held = (longest.square() / longest.square().sum(-1, keepdim=True).clamp(min=1e-30)).topk(top)
    spread = 1.4826 * ratio.log().abs().nanmedian(-1).values
    return {
        "length": kept(ratio, there, torch.nan),
        "largest": kept(largest.values, there, torch.nan),
        "born": torch.where(there, (ratio > times).int().argmax(1), -1),
        "coordinate": torch.where(there[..., None], held.indices, -1),
        "coordinate_share": torch.where(there[..., None], held.values, torch.nan),
        "spread": kept(spread.gather(1, largest.indices), there, torch.nan),
    }


def kernel(points: Float[Tensor, "p n d"], at: list[int], times: float, top: int) -> dict[str, Tensor]:
    """How long the tokens `at` are, since when, and in which coordinates."""
    lengths = points.norm(dim=-1)
    ratio = lengths / lengths.median(-1, keepdim=True).values.clamp(min=1e-30)
    spread = 1.4826 * ratio.log().abs().median(-1).values
    ratio = ratio[:, at]
    largest = ratio.max(0)
    shares = points[largest.indices, at].square() / lengths[largest.indices, at].square()[:, None]
    held = shares.topk(top)
    return {
        "length": ratio,
        "largest": largest.values,
        "born": (ratio > times).int().argmax(0),
        "coordinate": held.indices,
        "coordinate_share": held.values,
        "spread": spread[largest.indices],
    }


def _refuse(times: float, top: int, width: int) -> None:
    if not times > 1 or not 1 <= top <= width:
        raise RheoscopeError(
            f"times is above 1 and top from 1 to {width}, got {times} and {top}; type times=5.0, top=3"
        )


MASSIVE_TOKENS = Analysis(
    name="massive_tokens",
    question="Which tokens are left out of the clouds, how large are they, in which coordinates?",
    ask=massive_tokens,
    batch=batch,
    needs="trace",
    fields={
        "length": Field(
            ("point", "token"), "‖x‖ of the massive token over the median length of all tokens at the same step"
        ),
        "largest": Field(("token",), "the largest of these over the steps"),
        "born": Field(
            ("token",), "the first step at which the token is longer than `times` the median, counted from 0"
        ),
        "coordinate": Field(
            ("token", "k"),
            "the coordinates of E that hold most of the token where it is largest, most first",
            basis=True,
            names=True,
        ),
        "coordinate_share": Field(
            ("token", "k"),
            "share of ‖x‖² that the coordinate holds there, 1/d each for a token without preference",
            basis=True,
        ),
        "spread": Field(
            ("token",),
            "robust standard deviation (1.48 · median distance) of log lengths over all tokens, at the step where the token is largest",
        ),
        "sink_mass": Field(
            ("layer", "token"),
            "share of all attention of a layer's heads that goes to the token; 1/n for a token like any other",
        ),
    },
)

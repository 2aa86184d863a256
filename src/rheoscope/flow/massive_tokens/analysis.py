"""Which tokens are left out of the clouds, how large are they, and which coordinates of E hold them?"""

from typing import TYPE_CHECKING, Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.masked_means import fill_invalid
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.settings import Bounds, Top
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def massive_tokens(trace: Trace, times: Annotated[float, Bounds(1.0, 1e9)] = 5.0, top: Top = 3) -> "xarray.Dataset":
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
    _check_settings(times, top, trace.points.shape[-1])
    positions = trace.massive_tokens(times)
    received = [
        trace.statistics(layer)["received"].mean(0)[positions] / len(trace) for layer in range(trace.view.layers)
    ]
    values = kernel(at_least_float32(trace.points), positions, times, top) | {"sink_mass": torch.stack(received)}
    attributes = {"times": times, "tokens": [trace.tokens[position] for position in positions], "n": len(trace)}
    coords = {
        "point": [str(step) for step in trace.steps],
        "token": positions,
        "token_text": ("token", [trace.tokens[position] for position in positions]),
        "layer": range(trace.view.layers),
    }
    return MASSIVE_TOKENS.label(values, coords, attributes | trace.provenance)


@torch.no_grad()
def batch(traces: Traces, times: float = 5.0, top: int = 3) -> dict[str, Tensor]:
    """How long massive tokens of many texts are, since when, and in which coordinates; not what heads give them."""
    _check_settings(times, top, traces.points.shape[-1])
    is_massive, lengths = traces.massive_tokens(times), traces.norms
    ratio = lengths / lengths.nanmedian(-1, keepdim=True).values.clamp(min=1e-30)
    largest = ratio.nan_to_num().max(1)
    text_indices, token_indices = (torch.arange(size, device=is_massive.device) for size in is_massive.shape)
    largest_points = at_least_float32(traces.points[text_indices[:, None], largest.indices, token_indices])
    top_shares = (largest_points.square() / largest_points.square().sum(-1, keepdim=True).clamp(min=1e-30)).topk(top)
    log_length_sd = 1.4826 * ratio.log().abs().nanmedian(-1).values
    return {
        "length": fill_invalid(ratio, is_massive, torch.nan),
        "largest": fill_invalid(largest.values, is_massive, torch.nan),
        "born": torch.where(is_massive, (ratio > times).int().argmax(1), -1),
        "coordinate": torch.where(is_massive[..., None], top_shares.indices, -1),
        "coordinate_share": torch.where(is_massive[..., None], top_shares.values, torch.nan),
        "spread": fill_invalid(log_length_sd.gather(1, largest.indices), is_massive, torch.nan),
    }


def kernel(points: Float[Tensor, "p n d"], positions: list[int], times: float, top: int) -> dict[str, Tensor]:
    """How long the tokens `at` are, since when, and in which coordinates."""
    lengths = points.norm(dim=-1)
    ratio = lengths / lengths.median(-1, keepdim=True).values.clamp(min=1e-30)
    log_length_sd = 1.4826 * ratio.log().abs().median(-1).values
    ratio = ratio[:, positions]
    largest = ratio.max(0)
    shares = points[largest.indices, positions].square() / lengths[largest.indices, positions].square()[:, None]
    top_shares = shares.topk(top)
    return {
        "length": ratio,
        "largest": largest.values,
        "born": (ratio > times).int().argmax(0),
        "coordinate": top_shares.indices,
        "coordinate_share": top_shares.values,
        "spread": log_length_sd[largest.indices],
    }


def _check_settings(times: float, top: int, width: int) -> None:
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
            basis_dependent=True,
            is_categorical=True,
        ),
        "coordinate_share": Field(
            ("token", "k"),
            "share of ‖x‖² that the coordinate holds there, 1/d each for a token without preference",
            basis_dependent=True,
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

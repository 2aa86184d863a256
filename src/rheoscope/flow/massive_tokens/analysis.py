"""Massive tokens: their norms, the coordinates of E that hold them, and the attention they receive."""

from typing import TYPE_CHECKING, Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
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
def massive_tokens(
    trace: Trace, norm_ratio: Annotated[float, Bounds(1.0, 1e9)] = 5.0, top: Top = 3
) -> "xarray.Dataset":
    """The massive tokens of a text. They often act as attention sinks and hardly move with the cloud.

    **Question** Which tokens do the flow analyses leave out, how large are they, in which coordinates, and which attention do
    they receive?

    **Formula** Token i is massive if ‖x_i‖ > norm_ratio · median_j ‖x_j‖ at any step.

    **Returns** (point, token): `relative_norm`. (token): `max_relative_norm`, `first_step`, `log_norm_sd`. (token, k):
    `coordinate`, `coordinate_share`. (layer, token): `sink_mass`. `attrs["tokens"]` has the texts of the tokens. If no token is
    massive, the axis `token` has length 0.

    **Settings** `top` is the number of coordinates that are listed per token.

    **Laws** Rotating or scaling E does not change the norms. The coordinates are those of the model's own basis.

    **Source** massive activations, Sun et al. 2024 (arXiv:2402.17762); attention sinks, Xiao et al. 2023 (arXiv:2309.17453).

    **See also** Every flow analysis leaves these tokens out unless `keep_massive=True`.

    >>> import rheoscope as rs
    >>> result = rs.massive_tokens(rs.load().trace("The keys to the cabinet are"), norm_ratio=1.5)
    >>> bool((result.max_relative_norm > 1.5).all())
    True
    """
    _check_settings(norm_ratio, top, trace.points.shape[-1])
    positions = trace.massive_tokens(norm_ratio)
    received = [
        trace.statistics(layer)["received"].mean(0)[positions] / len(trace) for layer in range(trace.view.layers)
    ]
    values = kernel(at_least_float32(trace.points), positions, norm_ratio, top) | {"sink_mass": torch.stack(received)}
    attributes = {
        "norm_ratio": norm_ratio,
        "tokens": [trace.tokens[position] for position in positions],
        "n": len(trace),
    }
    coords = {
        "point": [str(step) for step in trace.steps],
        "token": positions,
        "token_text": ("token", [trace.tokens[position] for position in positions]),
        "layer": range(trace.view.layers),
    }
    return MASSIVE_TOKENS.label(values, coords, attributes | trace.provenance)


@torch.no_grad()
def batch(traces: Traces, norm_ratio: float = 5.0, top: int = 3) -> dict[str, Tensor]:
    """The massive tokens of many texts: every field but `sink_mass`."""
    _check_settings(norm_ratio, top, traces.points.shape[-1])
    is_massive, lengths = traces.massive_tokens(norm_ratio), traces.norms
    ratio = lengths / lengths.nanmedian(-1, keepdim=True).values.clamp(min=1e-30)
    largest = ratio.nan_to_num().max(1)
    text_indices, token_indices = (torch.arange(size, device=is_massive.device) for size in is_massive.shape)
    largest_points = at_least_float32(traces.points[text_indices[:, None], largest.indices, token_indices])
    top_shares = (largest_points.square() / largest_points.square().sum(-1, keepdim=True).clamp(min=1e-30)).topk(top)
    log_length_sd = 1.4826 * ratio.log().abs().nanmedian(-1).values
    return {
        "relative_norm": fill_invalid(ratio, is_massive, torch.nan),
        "max_relative_norm": fill_invalid(largest.values, is_massive, torch.nan),
        "first_step": torch.where(is_massive, (ratio > norm_ratio).int().argmax(1), -1),
        "coordinate": torch.where(is_massive[..., None], top_shares.indices, -1),
        "coordinate_share": torch.where(is_massive[..., None], top_shares.values, torch.nan),
        "log_norm_sd": fill_invalid(log_length_sd.gather(1, largest.indices), is_massive, torch.nan),
    }


def kernel(points: Float[Tensor, "p n d"], positions: list[int], norm_ratio: float, top: int) -> dict[str, Tensor]:
    """Norms, first step and coordinates of the tokens at `positions`."""
    lengths = points.norm(dim=-1)
    ratio = lengths / lengths.median(-1, keepdim=True).values.clamp(min=1e-30)
    log_length_sd = 1.4826 * ratio.log().abs().median(-1).values
    ratio = ratio[:, positions]
    largest = ratio.max(0)
    shares = points[largest.indices, positions].square() / lengths[largest.indices, positions].square()[:, None]
    top_shares = shares.topk(top)
    return {
        "relative_norm": ratio,
        "max_relative_norm": largest.values,
        "first_step": (ratio > norm_ratio).int().argmax(0),
        "coordinate": top_shares.indices,
        "coordinate_share": top_shares.values,
        "log_norm_sd": log_length_sd[largest.indices],
    }


def _check_settings(norm_ratio: float, top: int, width: int) -> None:
    if not norm_ratio > 1:
        raise RheoscopeError(
            Message("norm_ratio must be larger than {low}, got {received}", low=1, received=norm_ratio),
            use(norm_ratio=5.0),
        )
    if not 1 <= top <= width:
        raise RheoscopeError(
            Message(
                "top must lie between 1 and the width of the model, {width}, got {received}", width=width, received=top
            ),
            use(top=3),
        )


MASSIVE_TOKENS = Analysis(
    name="massive_tokens",
    question="Which tokens are left out as massive, how large are they, and in which coordinates?",
    ask=massive_tokens,
    batch=batch,
    needs="trace",
    atlas=("max_relative_norm", "sink_mass"),
    fields={
        "relative_norm": Field(
            ("point", "token"), "‖x‖ of the massive token divided by the median norm of all tokens at the same step"
        ),
        "max_relative_norm": Field(("token",), "largest relative norm of the token over all steps"),
        "first_step": Field(("token",), "index of the first step at which the relative norm exceeds norm_ratio"),
        "coordinate": Field(
            ("token", "k"),
            "coordinates of E with the largest share of ‖x‖² at the step of the largest relative norm",
            basis_dependent=True,
            is_categorical=True,
        ),
        "coordinate_share": Field(
            ("token", "k"),
            "share of ‖x‖² in the coordinate; 1/d if all coordinates are equal",
            basis_dependent=True,
        ),
        "log_norm_sd": Field(
            ("token",),
            "robust standard deviation (1.48 · MAD) of the log norms of all tokens at the step of the largest relative norm",
        ),
        "sink_mass": Field(
            ("layer", "token"),
            "share of the attention of all heads of the layer that the token receives; 1/n under uniform attention",
        ),
    },
)

"""A point of the stream as a sum of sparse features, the dictionary's error, and the components that the dictionary leaves as they are."""

import torch

from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.running.features import Features
from rheoscope.shapes import RheoscopeError
from rheoscope.space.components import (
    Components,
    PartsByName,
    embedding_parts,
    last_step_of_layer,
    resolve_positions,
    written_parts,
)
from rheoscope.space.trace import Trace

OTHER_NAME = "features.other"
"""The active features that share a part."""
ERROR_NAME = "features.error"
BIAS_NAME = "features.bias"
MAX_PART_NUMBERS = 2**26
"""The largest number of coordinates of all parts. The features with the shortest contributions share one part."""


def is_described(trace: Trace, features: Features, step: int) -> bool:
    """Whether a dictionary describes a part of the points at this step of a model of its width and depth."""
    view, sites = trace.view, (features.reads, features.writes)
    fits = features.width == features.W_dec.shape[-1] == view.width and all(site.layer < view.layers for site in sites)
    return fits and features.writes.last_step(trace) <= step


@torch.no_grad()
def feature_components(
    trace: Trace, features: Features, step: int | None = None, tokens: list[int] | None = None
) -> Components:
    """The points of some tokens at a step as sums of active features, `features.bias`, `features.error` and other components.

    **Formula** x_step = Σ_a f_a d_a + b_dec + error + Σ (components that the dictionary does not describe). A dictionary of a point
    replaces everything written up to it. A dictionary of an update replaces the parts of that update.

    **Laws** The parts of every point add up to it.

    >>> import rheoscope as rs
    >>> trace = rs.load().trace("The keys to the cabinet")
    >>> parts = feature_components(trace, rs.Features.load(), tokens=[-1])
    >>> torch.allclose(parts.parts.sum(0), trace.points[-1, -1:], atol=1e-3)
    True
    """
    features.check(trace.view)
    last_step = len(trace.steps) - 1 if step is None else step
    positions, site = resolve_positions(tokens, len(trace)), features.writes
    site_step = site.last_step(trace)
    if site_step > last_step:
        raise _later_site(trace, features, last_step)
    dictionary = feature_parts(trace, features, positions)
    parts = dict(dictionary) if site.is_point else embedding_parts(trace, positions)
    for layer in range(trace.view.layers):
        for index in range(trace.input_steps[layer] + 1, min(last_step_of_layer(trace, layer), last_step) + 1):
            if index == site_step and site.is_update:
                parts |= dictionary
            elif index > site_step or site.is_update:
                parts |= written_parts(trace, layer, index, positions)
    return Components(tuple(parts), torch.stack(list(parts.values())))


def feature_parts(trace: Trace, features: Features, positions: list[int]) -> PartsByName:
    """The features that are active on some of these tokens, the constant and the error, by name."""
    total = features.decompose(trace, positions)
    directions = features.W_dec.to(total.error)
    lengths = (total.activations * total.scale).norm(dim=0) * directions.norm(dim=-1)
    max_features = max(16, MAX_PART_NUMBERS // total.error.numel())
    active = lengths.argsort(descending=True)[: int((lengths > 0).sum())]
    listed = active[:max_features].sort().values
    parts: PartsByName = {
        f"f{index}": total.activations[:, index, None] * total.scale * directions[index] for index in listed.tolist()
    }
    if len(active) > max_features:
        rest = active[max_features:]
        parts[OTHER_NAME] = (total.activations[:, rest] @ directions[rest]) * total.scale
    return parts | {BIAS_NAME: total.constant, ERROR_NAME: total.error}


def _later_site(trace: Trace, features: Features, last_step: int) -> RheoscopeError:
    first_layer = next(
        (layer for layer, step in enumerate(trace.input_steps) if step >= features.writes.last_step(trace)),
        -1,
    )
    return RheoscopeError(
        Message(
            "the features describe {site}, but this sum ends before it, at {step}",
            site=str(features.writes),
            step=str(trace.steps[last_step]),
        ),
        use(layer=first_layer),
    )

"""Attribution patching: the effects of all points, MLP updates and heads at once, estimated from two backward passes.

effect of a part ≈ ⟨gradient of the metric in the base run, part of the clean text − part of the other text⟩
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.layer_inputs import provenance
from rheoscope.covers.patch.analysis import (
    Metric,
    coordinates,
    pair_batch,
    pair_settings,
    pair_tokens,
    patched_steps,
)
from rheoscope.covers.patch.gradients import MetricGradients, metric_gradients
from rheoscope.covers.patch.metrics import signed_share
from rheoscope.covers.patch.patched_runs import PatchedRuns, both_directions, mlp_update
from rheoscope.messages.message import Message
from rheoscope.running.progress import tick
from rheoscope.running.runner import RunnableModel
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.model import Text
from rheoscope.space.settings import Count, Seed, TokenIndex
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def patch_estimates(
    model: RunnableModel,
    trace: Trace,
    other: Text | None = None,
    answers: str = "",
    metric: Metric = "logit_diff",
    token: TokenIndex = -1,
    sample: Count = 4,
    seed: Seed = 0,
) -> "xarray.Dataset":
    """Estimates of all effects of patching, from one forward and one backward pass in each direction, with their error.

    **Question** Which parts are worth an exact run, in a model whose full map of heads and tokens is too expensive?

    **Formula** The effect of a part a is estimated by ⟨∂m/∂a, a(text) − a(other)⟩ / (m(text) − m(other)), with the gradient in the
    run that `patch` changes: that of the other text for `restore`, that of this text for `disrupt`.

    **Settings** As in `patch`. The estimates of all tokens at `sample` random steps and in `sample` random heads are compared with
    exact runs.

    **Returns** (direction, step, token): `stream`. (direction, layer, token): `mlp`. (direction, layer, head): `output`. (direction,
    layer, head, token): `head_token`. (direction, sampled_step, token) `exact_stream` and (direction, sampled_head, token)
    `exact_head_token` are the exact effects of the sample. Scalars: `stream_correlation`, `stream_error`, `head_correlation` and
    `head_error`: the correlation of estimates and exact effects in the sample, and their largest difference.

    **Laws** The estimates at the tokens of a head sum to that of the head. An estimate is exact where the metric is linear in the part.

    **Source** Nanda 2023, neelnanda.io/attribution-patching; Kramár et al. 2024, arXiv:2403.00745.

    **See also** `patch`, which runs the model for every part.

    >>> import rheoscope as rs
    >>> model, text = rs.load(), "The men who live here"
    >>> result = rs.patch_estimates(model, model.trace(text), other="The man who live here", answers=" are| is")
    >>> result.head_token.dims, bool(result.head_correlation > 0.8)
    (('direction', 'layer', 'head', 'token'), True)
    """
    batch = pair_batch(model, trace, other, answers, metric, token, seed)
    total = batch.metrics[0, 0] - batch.metrics[1, 0]
    runs, steps = both_directions(batch), patched_steps(trace)

    def to_effects(changes: list[Tensor]) -> Float[Tensor, "2 *n"]:
        restored, disrupted = changes
        return signed_share(torch.stack([restored, -disrupted]), total)

    estimates = [estimated_changes(patched_runs) for patched_runs in runs]
    values = {name: to_effects([changes[name] for changes in estimates]) for name in estimates[0]}
    sampled_steps = sampled_indices(len(steps), sample, seed)
    sampled_heads = sampled_indices(trace.view.layers * trace.view.heads, sample, seed)
    heads = [divmod(index, trace.view.heads) for index in sampled_heads]
    exact = [exact_changes(patched_runs, [steps[i] for i in sampled_steps], heads) for patched_runs in runs]
    values |= {name: to_effects([changes[name] for changes in exact]) for name in exact[0]}
    values |= comparison("stream", values["stream"][:, sampled_steps], values["exact_stream"])
    head_rows = values["head_token"].flatten(1, 2)[:, sampled_heads]
    values |= comparison("head", head_rows, values["exact_head_token"])
    coords = coordinates(trace, pair_tokens(trace.tokens, batch.corrupt.tokens[0]), heads)
    coords["sampled_head"] = coords.pop("strong_head")
    coords["sampled_step"] = [str(steps[index]) for index in sampled_steps]
    settings = pair_settings(batch) | {"sample": sample, "seed": seed}
    return PATCH_ESTIMATES.label(values, coords, provenance(trace, True, **settings))


def estimated_changes(runs: PatchedRuns) -> dict[str, Float[Tensor, "*n"]]:
    """How far every part moves the metric from the base to the donor, by the gradient in the base run."""
    stream, mlp, heads = part_products(runs, metric_gradients(runs))
    return {"stream": stream, "mlp": mlp, "output": heads.sum(-1), "head_token": heads}


def part_products(
    runs: PatchedRuns, gradients: MetricGradients
) -> tuple[Float[Tensor, "s n"], Float[Tensor, "l n"], Float[Tensor, "l h n"]]:
    """⟨gradient, donor − base⟩ of every point, MLP update and head output at every token, for the first pair."""
    base, donor = runs.base, runs.donor
    layers = range(base.view.layers)
    ends = [Step(layer, "resid_post") for layer in layers]

    def product(gradient: Tensor, difference: Tensor) -> Tensor:
        return (gradient * difference)[0].double().sum(-1)

    points = [
        product(gradients.points[str(step)], donor.points_at(index) - base.points_at(index))
        for index, step in enumerate(base.steps)
        if step not in base.unread_steps
    ]
    updates = [product(gradients.points[str(end)], mlp_update(donor, end) - mlp_update(base, end)) for end in ends]
    outputs = [
        product(gradients.outputs[layer], runs.head_outputs(layer, "output") - runs.head_outputs(layer, ""))
        for layer in layers
    ]
    return torch.stack(points), torch.stack(updates), torch.stack(outputs)


def sampled_indices(count: int, sample: int, seed: int) -> list[int]:
    """Some random indices in order.

    >>> sampled_indices(3, 5, seed=0)
    [0, 1, 2]
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return sorted(order[:sample].tolist())


def exact_changes(
    runs: PatchedRuns, steps: Sequence[Step], heads: Sequence[tuple[int, int]]
) -> dict[str, Float[Tensor, "c n"]]:
    """The same by exact runs at every token, for some steps and some heads."""
    rows: list[Tensor] = []
    for step in steps:
        rows.append(runs.stream(step)[:, 0] - runs.base_metric[0])
        tick(len(rows), len(steps) + len(heads))
    for layer, head in heads:
        rows.append(runs.head_groups(layer, [head])[0, :, 0] - runs.base_metric[0])
        tick(len(rows), len(steps) + len(heads))
    return {"exact_stream": torch.stack(rows[: len(steps)]), "exact_head_token": torch.stack(rows[len(steps) :])}


def comparison(name: str, estimates: Float[Tensor, "2 c n"], exact: Float[Tensor, "2 c n"]) -> dict[str, Tensor]:
    """The correlation of estimates and exact effects, and their largest difference."""
    correlation = torch.corrcoef(torch.stack([estimates.flatten(), exact.flatten()]))[0, 1]
    return {f"{name}_correlation": correlation, f"{name}_error": (estimates - exact).abs().amax()}


HEAD_DIMS = ("direction", "layer", "head")
PATCH_ESTIMATES = Analysis(
    name="patch_estimates",
    question="Which parts probably carry the difference between this text and another one, without a run for each?",
    ask=patch_estimates,
    needs="model",
    see_also=("patch",),
    fields={
        "stream": Field(
            ("direction", "step", "token"), Message("estimated effect of patching one point of the stream")
        ),
        "mlp": Field(
            ("direction", "layer", "token"), Message("estimated effect of patching an MLP's update at one token")
        ),
        "output": Field(HEAD_DIMS, Message("estimated effect of patching the output of a head at all tokens")),
        "head_token": Field(
            (*HEAD_DIMS, "token"), Message("estimated effect of patching the output of a head at one token")
        ),
        "exact_stream": Field(
            ("direction", "sampled_step", "token"), Message("exact effect of the points at sampled steps")
        ),
        "exact_head_token": Field(
            ("direction", "sampled_head", "token"), Message("exact effect of the outputs of sampled heads")
        ),
        "stream_correlation": Field((), Message("correlation of estimated and exact effects of sampled points")),
        "stream_error": Field((), Message("largest error of an estimate of a sampled point")),
        "head_correlation": Field((), Message("correlation of estimated and exact effects of sampled heads at tokens")),
        "head_error": Field((), Message("largest error of an estimate of a sampled head at a token")),
    },
)

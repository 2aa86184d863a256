"""Do later layers heal a change? The deviation of the stream after an edit, layer by layer, against noise of the same size."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from rheoscope.covers import head_replacement
from rheoscope.covers.head_replacement import Operation, live, plans
from rheoscope.covers.head_selection import Asked, Chosen
from rheoscope.covers.reversed_attention.analysis import written_at
from rheoscope.covers.surgery.analysis import changed_attributes, default_form, predicting_heads
from rheoscope.covers.text_batches import Batch, Progress, losses, measured, pieces
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field, with_interval
from rheoscope.space.model import Edits, Hook, Model
from rheoscope.space.trace import Trace
from rheoscope.space.view import View
from rheoscope.statistics.nulls import RESAMPLES, bootstrap, bootstrap_means, percentiles

if TYPE_CHECKING:
    import xarray

ROUNDING = 1e-5
Cloud = Float[Tensor, "b n d"]
Followed = tuple[list[str], Float[Tensor, "change field"]]
"""Of one piece: the steps that were looked at, and its sums over tokens under every change."""


def decay(
    model: Model,
    text: Any,
    heads: Asked = None,
    M: str | None = None,
    F: str | None = None,
    draws: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> "xarray.Dataset":
    """What later layers make of a change in one layer: does the deviation die out, faster or slower than noise of its size?

    **Answers** "is the model robust to this change, or to any change of that size?"

    **Formula** deviation_ℓ = mean_i ‖x'_i − x_i‖ / ‖x_i‖ after every step from the changed layer on; remaining = deviation_ℓ over the
    first. Noise is added to the stream where attention of that layer has written, with the length that the edit has there, token by
    token: `isotropic` in random directions of E, `exchanged` in those in which the edit moves another token of the text.

    **Shapes** as in `surgery`; all heads in one layer: [(5, 1), (5, 2)], `model.view.heads_in(5)`, or None for all of the first layer.
    With neither M nor F, M is made symmetric. `draws=0` leaves the noise out.

    **Gives** (change, step): `deviation`, `remaining`, `direction`, `healed_less`; (change): `cost`; bootstrap intervals over texts of
    `remaining`, `healed_less` and `cost` (NaN for fewer than five).

    **Laws** at the first step every change has the same deviation; layers that write nothing leave `remaining` and `direction` at 1;
    equal to the points of `trace_under` less those of the model; the model is as before on exit; no gauge moves any number.

    **Siblings** `surgery` says what the change costs; `geometry_kept` follows the geometry of the cloud, this its displacement.

    >>> import rheoscope as rs
    >>> found = rs.decay(rs.load(), "The keys to the cabinet are on the table", heads=[(2, 1)], M="symmetric")
    >>> found.remaining.dims, bool((found.remaining[:, 0] == 1).all())
    (('change', 'step'), True)
    """
    if draws < 0:
        raise RheoscopeError(f"noise is drawn 0 times or more, got draws={draws}; type draws=1")
    M, chosen, cut = default_form(M, F), _of_one_layer(model.view, heads), pieces(model, text)
    (edit,) = (head_replacement.edit(plan, Generator()) for plan in plans(model.view, chosen, M, F))
    noises = list(NOISE) if draws else []
    follow = partial(_followed, model, edit=edit, noises=noises, draws=draws, generator=Generator().manual_seed(seed))
    rows = measured(model, cut, follow, progress)
    values = kernel(torch.stack([row for _, row in rows], -1), [len(one) - 1 for one in cut], seed)
    coords = {"change": ["edit", *noises], "step": rows[0][0]}
    settings = {"draws": draws, "seed": seed, "bootstrap": f"{RESAMPLES} draws of texts"}
    return DECAY.answer(values, coords, changed_attributes(model.view, heads, chosen, M, F) | settings)


def _of_one_layer(view: View, heads: Asked) -> Chosen:
    """The heads asked for, all of one layer; unless said those of the first."""
    chosen = predicting_heads(view, view.heads_in(0) if heads is None else heads)
    if len(chosen) > 1:
        raise RheoscopeError(
            f"decay follows a change of one layer, got heads of {len(chosen)} layers; type heads=[(5, 1)], or "
            "heads=model.view.heads_in(5)"
        )
    return chosen


def after(trace: Trace, layer: int) -> list[str]:
    """The steps from where the attention of a layer has written on."""
    first = trace.steps.index(written_at(trace, layer))
    return [str(step) for step in trace.steps[first:] if step not in trace.not_read]


# Noise


def isotropic(moved: Cloud, generator: Generator) -> Cloud:
    """Random directions of E."""
    return _as_long(torch.randn(moved.shape, generator=generator).to(moved), moved)


def exchanged(moved: Cloud, generator: Generator) -> Cloud:
    """The directions in which other tokens of the same text move."""
    found = torch.zeros_like(moved)
    for one, text in zip(found, moved, strict=True):
        at = _moved(text).nonzero()[:, 0]
        one[at] = text[at[torch.randperm(len(at), generator=generator).to(at.device)]]
    return _as_long(found, moved)


def _moved(cloud: Float[Tensor, "*b n d"]) -> Bool[Tensor, "*b n"]:
    """Which tokens moved by more than rounding: the first of a causal text, which sees itself alone, does not."""
    by = cloud.norm(dim=-1)
    return by > ROUNDING * by.amax(-1, keepdim=True)


def _as_long(directions: Cloud, moved: Cloud) -> Cloud:
    return directions * (moved.norm(dim=-1, keepdim=True) / directions.norm(dim=-1, keepdim=True).clamp(min=1e-30))


NOISE: dict[str, Callable[[Cloud, Generator], Cloud]] = {"isotropic": isotropic, "exchanged": exchanged}
"""Displacements of the same length, token by token, in directions that say nothing of the edit, or of where it was."""


# Some texts side by side


@torch.no_grad()
def _followed(
    model: Model, batch: Batch, edit: Operation, noises: list[str], draws: int, generator: Generator
) -> dict[int, Followed]:
    """Number of a piece → its steps, and its deviations and cost, summed over tokens, under the edit and under the mean of every noise."""
    steps = after(batch.traces[0], edit.layer)
    plain = {step: torch.stack([trace.at(step) for trace in batch.traces]) for step in steps}
    given = model.passed(batch.ids)[: edit.layer]

    def run(edits: Edits, hooks: dict[str, Hook]) -> tuple[dict[str, Cloud], Float[Tensor, "b field"]]:
        moved: dict[str, Cloud] = {}
        looking = {step: _then(hooks.get(step), _leaving(moved, step, plain[step])) for step in steps}
        logits = model.run_batch(batch.ids, edits, hooks | looking, given)
        cost = (losses(logits, batch.ids) - batch.before).sum(-1, keepdim=True)
        return moved, torch.cat([*_deviations(plain, moved, batch.kept), cost], -1)

    moved, told = run(live(batch.kept, [edit]), {})
    found = [told]
    for name in noises:
        these = [NOISE[name](moved[steps[0]], generator) for _ in range(draws)]
        found.append(torch.stack([run({}, {steps[0]: _adding(one)})[1] for one in these]).mean(0))
    rows = torch.stack(found, 1).cpu().double()
    return {piece: (steps, rows[at]) for at, piece in enumerate(batch.which)}


def _leaving(moved: dict[str, Cloud], step: str, plain: Cloud) -> Hook:
    def look(x: Tensor) -> Tensor:
        moved[step] = x.reshape(plain.shape) - plain
        return x

    return look


def _adding(noise: Cloud) -> Hook:
    return lambda x: x + noise.to(x).reshape(x.shape)


def _then(first: Hook | None, second: Hook) -> Hook:
    return second if first is None else lambda x: second(first(x))


def _deviations(plain: dict[str, Cloud], moved: dict[str, Cloud], kept: Bool[Tensor, "b n"]) -> list[Tensor]:
    """Of every text, summed over tokens: deviations (b, step), directions (b, step); and how many tokens, of each of the two (b, 1)."""
    start = next(iter(moved.values()))
    there = kept & _moved(start)
    deviations = [(d.norm(dim=-1) / plain[step].norm(dim=-1) * kept).sum(-1) for step, d in moved.items()]
    directions = [(torch.cosine_similarity(d, start, dim=-1) * there).sum(-1) for d in moved.values()]
    counts = [over.sum(-1, keepdim=True).to(start) for over in (kept, there)]
    return [torch.stack(deviations, -1), torch.stack(directions, -1), *counts]


def kernel(rows: Float[Tensor, "change field text"], lengths: list[int], seed: int) -> dict[str, Tensor]:
    """Means over texts with their intervals, from what `_followed` gives of every text and the texts' predicted tokens."""
    steps = (rows.shape[1] - 3) // 2
    deviation, direction, tokens, moving, cost = rows.split([steps, steps, 1, 1, 1], 1)
    sizes = tokens[0, 0].long().tolist()
    again, mean = bootstrap_means(deviation, sizes, Generator().manual_seed(seed)), deviation.sum(-1) / sum(sizes)
    remaining, remaining_again = mean / mean[:, :1], again / again[:, :1]
    values = {
        "deviation": mean,
        "direction": direction.sum(-1) / moving.sum(-1),
        "remaining": remaining,
        "healed_less": remaining[:1] - remaining,
        "cost": cost[:, 0].sum(-1) / sum(lengths),
    }
    intervals = {
        "remaining": percentiles(remaining_again),
        "healed_less": percentiles(remaining_again[:1] - remaining_again),
        "cost": bootstrap(cost[:, 0], lengths, Generator().manual_seed(seed)),
    }
    for name, (low, high) in intervals.items():
        values |= {f"{name}_low": low, f"{name}_high": high}
    return values


STEPS = ("change", "step")
REMAINING = Field(STEPS, "deviation over that at the first step, where attention of the changed layer has written")
HEALED_LESS = Field(
    STEPS,
    "remaining of the edit less that of each change, over the same texts: above 0 later layers undo the noise more",
)
COST = Field(("change",), "loss under the change less that of the model as it is, per token", "nats")
DECAY = Analysis(
    name="decay",
    question="Do later layers undo a change of one layer, more or less than noise of its size?",
    ask=decay,
    needs="model",
    fields={
        "deviation": Field(
            STEPS,
            "‖x'_i − x_i‖ / ‖x_i‖ at a step, mean over tokens that are not massive: x' under the change, x of the model as it is",
        ),
        "direction": Field(
            STEPS,
            "cosine of x'_i − x_i with the same at the first step, mean over tokens that are not massive and that moved there",
        ),
    }
    | with_interval("remaining", REMAINING)
    | with_interval("healed_less", HEALED_LESS)
    | with_interval("cost", COST),
)

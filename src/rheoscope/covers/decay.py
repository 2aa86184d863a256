"""Do later layers heal a change? The deviation of the stream after an edit, layer by layer, against noise of the same size."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from rheoscope.covers import operation
from rheoscope.covers.against import Against
from rheoscope.covers.bootstrap import RESAMPLES, ends, redrawn, resampled
from rheoscope.covers.operation import Operation, live, plans
from rheoscope.covers.pieces import Batch, batches, losses, pieces
from rheoscope.covers.reversed_attention import written_at
from rheoscope.covers.surgery import Asked, attributes, checked
from rheoscope.shapes import RheoscopeError
from rheoscope.space.dataset import dataset
from rheoscope.space.model import Edits, Hook, Model
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

Cloud = Float[Tensor, "b n d"]
DEFINITIONS = {
    "deviation": "‖x'_i − x_i‖ / ‖x_i‖ at a step, mean over tokens that are not massive: x' under the change, x of the model as it is",
    "remaining": "deviation over that at the first step, where attention of the changed layer has written",
    "direction": "cosine of x'_i − x_i with the same at the first step, mean over tokens that are not massive and that moved there",
    "healed_less": "remaining of the edit less that of each change, over the same texts: above 0 later layers undo the noise more",
    "cost": "loss under the change less that of the model as it is, in nats per token",
} | {
    f"{name}_{end}": f"{'lower' if end == 'low' else 'upper'} end of the 95 % bootstrap interval of {name} over texts"
    for name in ("remaining", "healed_less", "cost")
    for end in ("low", "high")
}


def decay(
    model: Model,
    text: Any,
    heads: Asked,
    M: str | None = None,
    F: str | None = None,
    draws: int = 1,
    seed: int = 0,
) -> "xarray.Dataset":
    """What later layers make of a change in one layer: does the deviation die out, faster or slower than noise of its size?

    **Answers** "is the model robust to this change, or to any change of that size?"

    **Formula** deviation_ℓ = mean_i ‖x'_i − x_i‖ / ‖x_i‖ after every step from the changed layer on; remaining = deviation_ℓ over the
    first. Noise is added to the stream where attention of that layer has written, with the length that the edit has there, token by
    token: `isotropic` in random directions of E, `exchanged` in those in which the edit moves another token of the text.

    **Shapes** as in `surgery`; all heads in one layer: `heads=5`, or `[(5, 1), (5, 2)]`.

    **Gives** (change, step): `deviation`, `remaining`, `direction`, `healed_less`; (change): `cost`; bootstrap intervals over texts of
    `remaining`, `healed_less` and `cost` (NaN for fewer than five).

    **Laws** at the first step every change has the same deviation; layers that write nothing leave `remaining` and `direction` at 1;
    equal to the points of `operated` less those of the model; the model is as before on exit; no gauge moves any number.

    **Siblings** `surgery` says what the change costs; `kept` follows the geometry of the cloud, this its displacement.

    >>> import rheoscope as rs
    >>> found = rs.decay(rs.load(), "The keys to the cabinet are on the table", heads=2, M="symmetric")
    >>> found.remaining.dims, bool((found.remaining[:, 0] == 1).all())
    (('change', 'step'), True)
    """
    chosen, cut = checked(model.view, heads), pieces(model, text)
    if len(chosen) > 1:
        raise RheoscopeError(
            f"decay follows a change of one layer, got {len(chosen)} layers; type heads=5 or heads=[(5, 1)]"
        )
    told = attributes(model.view, "decay", heads, M, F, Against((), draws, seed))
    (edit,) = (operation.edit(plan, Generator()) for plan in plans(model.view, chosen, M, F))
    generator, rows = Generator().manual_seed(seed), dict[int, Any]()
    for batch in batches(model, cut):
        rows |= _followed(model, batch, edit, draws, generator)
        steps = after(batch.traces[0], edit.layer)
    ordered = torch.stack([rows[at] for at in range(len(cut))], -1)
    return _dataset(ordered, steps, [len(one) - 1 for one in cut], seed, told)


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
        at = text.norm(dim=-1).nonzero()[:, 0]
        one[at] = text[at[torch.randperm(len(at), generator=generator).to(at.device)]]
    return _as_long(found, moved)


def _as_long(directions: Cloud, moved: Cloud) -> Cloud:
    return directions * (moved.norm(dim=-1, keepdim=True) / directions.norm(dim=-1, keepdim=True).clamp(min=1e-30))


NOISE: dict[str, Callable[[Cloud, Generator], Cloud]] = {"isotropic": isotropic, "exchanged": exchanged}
"""Displacements of the same length, token by token, in directions that say nothing of the edit, or of where it was."""


# Some texts side by side


@torch.no_grad()
def _followed(
    model: Model, batch: Batch, edit: Operation, draws: int, generator: Generator
) -> dict[int, Float[Tensor, "change field"]]:
    """Number of a piece → what `_measured` says and the cost, summed over tokens, of the edit and of the mean of every noise."""
    steps = after(batch.traces[0], edit.layer)
    plain = {step: torch.stack([trace.at(step) for trace in batch.traces]) for step in steps}
    given = model.passed(batch.ids)[: edit.layer]

    def run(edits: Edits, hooks: dict[str, Hook]) -> tuple[dict[str, Cloud], Float[Tensor, "b field"]]:
        moved: dict[str, Cloud] = {}
        looking = {step: _then(hooks.get(step), _leaving(moved, step, plain[step])) for step in steps}
        logits = model.run_batch(batch.ids, edits, hooks | looking, given)
        cost = (losses(logits, batch.ids) - batch.before).sum(-1, keepdim=True)
        return moved, torch.cat([*_measured(plain, moved, batch.kept), cost], -1)

    moved, told = run(live(batch.kept, [edit]), {})
    found = [told]
    for noise in NOISE.values():
        these = [noise(moved[steps[0]], generator) for _ in range(draws)]
        found.append(torch.stack([run({}, {steps[0]: _adding(one)})[1] for one in these]).mean(0))
    rows = torch.stack(found, 1).cpu().double()
    return {piece: rows[at] for at, piece in enumerate(batch.which)}


def _leaving(moved: dict[str, Cloud], step: str, plain: Cloud) -> Hook:
    def look(x: Tensor) -> Tensor:
        moved[step] = x.reshape(plain.shape) - plain
        return x

    return look


def _adding(noise: Cloud) -> Hook:
    return lambda x: x + noise.to(x).reshape(x.shape)


def _then(first: Hook | None, second: Hook) -> Hook:
    return second if first is None else lambda x: second(first(x))


def _measured(plain: dict[str, Cloud], moved: dict[str, Cloud], kept: Bool[Tensor, "b n"]) -> list[Tensor]:
    """Of every text, summed over tokens: deviations (b, step), directions (b, step); and how many tokens, of each of the two (b, 1)."""
    start = next(iter(moved.values()))
    there = kept & (start.norm(dim=-1) > 0)
    deviations = [(d.norm(dim=-1) / plain[step].norm(dim=-1) * kept).sum(-1) for step, d in moved.items()]
    directions = [(torch.cosine_similarity(d, start, dim=-1) * there).sum(-1) for d in moved.values()]
    counts = [over.sum(-1, keepdim=True).to(start) for over in (kept, there)]
    return [torch.stack(deviations, -1), torch.stack(directions, -1), *counts]


def _dataset(
    rows: Float[Tensor, "change field text"], steps: list[str], lengths: list[int], seed: int, told: dict[str, Any]
) -> "xarray.Dataset":
    deviation, direction, tokens, moving, cost = rows.split([len(steps), len(steps), 1, 1, 1], 1)
    sizes = tokens[0, 0].long().tolist()
    again = redrawn(deviation, sizes, Generator().manual_seed(seed))
    mean = deviation.sum(-1) / sum(sizes)
    values: dict[str, tuple[tuple[str, ...], Any]] = {
        "deviation": (("change", "step"), mean),
        "direction": (("change", "step"), direction.sum(-1) / moving.sum(-1)),
        "cost": (("change",), cost[:, 0].sum(-1) / sum(lengths)),
    }
    remaining, remaining_again = mean / mean[:, :1], again / again[:, :1]
    values["remaining"] = ("change", "step"), remaining
    values["healed_less"] = ("change", "step"), remaining[:1] - remaining
    intervals = {
        "remaining": ends(remaining_again),
        "healed_less": ends(remaining_again[:1] - remaining_again),
        "cost": resampled(cost[:, 0], lengths, Generator().manual_seed(seed)),
    }
    for name, (low, high) in intervals.items():
        values |= {f"{name}_low": (values[name][0], low), f"{name}_high": (values[name][0], high)}
    told |= {"bootstrap": f"{RESAMPLES} draws of texts"}
    return dataset(values, DEFINITIONS, {"change": ["edit", *NOISE], "step": steps}, told)

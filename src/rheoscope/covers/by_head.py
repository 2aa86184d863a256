"""What does a change of M or F cost in every head alone? One sweep, which computes only what comes after each head."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.covers.against import MATCHED, Against, Made, means_of, running
from rheoscope.covers.bootstrap import RESAMPLES, resampled, unit, units
from rheoscope.covers.operation import Chosen, plans
from rheoscope.covers.pieces import Batch, batches, losses, pieces
from rheoscope.covers.surgery import Asked, attributes, checked
from rheoscope.space.dataset import dataset
from rheoscope.space.model import Model
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray

DEFINITIONS = {
    "loss_before": "mean −log p of the next token of each text, in nats, of the model as it is",
    "tokens": "how many next tokens of the text were predicted",
    "cost": "loss with this head alone changed less the loss before, in nats per token, over all texts (and over draws of a control)",
    "cost_of_text": "the same of each text",
    "excess": "cost of the replacement less that of each change in the same head, over the same texts: above 0 it costs more",
    "total": "the cost summed over the heads that were changed, one at a time",
    "total_excess": "the excess summed over the same heads",
} | {
    f"{name}_{end}": f"{'lower' if end == 'low' else 'upper'} end of the 95 % bootstrap interval of {said}"
    for name, said in (
        ("cost", "the cost"),
        ("excess", "the excess"),
        ("total", "the total"),
        ("total_excess", "the total excess"),
    )
    for end in ("low", "high")
}
Sums = Float[Tensor, "change heads _"]
"""Costs of the tokens of every unit (a text, or a chunk of one) added up."""


def surgery_by_head(
    model: Model,
    text: Any,
    heads: Asked = None,
    M: str | None = None,
    F: str | None = None,
    against: Against = MATCHED,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """What a change of M or F costs in each head alone, beside random changes of the same size in the same head.

    **Answers** "which heads need their asymmetry, and is what one head needs more than any change of that size would cost?"

    **Formula** that of `surgery`, one head after the other: cost_h = loss with M_h → M'_h less the loss before.

    **Shapes** as in `surgery`; `heads` are those to be changed, one at a time.

    **Gives** (change, layer, head): `cost`, and `excess` of the edit above each change, with bootstrap intervals (`cost_low`, …) over
    texts, or over chunks where there are fewer than five; (change, layer, head, text): `cost_of_text`; (change): `total` and
    `total_excess` over heads; (text): `loss_before`, `tokens`. NaN where a head was not asked for.

    **Laws** every cost is that of `surgery` of the head alone; a head's numbers do not depend on which others are asked for (random
    turns belong to a layer and the seed); `identity` costs 0; the model is as before on exit; no gauge moves any number.

    **Cost** a head of layer ℓ runs layers ℓ and after: the stream before it is unchanged and reused. All 270 heads of a model of 135M
    parameters cost about as much as 135 forward passes a change.

    **Siblings** `surgery` changes heads together: what one head does not need, all may.

    >>> import rheoscope as rs
    >>> found = rs.surgery_by_head(rs.load(), "The keys to the cabinet are on the table", heads=[(2, 1), (3, 0)], M="symmetric")
    >>> found.cost.dims, int(found.cost.sel(change="edit").notnull().sum())
    (('change', 'layer', 'head'), 2)
    """
    chosen, cut = checked(model.view, heads), pieces(model, text)
    made = _made(model.view, chosen, M, F, against)
    found: dict[int, tuple[float, Sums]] = {}
    for batch in batches(model, cut):
        found |= _swept(model, batch, chosen, made, against, len(cut))
        if progress is not None:
            progress(len(found), len(cut))
    told = attributes(model.view, "by_head", heads, M, F, against)
    return _dataset(
        [found[at] for at in range(len(cut))], [len(one) - 1 for one in cut], chosen, against, told, model.view
    )


def _made(view: View, chosen: Chosen, M: str | None, F: str | None, against: Against) -> dict[int, Made]:
    """The changes of every layer; its random turns are its own, whatever else is asked for."""
    return {
        layer: against.made(plans(view, {layer: some}, M, F), Generator().manual_seed(1000 * against.seed + layer))
        for layer, some in chosen.items()
    }


@torch.no_grad()
def _swept(
    model: Model, batch: Batch, chosen: Chosen, made: dict[int, Made], against: Against, texts: int
) -> dict[int, tuple[float, Sums]]:
    """Number of a piece → its loss before, and what every change of every head costs it."""
    passed, means = model.passed(batch.ids), means_of(batch, against)
    size = units([batch.before.shape[-1]] * texts)[0]
    heads = []
    for layer, some in chosen.items():
        for head in some:
            after: dict[str, list[Tensor]] = {name: [] for name in against.changes}
            for name, edits in running(batch, {layer: [head]}, made[layer], means, against):
                logits = model.run_batch(batch.ids, edits, given=passed[:layer])
                after[name].append(_added(losses(logits, batch.ids) - batch.before, size))
            heads.append(torch.stack([torch.stack(draws).mean(0) for draws in after.values()]))
    sums, before = torch.stack(heads, 1).cpu(), batch.before.mean(-1).tolist()
    return {piece: (before[at], sums[:, :, at].double()) for at, piece in enumerate(batch.which)}


def _added(costs: Float[Tensor, "b m"], size: int) -> Float[Tensor, "b u"]:
    """Costs added up, `size` tokens after the other."""
    return torch.nn.functional.pad(costs, (0, -costs.shape[-1] % size)).unflatten(-1, (-1, size)).sum(-1)


def _dataset(
    rows: list[tuple[float, Sums]],
    lengths: list[int],
    chosen: Chosen,
    against: Against,
    told: dict[str, Any],
    view: View,
) -> "xarray.Dataset":
    sums, grid = torch.cat([one for _, one in rows], -1), ("change", "layer", "head")
    of_text = torch.stack([one.sum(-1) / length for (_, one), length in zip(rows, lengths, strict=True)], -1)
    values: dict[str, tuple[tuple[str, ...], Any]] = {
        "loss_before": (("text",), [before for before, _ in rows]),
        "tokens": (("text",), lengths),
        "cost_of_text": ((*grid, "text"), _placed(of_text, chosen, view)),
    }
    for name, total, these in (("cost", "total", sums), ("excess", "total_excess", sums[:1] - sums)):
        for end, x in _with_ends(these, lengths, against.seed).items():
            values[name + end] = grid, _placed(x, chosen, view)
        for end, x in _with_ends(these.sum(1), lengths, against.seed).items():
            values[total + end] = ("change",), x
    coords = {
        "change": against.changes,
        "layer": range(view.layers),
        "head": range(view.heads),
        "text": range(len(rows)),
    }
    return dataset(values, DEFINITIONS, coords, told | {"bootstrap": f"{RESAMPLES} draws of {unit(lengths)}"})


def _with_ends(sums: Float[Tensor, "*c u"], lengths: list[int], seed: int) -> dict[str, Float[Tensor, "*c"]]:
    """The mean over tokens, and both ends of its interval."""
    low, high = resampled(sums, units(lengths), Generator().manual_seed(seed))
    return {"": sums.sum(-1) / sum(lengths), "_low": low, "_high": high}


def _placed(x: Float[Tensor, "change heads *t"], chosen: Chosen, view: View) -> Float[Tensor, "change layer head *t"]:
    """What belongs to the chosen heads, where they stand; NaN elsewhere."""
    found = x.new_full((len(x), view.layers, view.heads, *x.shape[2:]), torch.nan)
    layers, heads = zip(*((layer, head) for layer, some in chosen.items() for head in some), strict=True)
    found[:, list(layers), list(heads)] = x
    return found

"""Patching of many pairs of texts: means with intervals over pairs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.patch.analysis import PATCH, Metric, coordinates, measure_changes
from rheoscope.covers.patch.pairs import Pair, PairBatch, batch_pairs, position_labels
from rheoscope.covers.patch.patched_runs import TOKENS_PER_RUN
from rheoscope.covers.relation_swap.analysis import check_unembedding
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.safe_arithmetic import safe_divide
from rheoscope.space.settings import Seed, TokenIndex, Top
from rheoscope.statistics.intervals import bootstrap_t_interval, describe_intervals

if TYPE_CHECKING:
    import xarray

PairLike = Pair | tuple[Any, ...]
"""A Pair, or (clean, corrupt) or (clean, corrupt, answers)."""


@torch.no_grad()
def patch_pairs(
    model: RunnableModel,
    pairs: Sequence[PairLike],
    answers: str = "",
    metric: Metric = "logit_diff",
    token: TokenIndex = -1,
    top: Top = 4,
    seed: Seed = 0,
) -> "xarray.Dataset":
    """`patch` on many pairs of texts: mean effects with 95 % intervals over pairs.

    **Question** Which parts carry the difference in general, and not only in one pair of texts?

    **Formula** The effect of a part is Σ_p (change of the metric by the part) / Σ_p (m(clean) − m(corrupt)), so that pairs with a
    small difference do not dominate. Its interval is the bootstrap-t of this ratio over pairs.

    **Settings** `pairs` are `rs.Pair(clean, corrupt, answers, spans)` or tuples of the first two or three; `rs.read_pairs(path)`
    reads a file. The texts of a pair have equally many tokens. Without spans all pairs have one length, and effects of tokens
    belong to positions. With spans, such as {"subject": "men"}, all tokens of a span are patched together, and texts of
    different length can be compared. The group `rest` holds all other tokens. `answers` are those of pairs without their own.

    **Returns** The fields of `patch`: the mean effect under its own name, `…_low` and `…_high`. (pair): `total`, the difference of
    the metric between the two texts. It belongs to the analysis `patch`, so `rs.plot` draws it.

    **Laws** One pair gives the effects of `patch`. Neither the order of the pairs nor their batches change an effect.

    >>> import rheoscope as rs
    >>> pairs = [("The men who live here", "The man who live here", " are| is"), ("The cats on it", "The cat on it", " are| is")]
    >>> result = rs.patch_pairs(rs.load(), pairs)
    >>> result.output.dims, round(float(result.output.sel(direction="restore", layer=5, head=1)), 1)
    (('direction', 'layer', 'head'), 0.8)
    """
    check_unembedding(model)
    batches = batch_pairs(model, as_pairs(pairs), answers, metric, token, TOKENS_PER_RUN)
    changes, strongest = measure_changes(batches, top)
    total = changes.pop("total")
    fields = {name: pooled_effects(change, total, seed) for name, change in changes.items()}
    metrics = torch.cat([batch.metrics for batch in batches], 1)
    scalars = {"metric_text": metrics[0].mean(), "metric_other": metrics[1].mean()}
    coords = coordinates(batches[0].clean[0], position_labels(batches), strongest)
    values = {name: effects[0] for name, effects in fields.items()} | scalars
    dataset = PATCH.label(values, coords, attributes(batches, metric, token, seed))
    return dataset.assign(interval_fields(dataset, fields) | {"total": ("pair", total.cpu().numpy(), TOTAL)})


TOTAL = {"definition": Message("difference of the metric between the two texts of a pair")}


def as_pairs(pairs: Sequence[PairLike]) -> list[Pair]:
    """Every item as a Pair; raises for an empty list and for items of another form."""
    if not len(pairs):
        raise RheoscopeError(Message("expected at least one pair of texts, got none"), Advice("rs.read_pairs(path)"))
    named = [pair if isinstance(pair, Pair) else Pair(*pair) for pair in pairs]
    return [
        pair if pair.name else replace(pair, name=Message("pair {n}", n=number)) for number, pair in enumerate(named, 1)
    ]


def pooled_effects(
    changes: Float[Tensor, "*n p"], total: Float[Tensor, " p"], seed: int
) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"], Float[Tensor, "*n"]]:
    """Σ changes / Σ totals, and both ends of its 95 % interval over pairs."""
    sign = total.sum().sign()
    sums, sizes = (changes * sign).cpu(), (total * sign).cpu()
    return safe_divide(sums.sum(-1), sizes.sum()), *bootstrap_t_interval(sums, sizes, seed)


def interval_fields(dataset: "xarray.Dataset", fields: dict[str, tuple[Tensor, Tensor, Tensor]]) -> dict[str, Any]:
    """Both ends of the interval of every effect."""
    low = Message("lower end of the 95 % interval over pairs")
    high = Message("upper end of the 95 % interval over pairs")
    return {
        f"{name}_{end}": (dataset[name].dims, effects[index].numpy(), {"definition": definition})
        for name, effects in fields.items()
        for index, (end, definition) in enumerate((("low", low), ("high", high)), 1)
    }


def attributes(batches: Sequence[PairBatch], metric: str, token: int, seed: int) -> dict[str, Any]:
    """The settings, the model and the number of pairs."""
    n_pairs = sum(map(len, batches))
    facts = {name: str(value) for name, value in batches[0].model.view.facts.items()}
    settings = {"metric": metric, "token": token, "seed": seed, "pairs": n_pairs}
    return settings | {"intervals": describe_intervals(Message("pairs"), n_pairs)} | facts

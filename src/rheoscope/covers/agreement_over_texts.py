"""Agreement over several texts: means with bootstrap intervals, one null for all, and whether the texts tell the same heads apart."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.agreement import CONTROLLED, MEANS, beside_null
from rheoscope.covers.agreement import DEFINITIONS as OF_ONE
from rheoscope.shapes import RheoscopeError
from rheoscope.space.dataset import dataset

if TYPE_CHECKING:
    import xarray

MEASURES = (*MEANS, *(f"{name}_untrained" for name in CONTROLLED))
DEFINITIONS = (
    {name: f"mean over texts: {OF_ONE[name]}" for name in MEASURES}
    | {f"{name}_low": f"lower end of the 95 % bootstrap interval of {name} over texts" for name in MEASURES}
    | {f"{name}_high": f"upper end of the 95 % bootstrap interval of {name} over texts" for name in MEASURES}
    | {
        "queries": "queries of all texts together",
        "null_mean": "mean over texts of the null's mean",
        "null_sd": "mean over texts of the null's standard deviation: a bound from above on that of the mean over texts",
        "z": "(agreement − null_mean) / null_sd, never larger than with the null of the mean itself",
        "q_value": OF_ONE["q_value"],
        "overall": "mean over all heads and texts",
        "overall_low": "lower end of its 95 % bootstrap interval over texts",
        "overall_high": "upper end of its 95 % bootstrap interval over texts",
        "split_half": "correlation over heads of the mean over one half of the texts with that over the other, mean over splits",
    }
)
SAME = ("model", "weights", "draws", "seed", "least", "keep_massive")
"""What Datasets must share to be means of one thing."""


def agreement_over_texts(
    found: "Sequence[xarray.Dataset]", resamples: int = 2000, splits: int = 200, seed: int = 0
) -> "xarray.Dataset":
    """Agreement of one model on several texts: how sure it is of each head, and whether other texts would say the same.

    **Answers** "is this head like that, or was it this text?"

    **Takes** what `agreement` gave for each text, with the same settings: one seed turns the clouds of all texts by the
    same rotations, so that the null, too, is one random head on all of them.

    **Formula** the mean over texts; its 95 % interval from `resamples` draws of as many texts with replacement
    (percentiles: with few texts a little too narrow); the standard deviation of a mean is at most the mean of the standard
    deviations, which is the one that z uses; `split_half`: texts in two halves at random, the correlation over heads of
    the two means, mean over `splits`.

    **Gives** (layer, head): the means of `agreement` and all its variants, each with `_low` and `_high`; `null_mean`,
    `null_sd`, `z`, `q_value` where texts have a null; (measure): `overall`, `overall_low`, `overall_high`, `split_half`;
    (layer): `queries`. A Dataset of `agreement` itself: `rs.plot` draws it. NaN in a layer where a text has none.

    **Laws** the order of the texts does not matter to means; a head that is the same on all texts has an interval of
    width 0; several times the same text split into halves of correlation 1.

    **Siblings** `agreement` is one text; `prefix_stability` is one text under several beginnings.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> texts = ["The keys to the cabinet are on the table in the hall.", "In winter the river is cold and the birds fly south."]
    >>> found = rs.agreement_over_texts([rs.agreement(model.view, model.trace(text), draws=0) for text in texts])
    >>> bool((found.agreement_low <= found.agreement_high).all())
    True
    """
    _check(found, resamples, splits)
    names = [name for name in MEASURES if all(name in one for one in found)]
    table = torch.stack([torch.stack([torch.tensor(one[name].values) for name in names]) for one in found]).double()
    generator = torch.Generator().manual_seed(seed)
    weights = drawn(len(found), resamples, generator)
    mean, (low, high) = table.mean(0), interval(weights, table)
    values: dict[str, tuple[tuple[str, ...], Any]] = {}
    for at, name in enumerate(names):
        ends = {name: mean[at], f"{name}_low": low[at], f"{name}_high": high[at]}
        values |= {end: (("layer", "head"), x) for end, x in ends.items()}
    values |= _null(found, mean[names.index("agreement")])
    values |= {end: (("measure",), x) for end, x in _overall(table, weights).items()}
    values["split_half"] = (("measure",), split_half(table, splits, generator))
    values["queries"] = (("layer",), torch.stack([torch.tensor(one.queries.values) for one in found]).sum(0))
    first = found[0]
    told = {name: value for name, value in first.attrs.items() if name not in ("text", "massive")}
    told |= {"texts": len(found), "bootstrap": f"{resamples} draws of {len(found)} texts", "bootstrap_seed": seed}
    coords = {"layer": first.layer.values, "head": first["head"].values, "measure": names}
    return dataset(values, DEFINITIONS, coords, told)


def _null(found: "Sequence[xarray.Dataset]", own: Float[Tensor, "layer h"]) -> dict[str, Any]:
    if not all("null_sd" in one for one in found):
        return {}
    mean, sd = (
        torch.stack([torch.tensor(one[name].values) for one in found]).double().mean(0)
        for name in ("null_mean", "null_sd")
    )
    return {name: (("layer", "head"), x) for name, x in beside_null(own, mean, sd).items()}


def _overall(table: Float[Tensor, "t m layer h"], weights: Float[Tensor, "r t"]) -> dict[str, Float[Tensor, " m"]]:
    of_texts = table.flatten(2).nanmean(-1)
    low, high = interval(weights, of_texts)
    return {"overall": of_texts.mean(0), "overall_low": low, "overall_high": high}


def drawn(texts: int, resamples: int, generator: torch.Generator) -> Float[Tensor, "r t"]:
    """How much each text counts in each draw of as many texts with replacement; rows sum to 1."""
    chosen = torch.randint(texts, (resamples, texts), generator=generator)
    return torch.nn.functional.one_hot(chosen, texts).double().mean(1)


def interval(weights: Float[Tensor, "r t"], x: Float[Tensor, "t *m"]) -> Float[Tensor, "2 *m"]:
    """Both ends of the 95 % interval of the mean over texts, some heads at a time: a quantile takes 2²⁴ numbers at most."""
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    columns = [(weights @ part).quantile(ends, dim=0) for part in x.flatten(1).split(1024, -1)]
    return torch.cat(columns, -1).unflatten(-1, x.shape[1:])


def split_half(table: Float[Tensor, "t m layer h"], splits: int, generator: torch.Generator) -> Float[Tensor, " m"]:
    """Pearson correlation over heads of the means over two halves of the texts; NaN where heads do not differ."""
    heads = table.flatten(2)
    heads = heads[..., heads.isfinite().all(0).all(0)]
    half = len(table) // 2
    found = []
    for _ in range(splits):
        order = torch.randperm(len(table), generator=generator)
        one, other = (heads[some].mean(0) for some in (order[:half], order[half:]))
        one, other = (x - x.mean(-1, keepdim=True) for x in (one, other))
        found.append((one * other).sum(-1) / (one.norm(dim=-1) * other.norm(dim=-1)))
    return torch.stack(found).mean(0)


def _check(found: "Sequence[xarray.Dataset]", resamples: int, splits: int) -> None:
    if len(found) < 2 or resamples < 1 or splits < 1:
        raise RheoscopeError(
            f"several texts are 2 or more, resamples and splits 1 or more, got {len(found)} texts, resamples={resamples}, "
            f"splits={splits}; type [rs.agreement(model.view, model.trace(text)) for text in texts]"
        )
    for at, one in enumerate(found):
        told = getattr(one, "attrs", {})
        if told.get("analysis") != "agreement" or "texts" in told:
            raise RheoscopeError(
                f"number {at} is no agreement on one text; type [rs.agreement(model.view, model.trace(text)) for text in texts]"
            )
        for name in SAME:
            if told[name] != found[0].attrs[name]:
                raise RheoscopeError(
                    f"texts are joined for one model and one setting: {name} is {told[name]} for number {at} and "
                    f"{found[0].attrs[name]} for number 0; type the same {name} for all"
                )

"""Any analysis of a text over several texts: means with bootstrap intervals, one null, and whether other texts would say the same."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import SUBJECTS, Analysis, declared
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.statistics.nulls import q_values, student, two_sided, z_scores

if TYPE_CHECKING:
    import xarray

OF_HEAD = ("layer", "head")
TESTED = ("z", "p_value", "q_value")
"""How far one text lies from its null: no mean over texts is that of the mean, so they are computed anew."""
DRAWN = "_drawn"
"""Ends the names of what random heads gave, draw by draw: the same ones in every text, so that their mean is a draw of the mean."""
OF_ONE_TEXT = ("text", "massive")
"""What a Dataset of several texts does not carry, even where all say the same."""


def over_texts(
    analysis: "Callable[..., xarray.Dataset]",
    traces: Sequence[Trace],
    resamples: int = 2000,
    splits: int = 200,
    seed: int = 0,
    **settings: Any,
) -> "xarray.Dataset":
    """Any analysis of one text, asked of several: how sure it is of each number, and whether other texts would say the same.

    **Answers** "is this head (this layer) like that, or was it this text?"

    **Takes** a function of a Trace (`rs.agreement`, `rs.energy`, or your own that calls one with what belongs to each text, such
    as its control) and the Traces of one model. `settings` are the analysis's; `seed` is that of all draws, the analysis's too.
    Texts of one batch, `model.trace([…])`, are asked all at once where the analysis can; attributes that count something in one text
    are then left out.

    **Formula** the mean over texts; its 95 % interval from `resamples` draws of as many texts with replacement (percentiles: with
    few texts a little too narrow). The null is the mean of the texts' nulls; a standard deviation of a mean is at most the
    mean of the standard deviations, which is the one that z uses; where it comes from draws, p is Student's. `split_half`: texts
    in two halves at random, the correlation over heads of the two means, mean over `splits`.

    **Gives** every numeric field whose axes are the same in all texts: the mean under its own name, `…_low`, `…_high`; for one with
    a null and its spread `…_z`, `…_q_value` (of all its entries together); for those of (layer, head) also (measure): `overall`,
    `overall_low`, `overall_high`, `split_half`. What an analysis drew of all heads together (`…_drawn`) is joined draw by draw, for
    `p_values`. `attrs["left_out"]` lists the rest: fields of tokens, words, z, p- and q-values of one text. NaN where a text has
    none. A Dataset of the analysis itself: `rs.plot` draws it.

    **Laws** the order of the texts does not matter to means; a number that is the same on all texts has an interval of width
    0; several times the same text split into halves of correlation 1.

    **Siblings** `prefix_stability` is one text under several beginnings.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> texts = ["The keys to the cabinet are on the table in the hall.", "In winter the river is cold and the birds fly south."]
    >>> found = rs.over_texts(rs.agreement, [model.trace(text) for text in texts], draws=0)
    >>> bool((found.agreement_low <= found.agreement_high).all())
    True
    """
    refuse(analysis, traces, resamples, splits, settings)
    settings = settings | ({"seed": seed} if "seed" in inspect.signature(analysis).parameters else {})
    return together(each_of(analysis, traces, settings), resamples, splits, seed)


def each_of(
    analysis: "Callable[..., xarray.Dataset]", traces: Sequence[Trace], settings: dict[str, Any]
) -> "list[xarray.Dataset]":
    """One Dataset a text: of one batch all at once, where the analysis can and that gives all that is joined, else one by one."""
    first, own = analysis(traces[0], **settings), declared(analysis)
    if type(traces) is Traces and own is not None and own.batch is not None:  # an edited model has a View for each text
        known = set(settings) <= set(inspect.signature(own.batch).parameters)
        if known and all_joined(first, own.batch(traces[:1], **settings)):
            return at_once(own, first, own.batch(traces, **settings), traces.view.facts)
    return [first, *(analysis(trace, **settings) for trace in traces[1:])]


def all_joined(first: "xarray.Dataset", values: dict[str, Tensor]) -> bool:
    """Whether a batch gives every field of a text that can be joined, and none of them is of the text's own tokens."""
    numbers = [name for name in map(str, first.data_vars) if first[name].dtype.kind in "iuf" and not _tested(name)]
    return all(name in values and values[name].shape[1:] == first[name].shape for name in numbers) and not any(
        {"token", "word"} & {*first[name].dims, *first[name].coords} for name in numbers
    )


def at_once(
    own: Analysis, first: "xarray.Dataset", values: dict[str, Tensor], facts: dict[str, Any]
) -> "list[xarray.Dataset]":
    """What a batch gave, text by text, labelled as the first text is; what was counted in that one (attributes) is its own."""
    import xarray as xr

    names = [
        name for name in map(str, first.data_vars) if name in values and values[name].shape[1:] == first[name].shape
    ]
    of_all = {"analysis", *own.settings, *facts}
    attributes = {key: value for key, value in first.attrs.items() if key in of_all or isinstance(value, str)}
    tables = {name: values[name].cpu().numpy() for name in names}
    texts = range(1, len(tables[names[0]]))
    data = ({name: (first[name].dims, tables[name][at], first[name].attrs) for name in names} for at in texts)
    return [first, *(xr.Dataset(fields, first.coords, attributes) for fields in data)]


def together(
    found: "Sequence[xarray.Dataset]", resamples: int = 2000, splits: int = 200, seed: int = 0
) -> "xarray.Dataset":
    """What an analysis gave for each of several texts, as `over_texts` gives it."""
    generator = torch.Generator().manual_seed(seed)
    weights = drawn(len(found), resamples, generator)
    halves = [torch.randperm(len(found), generator=generator) for _ in range(splits)]
    attributes = {"texts": len(found), "bootstrap": f"{resamples} draws of {len(found)} texts", "seed": seed}
    return joined(found, weights, halves).assign_attrs(attributes)


def joined(
    found: "Sequence[xarray.Dataset]", weights: Float[Tensor, "r t"], halves: Sequence[Int[Tensor, " t"]]
) -> "xarray.Dataset":
    """What an analysis gave for each text as one Dataset, from nothing but the Datasets."""
    import xarray as xr

    first = found[0]
    names = [str(name) for name in first.data_vars if _joins(str(name), found)]
    null_of = {name: [first[name].attrs.get(of, "") for of in ("null", "null_sd")] for name in names}
    spreads, chance = {spread for _, spread in null_of.values()}, {one for pair in null_of.values() for one in pair}
    tables = {name: torch.stack([torch.as_tensor(one[name].values) for one in found]).double() for name in names}
    means = {name: _mean(first[name], table.mean(0), bound=name in spreads) for name, table in tables.items()}
    own = {name: table for name, table in tables.items() if name not in chance and not name.endswith(DRAWN)}
    of_heads = {name: table for name, table in own.items() if first[name].dims == OF_HEAD}
    values: dict[str, Any] = dict(means)
    for name, table in own.items():
        values |= _ends(first[name], interval(weights, table))
    for name, pair in null_of.items():
        values |= (
            _beside_null(name, means, (pair[0], pair[1]), first.attrs.get("draws", 0))
            if set(pair) <= set(names)
            else {}
        )
    measures = {"measure": list(of_heads)} if of_heads else {}
    values |= _overall(of_heads, weights, halves) if of_heads else {}
    return xr.Dataset(values, dict(first[names].coords) | measures, _attributes(found, names))


def _attributes(found: "Sequence[xarray.Dataset]", names: list[str]) -> dict[str, Any]:
    """Settings and provenance that all texts share, and which fields are not joined."""
    first = found[0].attrs
    shared = {key: value for key, value in first.items() if all(_same(one.attrs.get(key), value) for one in found)}
    left_out = [str(name) for name in found[0].data_vars if name not in names]
    return {key: value for key, value in shared.items() if key not in OF_ONE_TEXT} | {"left_out": left_out}


def _joins(name: str, found: "Sequence[xarray.Dataset]") -> bool:
    """Is this field a number on the same axes in all texts?"""
    if _tested(name):
        return False
    first = found[0][name]
    same = (
        name in one
        and one[name].dims == first.dims
        and one[name].shape == first.shape
        and one[name].coords.to_dataset().equals(first.coords.to_dataset())
        for one in found
    )
    return first.dtype.kind in "iuf" and all(same)


def _tested(name: str) -> bool:
    return name in TESTED or name.endswith(tuple(f"_{one}" for one in TESTED))


def _mean(field: "xarray.DataArray", x: Tensor, bound: bool) -> "xarray.Variable":
    """The mean of a field, with all that the field carries."""
    import xarray as xr

    what = "mean over texts, a bound from above on that of the mean" if bound else "mean over texts"
    definition = f"{what}: {field.attrs.get('definition', field.name)}"
    return xr.Variable(field.dims, x.numpy(), field.attrs | {"definition": definition})


def _ends(field: "xarray.DataArray", ends: Float[Tensor, "2 *m"]) -> dict[str, Any]:
    """Both ends of the interval of a field's mean."""
    unit = {"unit": field.attrs["unit"]} if "unit" in field.attrs else {}
    texts = (f"{which} end of the 95 % bootstrap interval of {field.name} over texts" for which in ("lower", "upper"))
    return {
        f"{field.name}_{end}": (field.dims, x.numpy(), {"definition": text} | unit)
        for end, text, x in zip(("low", "high"), texts, ends, strict=True)
    }


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


# What chance gives, and what heads have in common


def _beside_null(name: str, means: "dict[str, xarray.Variable]", pair: tuple[str, str], draws: int) -> dict[str, Any]:
    """z and q-value of the mean of a field; a spread that was seen in some draws gives a t, a known one (`draws` 0) a normal z."""
    own, (null, spread) = means[name], pair
    mean, sd = (means[one].set_dims(own.sizes).transpose(*own.dims) for one in pair)  # may have fewer axes
    z = z_scores(*(torch.tensor(x.values) for x in (own, mean, sd)))
    p = student(z / math.sqrt(1 + 1 / draws), draws - 1) if draws else two_sided(z)
    law = f"Student's t of {draws} draws" if draws else "z normal"
    distance = f"({name} − {null}) / {spread}, never larger than with the spread of the mean itself"
    finds = f"share of false finds among all {name} at least as far from their null (Benjamini and Hochberg, two-sided, {law})"
    return {
        f"{name}_z": (own.dims, z.numpy(), {"definition": distance}),
        f"{name}_q_value": (own.dims, q_values(p).numpy(), {"definition": finds}),
    }


def _overall(
    tables: dict[str, Float[Tensor, "t layer h"]], weights: Float[Tensor, "r t"], halves: Sequence[Int[Tensor, " t"]]
) -> dict[str, Any]:
    """Means over all heads with their intervals, and how alike two halves of the texts tell heads apart."""
    of_texts = torch.stack([table.flatten(1).nanmean(-1) for table in tables.values()], -1)
    low, high = interval(weights, of_texts)
    alike = torch.stack([split_half(table, halves) for table in tables.values()])
    fields = {
        "overall": (of_texts.mean(0), "mean over all heads and texts"),
        "overall_low": (low, "lower end of its 95 % bootstrap interval over texts"),
        "overall_high": (high, "upper end of its 95 % bootstrap interval over texts"),
        "split_half": (
            alike,
            "correlation over heads of the mean over one half of the texts with that over the other, mean over splits",
        ),
    }
    return {name: (("measure",), x.numpy(), {"definition": definition}) for name, (x, definition) in fields.items()}


def drawn(texts: int, resamples: int, generator: torch.Generator) -> Float[Tensor, "r t"]:
    """How much each text counts in each draw of as many texts with replacement; rows sum to 1."""
    chosen = torch.randint(texts, (resamples, texts), generator=generator)
    return torch.nn.functional.one_hot(chosen, texts).double().mean(1)


def interval(weights: Float[Tensor, "r t"], x: Float[Tensor, "t *m"]) -> Float[Tensor, "2 *m"]:
    """Both ends of the 95 % interval of the mean over texts, some entries at a time: a quantile takes 2²⁴ numbers at most."""
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    columns = [(weights @ part).quantile(ends, dim=0) for part in x.reshape(len(x), -1).split(1024, -1)]
    return torch.cat(columns, -1).reshape(2, *x.shape[1:])


def split_half(table: Float[Tensor, "t layer h"], halves: Sequence[Int[Tensor, " t"]]) -> Float[Tensor, ""]:
    """Pearson correlation over heads of the means over two halves of the texts; NaN where heads do not differ."""
    heads = table.flatten(1)
    heads = heads[:, heads.isfinite().all(0)]
    half = len(table) // 2
    first = heads.new_zeros(len(halves), len(table)).scatter_(1, torch.stack(list(halves))[:, :half], 1)  # who is in it
    means = first @ heads / half, (1 - first) @ heads / (len(table) - half)
    one, other = (x - x.mean(-1, keepdim=True) for x in means)
    return ((one * other).sum(-1) / (one.norm(dim=-1) * other.norm(dim=-1))).mean()


# What is refused


def refuse(analysis: Any, traces: Any, resamples: int, splits: int, settings: dict[str, Any]) -> None:
    """Raises unless the analysis is a function of a Trace with these settings, and the Traces are of one model."""
    parameters = dict(inspect.signature(analysis).parameters) if callable(analysis) else {}
    about = [name for name in parameters if name in SUBJECTS]
    if about != ["trace"]:
        name, came = getattr(analysis, "__name__", repr(analysis)), ", ".join(about) or "none"
        raise RheoscopeError(
            f"over_texts asks a function of one trace, and {name} is about: {came}; type rs.over_texts(rs.agreement, traces)"
        )
    unknown = [name for name in settings if name not in parameters]
    if unknown:
        known = ", ".join(name for name in parameters if name != "trace")
        raise RheoscopeError(f"{analysis.__name__} has no setting {unknown[0]!r}; type one of {known}")
    many = isinstance(traces, Sequence) and all(isinstance(one, Trace) for one in traces)
    if not many or len(traces) < 2 or resamples < 1 or splits < 1:
        came = f"{len(traces)} texts" if many else type(traces).__name__
        raise RheoscopeError(
            f"several texts are a list of 2 Traces or more, resamples and splits 1 or more, got {came}, resamples={resamples}, "
            f"splits={splits}; type rs.over_texts(rs.agreement, [model.trace(text) for text in texts])"
        )
    weights = [one.view.facts.get("weights") for one in traces]
    if len(set(weights)) > 1:
        at = next(at for at, one in enumerate(weights) if one != weights[0])
        raise RheoscopeError(
            f"texts are joined for one model: number {at} was made by weights {weights[at]}, number 0 by {weights[0]}; "
            "type Traces of the same model"
        )

"""rs.over_texts: any analysis over several texts, with means, confidence intervals and one null."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message, plural
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import SUBJECTS, Analysis, analysis_of
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.statistics.intervals import Interval, bootstrap_t_interval, describe_intervals
from rheoscope.statistics.nulls import normal_two_sided_p, q_values, student_two_sided_p, z_scores

if TYPE_CHECKING:
    import xarray

HEAD_DIMS = ("layer", "head")
TEST_FIELDS = ("z", "p_value", "q_value")
"""Tests of one text against its null. Their mean is not the test of the mean, so they are recomputed."""
NULL_DRAWS_SUFFIX = "_null_draws"
"""The suffix of fields with null draws. All texts have the same random heads, so the mean of draws is a draw of the mean."""
SINGLE_TEXT_ATTRIBUTES = ("text", "massive")
"""Attributes that a result over several texts does not carry, even if all texts agree."""


def over_texts(
    analysis: "Callable[..., xarray.Dataset]",
    traces: Sequence[Trace],
    splits: int = 200,
    seed: int = 0,
    **settings: Any,
) -> "xarray.Dataset":
    """Run an analysis of one text on several texts: means, confidence intervals and one null.

    **Question** Does this hold for the head or the layer, or only for this text?

    **Settings**
    `analysis` is a function of a Trace: `rs.agreement`, `rs.energy`, or your own function that calls one with what belongs to
    each text, such as its control.
    `traces` are Traces of one model. Texts of one batch, `model.trace([…])`, are analysed at once if the analysis supports it;
    attributes that count something in one text are then left out.
    `settings` are those of the analysis; `seed` is also the analysis's seed.

    **Formula** The mean over texts, with its 95 % interval by the bootstrap-t over texts. Fewer than four texts have no interval
    (NaN), and `attrs["intervals"]` says so. The null is the mean of the texts' nulls. The standard deviation of a mean is at
    most the mean of the standard deviations, and z uses the latter. If it comes from draws, p is Student's. `split_half`: the
    texts are split in two random halves, and the two means are correlated over heads; the mean over `splits`.

    **Returns** every numeric field whose axes are the same in all texts: the mean under its own name, `…_low`, `…_high`. A
    field with a null mean and sd also has `…_z` and `…_q_value` (over all its entries). Fields of (layer, head) also have, per
    measure, `overall`, `overall_low`, `overall_high` and `split_half`. Null draws of all heads (`…_null_draws`) are averaged draw by
    draw, for `p_values`. `attrs["left_out"]` lists the other fields: fields of tokens, categories, and z, p- and q-values of
    one text. NaN if a text has none. The result belongs to the same analysis, so `rs.plot` draws it.

    **Laws** Means do not depend on the order of the texts. A number that is equal in all texts has an interval of width 0.
    Copies of one text have split-half correlation 1.

    **See also** `prefix_stability` analyses one text after several prefixes.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> texts = ["The keys to the cabinet are on the table in the hall.", "In winter the river is cold and the birds fly south."]
    >>> result = rs.over_texts(rs.agreement, [model.trace(text) for text in texts], draws=0)
    >>> result.attrs["intervals"]
    'no interval: 2 texts, at least 4 are needed'
    """
    check_arguments(analysis, traces, splits, settings)
    settings = settings | ({"seed": seed} if "seed" in inspect.signature(analysis).parameters else {})
    return summarise_texts(results_per_text(analysis, traces, settings), splits, seed)


def results_per_text(
    analysis: "Callable[..., xarray.Dataset]", traces: Sequence[Trace], settings: dict[str, Any]
) -> "list[xarray.Dataset]":
    """One result per text: all at once if the analysis has a batch kernel that returns every joined field, else one by one."""
    first, declaration = analysis(traces[0], **settings), analysis_of(analysis)
    # an edited model has a View for each text
    if type(traces) is Traces and declaration is not None and declaration.batch is not None:
        settings_supported = set(settings) <= set(inspect.signature(declaration.batch).parameters)
        if settings_supported and batch_is_complete(first, declaration.batch(traces[:1], **settings)):
            return split_batch(declaration, first, declaration.batch(traces, **settings), traces.view.facts)
    return [first, *(analysis(trace, **settings) for trace in traces[1:])]


def batch_is_complete(first_result: "xarray.Dataset", values: dict[str, Tensor]) -> bool:
    """Whether a batch kernel returns every field that can be joined, and none of them belongs to the tokens of a text."""
    numeric_fields = [
        name
        for name in map(str, first_result.data_vars)
        if first_result[name].dtype.kind in "iuf" and not _is_test_field(name)
    ]
    return all(
        name in values and values[name].shape[1:] == first_result[name].shape for name in numeric_fields
    ) and not any(
        {"token", "token_text"} & {*first_result[name].dims, *first_result[name].coords} for name in numeric_fields
    )


def split_batch(
    declaration: Analysis, first: "xarray.Dataset", values: dict[str, Tensor], facts: dict[str, Any]
) -> "list[xarray.Dataset]":
    """The results of a batch, text by text, with the labels of the first text; only that one keeps its count attributes."""
    import xarray as xr

    names = [
        name for name in map(str, first.data_vars) if name in values and values[name].shape[1:] == first[name].shape
    ]
    shared_keys = {"analysis", *declaration.settings, *facts}
    attributes = {key: value for key, value in first.attrs.items() if key in shared_keys or isinstance(value, str)}
    tables = {name: values[name].cpu().numpy() for name in names}
    text_indices = range(1, len(tables[names[0]]))
    data = (
        {name: (first[name].dims, tables[name][text_index], first[name].attrs) for name in names}
        for text_index in text_indices
    )
    return [first, *(xr.Dataset(fields, first.coords, attributes) for fields in data)]


def summarise_texts(results: "Sequence[xarray.Dataset]", splits: int = 200, seed: int = 0) -> "xarray.Dataset":
    """The results of several texts joined as `over_texts` returns them."""
    generator = torch.Generator().manual_seed(seed)
    halves = [torch.randperm(len(results), generator=generator) for _ in range(splits)]
    intervals = describe_intervals(Message("texts"), len(results))
    attributes = {"texts": len(results), "intervals": intervals, "seed": seed}
    return join_results(results, halves, seed).assign_attrs(attributes)


def join_results(
    results: "Sequence[xarray.Dataset]", halves: Sequence[Int[Tensor, " t"]], seed: int
) -> "xarray.Dataset":
    """The results of all texts as one Dataset."""
    import xarray as xr

    first = results[0]
    names = [str(name) for name in first.data_vars if _is_joinable(str(name), results)]
    null_of = {name: [first[name].attrs.get(null_kind, "") for null_kind in ("null", "null_sd")] for name in names}
    null_sd_fields, null_fields = (
        {null_sd_field for _, null_sd_field in null_of.values()},
        {null_field for null_pair in null_of.values() for null_field in null_pair},
    )
    tables = {
        name: torch.stack([torch.as_tensor(result[name].values) for result in results]).double() for name in names
    }
    means = {
        name: _mean(first[name], table.mean(0), is_upper_bound=name in null_sd_fields) for name, table in tables.items()
    }
    measured = {
        name: table
        for name, table in tables.items()
        if name not in null_fields and not name.endswith(NULL_DRAWS_SUFFIX)
    }
    head_tables = {name: table for name, table in measured.items() if first[name].dims == HEAD_DIMS}
    values: dict[str, Any] = dict(means)
    for name, table in measured.items():
        values |= _interval_fields(first[name], bootstrap_t_interval(table.movedim(0, -1), seed=seed))
    for name, null_pair in null_of.items():
        values |= (
            _z_and_q_value(name, means, (null_pair[0], null_pair[1]), first.attrs.get("draws", 0))
            if set(null_pair) <= set(names)
            else {}
        )
    measures = {"measure": list(head_tables)} if head_tables else {}
    values |= _overall(head_tables, halves, seed) if head_tables else {}
    return xr.Dataset(values, dict(first[names].coords) | measures, _attributes(results, names))


def _attributes(results: "Sequence[xarray.Dataset]", names: list[str]) -> dict[str, Any]:
    """Settings and provenance that all texts have in common, and the names of the fields that are not joined."""
    first = results[0].attrs
    shared = {
        key: value for key, value in first.items() if all(_equal(result.attrs.get(key), value) for result in results)
    }
    skipped = [str(name) for name in results[0].data_vars if name not in names]
    return {key: value for key, value in shared.items() if key not in SINGLE_TEXT_ATTRIBUTES} | {"left_out": skipped}


def _is_joinable(name: str, results: "Sequence[xarray.Dataset]") -> bool:
    """Whether a field is numeric and has the same axes in all texts."""
    if _is_test_field(name):
        return False
    first, *others = (result.get(name) for result in results)
    assert first is not None
    coords = first.coords.to_dataset()
    same_axes = (
        field is not None
        and field.dims == first.dims
        and field.shape == first.shape
        and field.coords.to_dataset().equals(coords)
        for field in others
    )
    return first.dtype.kind in "iuf" and all(same_axes)


def _is_test_field(name: str) -> bool:
    return name in TEST_FIELDS or name.endswith(tuple(f"_{suffix}" for suffix in TEST_FIELDS))


def _mean(field: "xarray.DataArray", x: Tensor, is_upper_bound: bool) -> "xarray.Variable":
    """The mean of a field, with the field's attributes."""
    import xarray as xr

    own_definition = field.attrs.get("definition", str(field.name))
    definition = (
        Message("mean over texts, an upper bound on that of the mean: {definition}", definition=own_definition)
        if is_upper_bound
        else Message("mean over texts: {definition}", definition=own_definition)
    )
    return xr.Variable(field.dims, x.numpy(), field.attrs | {"definition": definition})


def _interval_fields(field: "xarray.DataArray", ends: Interval) -> dict[str, Any]:
    """Both ends of the interval of a field's mean."""
    unit = {"unit": field.attrs["unit"]} if "unit" in field.attrs else {}
    low = Message("lower end of the 95 % interval of {field} over texts", field=str(field.name))
    high = Message("upper end of the 95 % interval of {field} over texts", field=str(field.name))
    return {
        f"{field.name}_{end}": (field.dims, x.numpy(), {"definition": definition} | unit)
        for end, definition, x in zip(("low", "high"), (low, high), ends, strict=True)
    }


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


# Tests of the mean, and summaries over heads


def _z_and_q_value(
    name: str, means: "dict[str, xarray.Variable]", null_pair: tuple[str, str], draws: int
) -> dict[str, Any]:
    """z and q-value of a field's mean. It is Student's t if the sd comes from draws, and normal if the sd is exact (`draws` = 0)."""
    observed, (null, null_sd) = means[name], null_pair
    mean, sd = (
        means[field_name].set_dims(observed.sizes).transpose(*observed.dims) for field_name in null_pair
    )  # may have fewer axes
    z = z_scores(*(torch.tensor(x.values) for x in (observed, mean, sd)))
    p = student_two_sided_p(z / math.sqrt(1 + 1 / draws), draws - 1) if draws else normal_two_sided_p(z)
    null_law = Message("Student's t of {draws:,} draws", draws=draws) if draws else Message("normal z")
    z_definition = Message(
        "({field} − {null}) / {null_sd}, a lower bound on |z| with the sd of the mean itself",
        field=name,
        null=null,
        null_sd=null_sd,
    )
    q_definition = Message(
        "false discovery rate among all {field} at least as far from their null (Benjamini and Hochberg, two-sided, {law})",
        field=name,
        law=null_law,
    )
    return {
        f"{name}_z": (observed.dims, z.numpy(), {"definition": z_definition}),
        f"{name}_q_value": (observed.dims, q_values(p).numpy(), {"definition": q_definition}),
    }


def _overall(
    tables: dict[str, Float[Tensor, "t layer h"]], halves: Sequence[Int[Tensor, " t"]], seed: int
) -> dict[str, Any]:
    """Means over all heads with their intervals, and the split-half correlation over heads."""
    text_means = torch.stack([table.flatten(1).nanmean(-1) for table in tables.values()], -1)
    low, high = bootstrap_t_interval(text_means.mT, seed=seed)
    correlations = torch.stack([split_half(table, halves) for table in tables.values()])
    fields = {
        "overall": (text_means.mean(0), Message("mean over all heads and texts")),
        "overall_low": (low, Message("lower end of its 95 % interval over texts")),
        "overall_high": (high, Message("upper end of its 95 % interval over texts")),
        "split_half": (
            correlations,
            Message("correlation over heads between the means over two halves of the texts, mean over splits"),
        ),
    }
    return {name: (("measure",), x.numpy(), {"definition": definition}) for name, (x, definition) in fields.items()}


def split_half(table: Float[Tensor, "t layer h"], halves: Sequence[Int[Tensor, " t"]]) -> Float[Tensor, ""]:
    """Pearson correlation over heads between the means over two halves of the texts; NaN if the heads do not differ."""
    head_values = table.flatten(1)
    head_values = head_values[:, head_values.isfinite().all(0)]
    half_size = len(table) // 2
    in_first_half = head_values.new_zeros(len(halves), len(table)).scatter_(
        1, torch.stack(list(halves))[:, :half_size], 1
    )
    means = in_first_half @ head_values / half_size, (1 - in_first_half) @ head_values / (len(table) - half_size)
    first_centred, second_centred = (x - x.mean(-1, keepdim=True) for x in means)
    return (
        (first_centred * second_centred).sum(-1) / (first_centred.norm(dim=-1) * second_centred.norm(dim=-1))
    ).mean()


# Checks


def check_arguments(analysis: Any, traces: Any, splits: int, settings: dict[str, Any]) -> None:
    """Raise unless the analysis is a function of a Trace with these settings, and the Traces belong to one model."""
    parameters = dict(inspect.signature(analysis).parameters) if callable(analysis) else {}
    subjects = [name for name in parameters if name in SUBJECTS]
    if subjects != ["trace"]:
        name, received = getattr(analysis, "__name__", repr(analysis)), ", ".join(subjects) or "none"
        raise RheoscopeError(
            Message(
                "over_texts needs a function of one trace, but {name} takes {received}", name=name, received=received
            ),
            Advice("rs.over_texts(rs.agreement, traces)"),
        )
    unknown = [name for name in settings if name not in parameters]
    if unknown:
        setting_names = ", ".join(name for name in parameters if name != "trace")
        raise RheoscopeError(
            Message(
                "{name} has no setting {received!r}; expected one of {names}",
                name=analysis.__name__,
                received=unknown[0],
                names=setting_names,
            )
        )
    are_traces = isinstance(traces, Sequence) and all(isinstance(trace, Trace) for trace in traces)
    if not are_traces or len(traces) < 2:
        received = plural("{n} text", "{n} texts", n=len(traces)) if are_traces else type(traces).__name__
        raise RheoscopeError(
            Message("over_texts needs a list of at least 2 Traces, got {received}", received=received),
            Advice("rs.over_texts(rs.agreement, [model.trace(text) for text in texts])"),
        )
    if splits < 1:
        raise RheoscopeError(
            Message("{name} must be at least 1, got {received}", name="splits", received=splits), use(splits=200)
        )
    weights_hashes = [trace.view.facts.get("weights") for trace in traces]
    if len(set(weights_hashes)) > 1:
        index = next(index for index, weights_hash in enumerate(weights_hashes) if weights_hash != weights_hashes[0])
        raise RheoscopeError(
            Message(
                "all Traces must come from one model, but number {index} has weights {received} and number 0 has {expected}",
                index=index,
                received=str(weights_hashes[index]),
                expected=str(weights_hashes[0]),
            )
        )

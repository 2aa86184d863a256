"""Curves over the layers of a model and numbers of its heads, as means over many texts. The atlas stores them."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.catalogue import analysis_by_name, analysis_names
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis
from rheoscope.space.step import Step
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import pandas
    import xarray

TEXT, TOKEN, LAYER, HEAD = "text", "token", "layer", "head"
CURVE_COLUMNS = ("field", "place", "depth", "mean", "sd", "n", "untrained")


def layer_tables(
    batches: Sequence[Traces], control: Sequence[Traces], on_progress: Callable[[int, int], None] | None = None
) -> "tuple[pandas.DataFrame, pandas.DataFrame]":
    """The curves and the heads of a model over its texts, and the curves of an untrained model over the same texts.

    Curves have a row per field and place. `place` is a step or a layer, or empty for a number of the whole text. `depth` is 0 at the
    embedding and 1 after the last layer. `mean` and `sd` are over the `n` texts that have a value. Heads have a row per head and a
    column per field. Fields that the model does not have are left out.
    """
    import pandas as pd

    view, steps = batches[0].view, batches[0].steps
    rows: list[dict[str, Any]] = []
    columns: dict[str, Any] = {}
    declarations = [declaration for name in analysis_names() if (declaration := analysis_by_name(name)).atlas]
    for n_done, declaration in enumerate(declarations, 1):
        untrained = fields_over_texts(declaration, control)
        for name, x in fields_over_texts(declaration, batches).items():
            title = f"{declaration.name}.{name}"
            if HEAD in x.dims:
                columns[title] = x.mean(TEXT).transpose(LAYER, HEAD).values.ravel()
            else:
                rows += curve_rows(title, x, untrained.get(name), steps)
        if on_progress is not None:
            on_progress(n_done, len(declarations))
    index = pd.MultiIndex.from_product([range(view.layers), range(view.heads)], names=[LAYER, HEAD])
    return pd.DataFrame(rows, columns=list(CURVE_COLUMNS)), pd.DataFrame(columns, index).reset_index()


def curve_rows(
    name: str, x: "xarray.DataArray", untrained: "xarray.DataArray | None", steps: Sequence[Step]
) -> Iterator[dict[str, Any]]:
    """The rows of one curve, or the single row of a number of the whole text."""
    mean, sd, counts = x.mean(TEXT), x.std(TEXT, ddof=1), x.count(TEXT)
    control = mean * float("nan") if untrained is None else untrained.mean(TEXT)
    places = [str(label) for label in x[x.dims[1]].values] if x.ndim > 1 else [""]
    for place, *numbers in zip(places, *(y.values.ravel() for y in (mean, sd, counts, control)), strict=True):
        depth = relative_depth(place, x.dims[-1] == LAYER, steps)
        yield dict(zip(CURVE_COLUMNS, (name, place, depth, *map(float, numbers)), strict=True))


def relative_depth(place: str, is_layer: bool, steps: Sequence[Step]) -> float:
    """The depth of a step, or of the middle of a layer, between 0 at the embedding and 1 at the end. NaN for the whole text.

    >>> steps = [Step(None, "embed"), Step(0, "resid_post"), Step(1, "resid_post")]
    >>> relative_depth("L0.resid_post", False, steps), relative_depth("1", True, steps)
    (0.5, 0.75)
    """
    if not place:
        return float("nan")
    if is_layer:
        return (int(place) + 0.5) / (max(step.layer or 0 for step in steps) + 1)
    return list(map(str, steps)).index(place) / (len(steps) - 1)


def fields_over_texts(declaration: Analysis, batches: Sequence[Traces]) -> "dict[str, xarray.DataArray]":
    """The fields of an analysis that the atlas stores: (text, …) with the labels of their axes, means over tokens.

    Weights have one value, on an axis `text` of length 1. Empty if the model or its texts cannot have the analysis.
    """
    import xarray as xr

    try:
        if declaration.needs == "view":
            results = [declaration.ask(batches[0].view, **declaration.atlas_settings)]
            return {name: results[0][name].expand_dims(TEXT) for name in declaration.atlas if name in results[0]}
        first = declaration.ask(batches[0][0], **declaration.atlas_settings)
        names = [name for name in declaration.atlas if name in first]
        values = [batch_fields(declaration, names, traces) for traces in batches]
    except RheoscopeError:
        return {}
    fields = {}
    for name in names:
        joined = xr.concat([batch[name] for batch in values], TEXT)
        fields[name] = joined.assign_coords({dim: first.coords[dim] for dim in joined.dims if dim in first.coords})
    return fields


def batch_fields(declaration: Analysis, names: Sequence[str], traces: Traces) -> "dict[str, xarray.DataArray]":
    """These fields for a batch of texts: all texts at once where the analysis has a batch kernel for every field."""
    import xarray as xr

    settings, batch = declaration.atlas_settings, declaration.batch
    has_settings = batch is not None and set(settings) <= set(inspect.signature(batch).parameters)
    values = batch(traces, **settings) if batch is not None and has_settings else {}
    if set(names) <= set(values):
        arrays = {
            name: xr.DataArray(
                values[name].detach().cpu().double().numpy(), dims=(TEXT, *declaration.fields[name].dims)
            )
            for name in names
        }
        return {name: mean_over_tokens(x) for name, x in arrays.items()}
    results = [declaration.ask(trace, **settings) for trace in traces]
    per_text = {name: [mean_over_tokens(result[name]) for result in results] for name in names}
    return {
        name: xr.DataArray(np.stack([x.values for x in fields]), dims=(TEXT, *fields[0].dims))
        for name, fields in per_text.items()
    }


def mean_over_tokens(x: "xarray.DataArray") -> "xarray.DataArray":
    """The mean over the axis `token` of a field that has one."""
    return x.mean(TOKEN) if TOKEN in x.dims else x

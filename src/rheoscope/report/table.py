"""A Dataset as tidy tables: a row a place, a column a field, one table for each set of dimensions; and as CSV."""

from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.files import write_file
from rheoscope.report.tell.short import plural
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import pandas
    import xarray

SCALAR = "scalar"
"""The name of the table of what has no dimension."""


def table(dataset: "xarray.Dataset") -> "dict[str, pandas.DataFrame]":
    """What an analysis found as pandas tables, one for each set of dimensions: `rs.table(rs.energy(trace))["layer_head"]`.

    **Gives** a dictionary from dimensions ("layer_head", "step_token", "scalar") to a DataFrame: its index has a level for each
    dimension, its columns are the fields, after words that belong to the places (the texts of tokens). `attrs["definitions"]`
    and `attrs["units"]` of a table say what its columns are.

    **Laws** the tables hold every number once, beside its own place: dimensions that no field has together are not multiplied,
    as one table of everything (`dataset.to_dataframe()`) would.

    **Relation** `plot` draws the same numbers.

    >>> import rheoscope as rs
    >>> path = rs.trajectory(rs.load().trace("The keys to the cabinet are"))
    >>> list(rs.table(path)["layer_head"])
    ['head_speed', 'head_cosine']
    """
    import xarray as xr

    if not isinstance(dataset, xr.Dataset):
        raise RheoscopeError(
            f"tables are made of the Dataset of an analysis, got {type(dataset).__name__}; type rs.table(rs.transport(trace))"
        )
    groups: dict[frozenset[str], list[str]] = {}
    for name, field in dataset.data_vars.items():
        groups.setdefault(frozenset(map(str, field.dims)), []).append(str(name))
    frames = [(tuple(map(str, dataset[names[0]].dims)), names) for names in groups.values()]
    return {"_".join(dims) or SCALAR: _frame(dataset, dims, names) for dims, names in frames}


def csv_text(frame: "pandas.DataFrame") -> str:
    """A table as CSV, its places in the first columns; nothing stands where there is no number.

    >>> import pandas as pd
    >>> csv_text(pd.DataFrame({"kappa": [0.5, None]}, pd.Index(["L0", "L1"], name="step")))
    'step,kappa\\nL0,0.5\\nL1,\\n'
    """
    return frame.to_csv(index=frame.index.names != [None], lineterminator="\n")


def save_csv(datasets: "dict[str, xarray.Dataset]", directory: Path) -> str:
    """Every table of every analysis as `NAME.DIMENSIONS.csv` (`trajectory.step_token.csv`); says how many, and how many were there."""
    if directory.exists() and not directory.is_dir():
        raise RheoscopeError(
            f"{directory} is a file, expected a directory, in which every table has its file; type {directory.with_suffix('')}-tables"
        )
    frames = {f"{name}.{dims}": frame for name, one in datasets.items() for dims, frame in table(one).items()}
    said = [_saved(frame, directory / f"{name}.csv") for name, frame in frames.items()]
    replaced = sum(line.startswith("replaced") for line in said)
    return f"wrote {plural(len(said), 'table')} in {directory}" + f" (replaced {replaced})" * bool(replaced)


def _saved(frame: "pandas.DataFrame", path: Path) -> str:
    return write_file(path, lambda temporary: temporary.write_text(csv_text(frame), encoding="utf-8", newline=""))


def _frame(dataset: "xarray.Dataset", dims: tuple[str, ...], names: list[str]) -> "pandas.DataFrame":
    """Fields of the same dimensions side by side."""
    import pandas as pd

    sizes = {dim: dataset.sizes[dim] for dim in dims}
    words = [
        str(name) for name, one in dataset.coords.items() if name not in dims and one.dims and set(one.dims) <= {*dims}
    ]
    columns = {
        name: dataset[name].variable.set_dims(sizes).transpose(*dims).values.ravel() for name in (*words, *names)
    }
    frame = pd.DataFrame(columns, _index(dataset, dims))
    told = {key: {name: dataset[name].attrs.get(key, "") for name in names} for key in ("definition", "unit")}
    frame.attrs = {f"{key}s": {name: text for name, text in of.items() if text} for key, of in told.items()}
    return frame


def _index(dataset: "xarray.Dataset", dims: tuple[str, ...]) -> "pandas.Index":
    """A level for each dimension, in its own order (layer 10 after layer 9); places without a name are counted from 0."""
    import numpy as np
    import pandas as pd

    if not dims:
        return pd.RangeIndex(1)
    places = [pd.Index(dataset[dim].values, name=dim) for dim in dims]
    if len(places) == 1:
        return places[0]
    levels = [place.unique() for place in places]
    codes = [level.get_indexer(place) for level, place in zip(levels, places, strict=True)]
    return pd.MultiIndex(levels, [grid.ravel() for grid in np.meshgrid(*codes, indexing="ij")], names=dims)

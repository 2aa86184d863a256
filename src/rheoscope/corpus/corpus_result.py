"""rs.open_corpus: a run as xarray, as a DuckDB relation, and as examples with their text."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.catalogue import TABLE, analysis
from rheoscope.corpus.merged_summary import SUMMARY, Every, Kept, merge, read
from rheoscope.corpus.parquet_tables import parquet
from rheoscope.corpus.query import Database, connected
from rheoscope.corpus.shards import Manifest, done, opened
from rheoscope.corpus.summaries import Summary, quantiles
from rheoscope.shapes import RheoscopeError
from rheoscope.statistics.nulls import FEWEST

if TYPE_CHECKING:
    import pandas
    import xarray

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
NORMAL = 1.959964
"""How many standard errors the ends of a 95 % interval lie from the mean."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """A run over a corpus: `corpus["agreement"]` is an xarray Dataset, `corpus.sql("…")` a DuckDB relation.

    `analyses` are those that it holds; `examples` shows the texts in which a head has its largest or smallest numbers.
    """

    folder: Path
    manifest: Manifest

    def __repr__(self) -> str:
        return f"<Corpus {self.folder}: {len(done(self.folder))} shards, {', '.join(self.analyses)}>"

    @cached_property
    def summaries(self) -> Every:
        """What is kept of every field, of all shards that are done."""
        file = self.folder / SUMMARY
        if file.exists() and int(parquet().read_schema(file).metadata[b"shards"]) == len(done(self.folder)):
            return _in_order(read(file))
        return _in_order(merge(self.folder, self.manifest.job.top))

    @property
    def analyses(self) -> list[str]:
        """The analyses that the run holds."""
        return list(self.manifest.job.analyses)

    def __getitem__(self, name: str) -> "xarray.Dataset":
        return dataset(self, name)

    def kept(self, name: str, field: str) -> Kept:
        """The summary of one field; what is not there is refused by name."""
        if (name, field) not in self.summaries:
            held = [one for of, one in self.summaries if of == name]
            raise RheoscopeError(
                f"{self.folder} holds no {field!r} of {name}; it has {', '.join(held) or 'nothing of it'}"
            )
        return self.summaries[name, field]

    @cached_property
    def _database(self) -> Database:
        return connected(self.folder)

    def sql(self, question: str) -> Any:
        """A question in SQL as a DuckDB relation: every analysis is a view, so are texts, rejects and summary."""
        return self._database.ask(question)

    def examples(self, name: str, field: str, least: bool = False, **place: Any) -> "pandas.DataFrame":
        """The texts in which a field is largest (or smallest), with their words: `examples("agreement", "agreement", layer=3, head=1)`.

        A place is told as `corpus[name]` names it.
        """
        one = self.kept(name, field)
        if set(place) != set(one.dims):
            raise RheoscopeError(
                f"{field} has a number for every {', '.join(one.dims) or 'text'}, got {', '.join(place) or 'no place'}"
            )
        at = [self._at(name, dim, size, place[dim]) for dim, size in zip(one.dims, one.shape, strict=True)]
        return self.examples_in(one, int(np.ravel_multi_index(at, one.shape)) if one.dims else 0, least)

    def examples_in(self, one: Kept, cell: int, least: bool = False) -> "pandas.DataFrame":
        """The same of one cell of a field, by its number."""
        import pandas as pd

        every = one.summary.least if least else one.summary.most
        found = pd.DataFrame(every[every["cell"] == cell]).drop(columns="cell")
        return found.merge(self.texts(found["text"].tolist()), on="text", how="left")

    def _at(self, name: str, dim: str, size: int, place: Any) -> int:
        """The number of a place that is told by its name."""
        axis = places(name, dim, size, self.manifest.model)
        if place not in axis:
            some = ", ".join(repr(one) for one in axis[:3])
            raise RheoscopeError(f"{name} has no {dim} {place!r}; it has {some}{', …' if len(axis) > 3 else ''}")
        return axis.index(place)

    def texts(self, ids: list[int]) -> "pandas.DataFrame":
        """Some texts by their ids: where they come from, and their words."""
        listed = ", ".join(map(str, ids)) or "-1"
        return self.sql(f"SELECT * FROM texts WHERE text IN ({listed})").df()


def _in_order(every: Every) -> Every:
    """The same, as the analyses declare their fields."""
    names = [name for name in TABLE if any(of == name for of, _ in every)]
    order = [(name, field) for name in names for field in analysis(name).fields]
    return {key: every[key] for key in order if key in every}


def open_corpus(path: str | Path) -> Corpus:
    """A corpus run as xarray and DuckDB.

    **Answers** "what did the run find?": `corpus["agreement"]` has the mean of every field over all texts with its 95 % interval (`_low`,
    `_high`; pieces of one document count together), the standard deviation (`_sd`) and quantiles of its distribution.

    **Gives** a `Corpus`: `corpus.sql("SELECT …")` asks its rows, `corpus.examples("agreement", "agreement", layer=3, head=1)` shows texts.

    **Laws** however the texts were split among workers, and whatever was killed on the way, these are the same bits.

    **Siblings** `over_texts` does it for a few texts at hand.

    >>> import rheoscope as rs
    >>> rs.open_corpus("no such folder")
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: no such folder holds no corpus run; type rheoscope corpus run --out no such folder …
    """
    folder = Path(path)
    return Corpus(folder, opened(folder))


def dataset(corpus: Corpus, name: str) -> "xarray.Dataset":
    """What a run found of one analysis: means over texts, intervals, spread, quantiles."""
    import xarray as xr

    if name not in corpus.analyses:
        raise RheoscopeError(f"{corpus.folder} holds no {name}; it has {', '.join(corpus.analyses)}")
    data: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for (of, field), one in corpus.summaries.items():
        if of == name:
            data |= _variables(field, one, analysis(name).fields[field].attributes())
            sizes |= dict(zip(one.dims, one.shape, strict=True))
    coords: dict[str, Any] = {dim: places(name, dim, size, corpus.manifest.model) for dim, size in sizes.items()}
    told = corpus.manifest.model | {"analysis": name, "fingerprint": corpus.manifest.fingerprint}
    about = {key: str(value) for key, value in told.items() if key != "places"}
    return xr.Dataset(data, coords | {"quantile": list(SHARES)}, about)


def _variables(field: str, one: Kept, attributes: dict[str, str]) -> dict[str, Any]:
    mean, sd = one.summary.moments()
    half = interval(one.summary)
    found = {"": mean, "_sd": sd, "_low": mean - half, "_high": mean + half, "_texts": one.summary.texts}
    found["_documents"] = one.summary.documents.count
    said = {
        "_sd": "standard deviation over texts of",
        "_low": "lower end of the 95 % interval of the mean over texts of",
    }
    said |= {
        "_high": "upper end of the 95 % interval of the mean over texts of",
        "_texts": "texts that have a number of",
        "_documents": "documents with a text that has a number of",
    }
    variables: dict[str, Any] = {
        field + end: (one.dims, x.reshape(one.shape), attributes if not end else {"definition": f"{said[end]} {field}"})
        for end, x in found.items()
    }
    spread = quantiles(one.summary, SHARES).reshape(*one.shape, len(SHARES))
    return variables | {
        f"{field}_quantiles": ((*one.dims, "quantile"), spread, {"definition": f"quantiles of {field}"})
    }


def interval(kept: Summary) -> np.ndarray:
    """Half of the 95 % interval of every mean over texts, pieces of one document taken together; NaN for too few documents."""
    return np.where(kept.documents.count >= FEWEST, NORMAL * kept.errors(), np.nan)


def places(name: str, dim: str, size: int, model: dict[str, Any]) -> list[Any]:
    """The names of the places along an axis of an analysis, as the analysis itself gives them; numbers where it gives none.

    >>> places("distortion", "image", 3, {"places": {"distortion": {"image": ["query", "key", "content"]}}})
    ['query', 'key', 'content']
    >>> places("distortion", "image", 2, {})  # a run of an earlier version
    [0, 1]
    """
    held = model.get("places", {}).get(name, {}).get(dim, ())
    return list(held) if len(held) == size else list(range(size))

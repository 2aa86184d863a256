"""rs.open_corpus: a run as xarray, as a DuckDB relation, and as examples with their text."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.corpus.merged_summary import SUMMARY, FieldSummaries, FieldSummary, merge_shards, read_summaries
from rheoscope.corpus.parquet_tables import import_parquet
from rheoscope.corpus.query import Database, connect
from rheoscope.corpus.shards import Manifest, finished_shards, read_manifest
from rheoscope.corpus.summaries import Summary, quantiles
from rheoscope.shapes import RheoscopeError
from rheoscope.statistics.nulls import MIN_UNITS

if TYPE_CHECKING:
    import pandas
    import xarray

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
NORMAL_95 = 1.959964
"""How many standard errors the ends of a 95 % interval lie from the mean."""


@dataclass(frozen=True, eq=False)
class CorpusRun:
    """A run over a corpus: `corpus["agreement"]` is an xarray Dataset, `corpus.sql("…")` a DuckDB relation.

    `analyses` are those that it holds; `examples` shows the texts in which a head has its largest or smallest numbers.
    """

    folder: Path
    manifest: Manifest

    def __repr__(self) -> str:
        return f"<Corpus {self.folder}: {len(finished_shards(self.folder))} shards, {', '.join(self.analyses)}>"

    @cached_property
    def summaries(self) -> FieldSummaries:
        """What is kept of every field, of all shards that are done."""
        file = self.folder / SUMMARY
        if file.exists() and int(import_parquet().read_schema(file).metadata[b"shards"]) == len(
            finished_shards(self.folder)
        ):
            return _in_declared_order(read_summaries(file))
        return _in_declared_order(merge_shards(self.folder, self.manifest.job.top))

    @property
    def analyses(self) -> list[str]:
        """The analyses that the run holds."""
        return list(self.manifest.job.analyses)

    def __getitem__(self, name: str) -> "xarray.Dataset":
        return analysis_dataset(self, name)

    def field_summary(self, name: str, field: str) -> FieldSummary:
        """The summary of one field; what is not there is refused by name."""
        if (name, field) not in self.summaries:
            field_names = [field_name for analysis_name, field_name in self.summaries if analysis_name == name]
            raise RheoscopeError(
                f"{self.folder} holds no {field!r} of {name}; it has {', '.join(field_names) or 'nothing of it'}"
            )
        return self.summaries[name, field]

    @cached_property
    def _database(self) -> Database:
        return connect(self.folder)

    def sql(self, query: str) -> Any:
        """A question in SQL as a DuckDB relation: every analysis is a view, so are texts, rejects and summary."""
        return self._database.query(query)

    def examples(self, name: str, field: str, smallest: bool = False, **coordinates: Any) -> "pandas.DataFrame":
        """The texts in which a field is largest (or smallest), with their words: `examples("agreement", "agreement", layer=3, head=1)`.

        A place is told as `corpus[name]` names it.
        """
        field_summary = self.field_summary(name, field)
        if set(coordinates) != set(field_summary.dims):
            raise RheoscopeError(
                f"{field} has a number for every {', '.join(field_summary.dims) or 'text'}, got {', '.join(coordinates) or 'no place'}"
            )
        indices = [
            self._axis_index(name, dim, size, coordinates[dim])
            for dim, size in zip(field_summary.dims, field_summary.shape, strict=True)
        ]
        return self.cell_examples(
            field_summary,
            int(np.ravel_multi_index(indices, field_summary.shape)) if field_summary.dims else 0,
            smallest,
        )

    def cell_examples(self, field_summary: FieldSummary, cell: int, smallest: bool = False) -> "pandas.DataFrame":
        """The same of one cell of a field, by its number."""
        import pandas as pd

        records = field_summary.summary.least if smallest else field_summary.summary.most
        examples = pd.DataFrame(records[records["cell"] == cell]).drop(columns="cell")
        return examples.merge(self.texts(examples["text"].tolist()), on="text", how="left")

    def _axis_index(self, name: str, dim: str, size: int, label: Any) -> int:
        """The number of a place that is told by its name."""
        labels = axis_labels(name, dim, size, self.manifest.model)
        if label not in labels:
            shown = ", ".join(repr(shown_label) for shown_label in labels[:3])
            raise RheoscopeError(f"{name} has no {dim} {label!r}; it has {shown}{', …' if len(labels) > 3 else ''}")
        return labels.index(label)

    def texts(self, ids: list[int]) -> "pandas.DataFrame":
        """Some texts by their ids: where they come from, and their words."""
        id_list = ", ".join(map(str, ids)) or "-1"
        return self.sql(f"SELECT * FROM texts WHERE text IN ({id_list})").df()


def _in_declared_order(summaries: FieldSummaries) -> FieldSummaries:
    """The same, as the analyses declare their fields."""
    names = [name for name in ANALYSIS_MODULES if any(analysis_name == name for analysis_name, _ in summaries)]
    order = [(name, field) for name in names for field in analysis_by_name(name).fields]
    return {key: summaries[key] for key in order if key in summaries}


def open_corpus(path: str | Path) -> CorpusRun:
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
    return CorpusRun(folder, read_manifest(folder))


def analysis_dataset(corpus: CorpusRun, name: str) -> "xarray.Dataset":
    """What a run found of one analysis: means over texts, intervals, spread, quantiles."""
    import xarray as xr

    if name not in corpus.analyses:
        raise RheoscopeError(f"{corpus.folder} holds no {name}; it has {', '.join(corpus.analyses)}")
    data: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for (analysis_name, field), field_summary in corpus.summaries.items():
        if analysis_name == name:
            data |= _variables(field, field_summary, analysis_by_name(name).fields[field].attributes())
            sizes |= dict(zip(field_summary.dims, field_summary.shape, strict=True))
    coords: dict[str, Any] = {dim: axis_labels(name, dim, size, corpus.manifest.model) for dim, size in sizes.items()}
    facts = corpus.manifest.model | {"analysis": name, "fingerprint": corpus.manifest.fingerprint}
    attributes = {key: str(value) for key, value in facts.items() if key != "places"}
    return xr.Dataset(data, coords | {"quantile": list(QUANTILES)}, attributes)


def _variables(field: str, field_summary: FieldSummary, attributes: dict[str, str]) -> dict[str, Any]:
    mean, sd = field_summary.summary.moments()
    half_width = interval_half_width(field_summary.summary)
    columns = {
        "": mean,
        "_sd": sd,
        "_low": mean - half_width,
        "_high": mean + half_width,
        "_texts": field_summary.summary.texts,
    }
    columns["_documents"] = field_summary.summary.documents.count
    definitions = {
        "_sd": "standard deviation over texts of",
        "_low": "lower end of the 95 % interval of the mean over texts of",
    }
    definitions |= {
        "_high": "upper end of the 95 % interval of the mean over texts of",
        "_texts": "texts that have a number of",
        "_documents": "documents with a text that has a number of",
    }
    variables: dict[str, Any] = {
        field + suffix: (
            field_summary.dims,
            x.reshape(field_summary.shape),
            attributes if not suffix else {"definition": f"{definitions[suffix]} {field}"},
        )
        for suffix, x in columns.items()
    }
    quantile_values = quantiles(field_summary.summary, QUANTILES).reshape(*field_summary.shape, len(QUANTILES))
    return variables | {
        f"{field}_quantiles": (
            (*field_summary.dims, "quantile"),
            quantile_values,
            {"definition": f"quantiles of {field}"},
        )
    }


def interval_half_width(summary: Summary) -> np.ndarray:
    """Half of the 95 % interval of every mean over texts, pieces of one document taken together; NaN for too few documents."""
    return np.where(summary.documents.count >= MIN_UNITS, NORMAL_95 * summary.standard_errors(), np.nan)


def axis_labels(name: str, dim: str, size: int, model_facts: dict[str, Any]) -> list[Any]:
    """The names of the places along an axis of an analysis, as the analysis itself gives them; numbers where it gives none.

    >>> axis_labels("distortion", "image", 3, {"places": {"distortion": {"image": ["query", "key", "content"]}}})
    ['query', 'key', 'content']
    >>> axis_labels("distortion", "image", 2, {})  # a run of an earlier version
    [0, 1]
    """
    labels = model_facts.get("places", {}).get(name, {}).get(dim, ())
    return list(labels) if len(labels) == size else list(range(size))

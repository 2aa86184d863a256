"""`rs.open_corpus`: a corpus run as xarray, as DuckDB relations, and as example texts."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.corpus.corpus_intervals import Ends, field_interval
from rheoscope.corpus.manifest import Manifest
from rheoscope.corpus.merged_summary import FieldSummaries, FieldSummary, merge_shards, read_summaries
from rheoscope.corpus.query import Database, connect, table_columns
from rheoscope.corpus.run_files import RunFiles
from rheoscope.corpus.shards import SUMMARIES
from rheoscope.corpus.summaries import quantiles
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import pandas
    import xarray

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, eq=False)
class CorpusRun:
    """A corpus run: `corpus["agreement"]` is an xarray Dataset and `corpus.sql("…")` a DuckDB relation.

    `analyses` lists the analyses of the run. `examples` returns the texts in which a cell has its largest or
    smallest values.
    """

    files: RunFiles

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.files.folder

    @property
    def manifest(self) -> Manifest:
        """The job, the model and the inputs of the run."""
        return self.files.manifest

    def __repr__(self) -> str:
        return f"<Corpus {self.folder}: {len(self.files.records)} shards, {', '.join(self.analyses)}>"

    @cached_property
    def summaries(self) -> FieldSummaries:
        """The summary of every field over all finished shards."""
        merged = self.files.summary()
        if merged is not None:
            return _in_declared_order(read_summaries(merged))
        return _in_declared_order(merge_shards(self.files.table(SUMMARIES), self.manifest.job.top))

    @cached_property
    def _intervals(self) -> dict[tuple[str, str], Ends]:
        return {}

    def interval(self, name: str, field: str) -> Ends:
        """Both ends of the 95 % interval of the mean of every cell of a field."""
        if (name, field) not in self._intervals:
            self._intervals[name, field] = field_interval(
                self.sql, table_columns(self.files), name, field, self.field_summary(name, field)
            )
        return self._intervals[name, field]

    @property
    def analyses(self) -> list[str]:
        """The analyses of the run."""
        return list(self.manifest.job.analyses)

    def __getitem__(self, name: str) -> "xarray.Dataset":
        return analysis_dataset(self, name)

    def field_summary(self, name: str, field: str) -> FieldSummary:
        """The summary of one field. Raises if the run does not have it."""
        if (name, field) not in self.summaries:
            field_names = [field_name for analysis_name, field_name in self.summaries if analysis_name == name]
            raise RheoscopeError(
                Message(
                    "{folder} has no field {field!r} of {analysis}; its fields are {fields}",
                    folder=str(self.folder),
                    field=field,
                    analysis=name,
                    fields=", ".join(field_names) or Message("none"),
                )
            )
        return self.summaries[name, field]

    @cached_property
    def _database(self) -> Database:
        return connect(self.files)

    def sql(self, query: str) -> Any:
        """A SQL query as a DuckDB relation. Every analysis is a view, and so are texts, rejects and summary."""
        return self._database.query(query)

    def examples(self, name: str, field: str, smallest: bool = False, **coordinates: Any) -> "pandas.DataFrame":
        """The texts in which a field is largest (or smallest), such as `examples("agreement", "agreement", layer=3, head=1)`.

        The coordinates are those of `corpus[name]`.
        """
        field_summary = self.field_summary(name, field)
        if set(coordinates) != set(field_summary.dims):
            raise RheoscopeError(
                Message(
                    "{field} has the axes {axes}, got {coordinates}",
                    field=field,
                    axes=", ".join(field_summary.dims) or Message("none"),
                    coordinates=", ".join(coordinates) or Message("none"),
                )
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
        """The examples of one cell of a field, by its number."""
        import pandas as pd

        records = field_summary.summary.least if smallest else field_summary.summary.most
        examples = pd.DataFrame(records[records["cell"] == cell]).drop(columns="cell")
        return examples.merge(self.texts(examples["text"].tolist()), on="text", how="left")

    def _axis_index(self, name: str, dim: str, size: int, label: Any) -> int:
        """The index of a label along an axis."""
        labels = axis_labels(name, dim, size, self.manifest.model)
        if label not in labels:
            shown_labels = [repr(shown_label) for shown_label in labels[:3]] + ["…"] * (len(labels) > 3)
            raise RheoscopeError(
                Message(
                    "{analysis} has no {axis} {label!r}; it has {labels}",
                    analysis=name,
                    axis=dim,
                    label=label,
                    labels=", ".join(shown_labels),
                )
            )
        return labels.index(label)

    def texts(self, ids: list[int]) -> "pandas.DataFrame":
        """Texts by their ids, with their origin."""
        id_list = ", ".join(map(str, ids)) or "-1"
        return self.sql(f"SELECT * FROM texts WHERE text IN ({id_list})").df()


def _in_declared_order(summaries: FieldSummaries) -> FieldSummaries:
    """The summaries in the order in which the analyses declare their fields."""
    names = [name for name in ANALYSIS_MODULES if any(analysis_name == name for analysis_name, _ in summaries)]
    order = [(name, field) for name in names for field in analysis_by_name(name).fields]
    return {key: summaries[key] for key in order if key in summaries}


def open_corpus(path: str | Path) -> CorpusRun:
    """Open a corpus run.

    **Question** What did the run measure?

    **Returns** A `CorpusRun`. `corpus["agreement"]` has the mean of every field over all texts, its 95 % interval
    (`_low`, `_high`), the standard deviation (`_sd`) and quantiles. Intervals treat the segments of a document as
    one unit. Fewer than four documents have none (NaN). `corpus.sql("SELECT …")` queries the rows.
    `corpus.examples("agreement", "agreement", layer=3, head=1)` shows texts.

    **Laws** The result is bit-identical however the texts were distributed over workers and whatever was killed on
    the way. Nothing is read from a damaged file: the sizes of all files are checked here, and the digest of each file
    when it is read.

    **See also** `over_texts` runs an analysis over a few texts in memory.

    >>> import rheoscope as rs
    >>> rs.open_corpus("no such folder")
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: no such folder holds no corpus run; on the command line type rheoscope corpus run ...
    """
    return CorpusRun(RunFiles(Path(path)))


def analysis_dataset(corpus: CorpusRun, name: str) -> "xarray.Dataset":
    """The results of one analysis: means over texts, intervals, standard deviations and quantiles."""
    import xarray as xr

    if name not in corpus.analyses:
        raise RheoscopeError(
            Message(
                "{folder} has no analysis {analysis}; its analyses are {analyses}",
                folder=str(corpus.folder),
                analysis=name,
                analyses=", ".join(corpus.analyses),
            )
        )
    data: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for (analysis_name, field), field_summary in corpus.summaries.items():
        if analysis_name == name:
            ends = corpus.interval(name, field)
            data |= _variables(field, field_summary, ends, analysis_by_name(name).fields[field].attributes())
            sizes |= dict(zip(field_summary.dims, field_summary.shape, strict=True))
    coords: dict[str, Any] = {dim: axis_labels(name, dim, size, corpus.manifest.model) for dim, size in sizes.items()}
    facts = corpus.manifest.model | {"analysis": name, "fingerprint": corpus.manifest.fingerprint}
    attributes = {key: str(value) for key, value in facts.items() if key != "places"}
    return xr.Dataset(data, coords | {"quantile": list(QUANTILES)}, attributes)


def _variables(field: str, field_summary: FieldSummary, ends: Ends, attributes: dict[str, str]) -> dict[str, Any]:
    mean, sd = field_summary.summary.moments()
    columns = {
        "": mean,
        "_sd": sd,
        "_low": ends[0],
        "_high": ends[1],
        "_texts": field_summary.summary.texts,
    }
    columns["_documents"] = field_summary.summary.documents.count
    definitions = {
        "_sd": Message("Standard deviation of {field} over texts.", field=field),
        "_low": Message("Lower end of the 95 % interval of the mean of {field} over texts.", field=field),
        "_high": Message("Upper end of the 95 % interval of the mean of {field} over texts.", field=field),
        "_texts": Message("Number of texts with a value of {field}.", field=field),
        "_documents": Message("Number of documents with a value of {field}.", field=field),
    }
    variables: dict[str, Any] = {
        field + suffix: (
            field_summary.dims,
            x.reshape(field_summary.shape),
            {"definition": definitions[suffix]} if suffix else attributes,
        )
        for suffix, x in columns.items()
    }
    quantile_values = quantiles(field_summary.summary, QUANTILES).reshape(*field_summary.shape, len(QUANTILES))
    return variables | {
        f"{field}_quantiles": (
            (*field_summary.dims, "quantile"),
            quantile_values,
            {"definition": Message("Quantiles of {field}.", field=field)},
        )
    }


def axis_labels(name: str, dim: str, size: int, model_facts: dict[str, Any]) -> list[Any]:
    """The labels along an axis of an analysis, or numbers if it has none.

    >>> axis_labels("distortion", "image", 3, {"places": {"distortion": {"image": ["query", "key", "content"]}}})
    ['query', 'key', 'content']
    >>> axis_labels("distortion", "image", 2, {})  # a run of an earlier version
    [0, 1]
    """
    labels = model_facts.get("places", {}).get(name, {}).get(dim, ())
    return list(labels) if len(labels) == size else list(range(size))

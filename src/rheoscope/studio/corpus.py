"""A corpus run on the page: per-head fields with intervals, and the distribution and examples of one head."""

import threading
from pathlib import Path
from typing import Any

import numpy as np

from rheoscope.catalogue import analysis_by_name as analysis_by_name
from rheoscope.corpus.commit_records import finished_shards, total_counts
from rheoscope.corpus.corpus_result import QUANTILES, CorpusRun, axis_labels, open_corpus
from rheoscope.corpus.documents import Documents
from rheoscope.corpus.merged_summary import FieldSummary
from rheoscope.corpus.summaries import BINS_PER_CELL, Summary, bin_edges, quantiles
from rheoscope.messages.message import Message
from rheoscope.picture.token_labels import printable
from rheoscope.report.long_texts import split_special_tokens
from rheoscope.running.runner import RunnableModel
from rheoscope.studio import wire
from rheoscope.studio.jobs import MissingError

HEAD_DIMS = {"layer", "head"}
N_BARS = 40
"""Number of bars of a histogram."""
INNER_QUANTILES = (0.005, 0.995)
"""Quantiles between which a histogram with outliers is drawn."""
CHARS_BEFORE, CHARS_AFTER = 90, 200
"""Characters of an example that are shown before and after its token."""


class LiveCorpusRun:
    """A corpus run that may be unfinished. Each request covers the shards that are finished at that time."""

    def __init__(self, folder: Path, model_id: str) -> None:
        self.folder, self.model_id = folder, model_id
        self._lock, self._loaded_run, self._n_shards = threading.Lock(), open_corpus(folder), -1

    @property
    def name(self) -> str:
        return printable(self.folder.resolve().name)

    @property
    def current_run(self) -> CorpusRun:
        """The run, reopened if more shards have finished."""
        with self._lock:
            n_finished = len(finished_shards(self.folder))
            if n_finished != self._n_shards:
                self._loaded_run, self._n_shards = open_corpus(self.folder), n_finished
            return self._loaded_run

    def to_json(self) -> dict[str, Any]:
        """The model, the progress and the per-head fields of the run."""
        run = self.current_run
        job, model_facts = run.manifest.job, run.manifest.model
        run.files.check_sizes()
        return total_counts(run.files.records) | {
            "name": self.name,
            "model": self.model_id,
            "weights": model_facts["weights"],
            "layers": model_facts["layers"],
            "heads": model_facts["heads"],
            "shards": len(run.files.records),
            "total_shards": run.manifest.shards,
            "length": job.length,
            "packed": job.pack,
            "fields": [
                f"{analysis_name}.{field}"
                for (analysis_name, field), summary in run.summaries.items()
                if set(summary.dims) >= HEAD_DIMS
            ],
        }

    def pack_field(self, analysis_name: str, field: str) -> bytes:
        """A field of all heads: mean over texts, confidence interval, number of texts and null."""
        run = self.current_run
        summary = self._field_summary(run, analysis_name, field)
        mean, sd = summary.summary.moments()
        with self._lock:  # a DuckDB connection runs one query at a time
            low, high = run.interval(analysis_name, field)
        values = {
            "mean": mean,
            "low": low,
            "high": high,
            "sd": sd,
            "texts": summary.summary.texts,
        }
        null_summary = _null_summary(run, analysis_name, field, summary)
        if null_summary is not None:
            values["null"] = _broadcast_null_mean(null_summary, summary)
        coords = {
            dim: {"dims": [dim], "values": axis_labels(analysis_name, dim, size, run.manifest.model)}
            for dim, size in zip(summary.dims, summary.shape, strict=True)
        }
        arrays = {key: wire.to_wire_array(array.reshape(summary.shape), summary.dims) for key, array in values.items()}
        return wire.pack_envelope({"analysis": analysis_name, "field": field, "coords": coords}, arrays)

    def head_json(
        self, analysis_name: str, field: str, layer: int, head: int, extra_index: int, model: RunnableModel | None
    ) -> dict[str, Any]:
        """One head: the distribution of a field, and the texts with its largest and smallest values."""
        run = self.current_run
        summary = self._field_summary(run, analysis_name, field)
        indices = _axis_indices(summary, layer, head, extra_index)
        cell, null_summary = _cell_index(summary, indices), _null_summary(run, analysis_name, field, summary)
        cell_summary = _single_cell_summary(summary.summary, cell)
        (mean,), (sd,) = cell_summary.moments()
        with self._lock:  # a DuckDB connection runs one query at a time
            low, high = (float(end[cell]) for end in run.interval(analysis_name, field))
            examples = {
                extreme: run.cell_examples(summary, cell, smallest=extreme == "least").to_dict("records")
                for extreme in ("most", "least")
            }
        return {
            "mean": mean,
            "low": low,
            "high": high,
            "sd": sd,
            "texts": int(cell_summary.texts[0]),
            "documents": int(cell_summary.documents.count[0]),
            "items": int(cell_summary.items[0]),
            "quantiles": dict(zip(map(str, QUANTILES), quantiles(cell_summary, QUANTILES)[0], strict=True)),
            "distribution": distribution(
                cell_summary,
                None
                if null_summary is None
                else _single_cell_summary(null_summary.summary, _cell_index(null_summary, indices)),
            ),
        } | {extreme: [_example_json(row, model) for row in rows] for extreme, rows in examples.items()}

    def _field_summary(self, run: CorpusRun, analysis_name: str, field: str) -> FieldSummary:
        summary = run.summaries.get((analysis_name, field))
        if summary is None or not set(summary.dims) >= HEAD_DIMS:
            raise MissingError(
                Message(
                    "this corpus has no per-head field {field!r} of the analysis {analysis!r}",
                    field=field[:60],
                    analysis=analysis_name[:60],
                )
            )
        return summary


def _null_summary(run: CorpusRun, analysis_name: str, field: str, summary: FieldSummary) -> FieldSummary | None:
    """The null of a field, if the run has it. It may lack some dimensions of the field."""
    null_summary = run.summaries.get((analysis_name, analysis_by_name(analysis_name).fields[field].null))
    return null_summary if null_summary is not None and set(null_summary.dims) <= set(summary.dims) else None


def _broadcast_null_mean(null_summary: FieldSummary, summary: FieldSummary) -> np.ndarray:
    """The mean of the null, broadcast to the shape of the field."""
    sizes = dict(zip(null_summary.dims, null_summary.shape, strict=True))
    mean = null_summary.summary.moments()[0].reshape(null_summary.shape)
    mean = mean.transpose([null_summary.dims.index(dim) for dim in summary.dims if dim in sizes])
    return np.broadcast_to(mean.reshape([sizes.get(dim, 1) for dim in summary.dims]), summary.shape)


def _cell_index(summary: FieldSummary, indices: dict[str, int]) -> int:
    return int(np.ravel_multi_index([indices[dim] for dim in summary.dims], summary.shape)) if summary.dims else 0


def _axis_indices(summary: FieldSummary, layer: int, head: int, extra_index: int) -> dict[str, int]:
    """The index along every axis. `extra_index` counts through the axes other than layer and head in C order."""
    extra_dims = [(dim, size) for dim, size in zip(summary.dims, summary.shape, strict=True) if dim not in HEAD_DIMS]
    sizes = dict(zip(summary.dims, summary.shape, strict=True))
    n_slices = int(np.prod([size for _, size in extra_dims], dtype=int))
    if layer >= sizes["layer"] or head >= sizes["head"] or extra_index >= n_slices:
        raise MissingError(
            Message(
                "this corpus has no layer {layer}, head {head}, slice {slice}; "
                "it has {layers} × {heads} heads and {slices} slices",
                layers=sizes["layer"],
                heads=sizes["head"],
                slices=n_slices,
                layer=layer,
                head=head,
                slice=extra_index,
            )
        )
    extra_indices = np.unravel_index(extra_index, [size for _, size in extra_dims]) if extra_dims else ()
    return {"layer": layer, "head": head} | {
        dim: int(index) for (dim, _), index in zip(extra_dims, extra_indices, strict=True)
    }


# Distributions


def distribution(summary: Summary, null_summary: Summary | None) -> dict[str, Any]:
    """A histogram of one cell: the fraction of its items in bars of equal width. The null uses the same bars."""
    if not len(summary.bins):
        return {"edges": [], "shares": [], "null": None, "outside": 0.0}
    limits = [
        _bar_limits(candidate) for candidate in (summary, null_summary) if candidate is not None and len(candidate.bins)
    ]
    bar_edges = np.linspace(min(low for low, _ in limits), max(high for _, high in limits), N_BARS + 1)
    fractions = _bar_fractions(summary, bar_edges)
    return {
        "edges": bar_edges.tolist(),
        "shares": fractions.tolist(),
        "null": None if null_summary is None else _bar_fractions(null_summary, bar_edges).tolist(),
        "outside": max(0.0, 1 - float(fractions.sum())),
    }


def _bar_limits(summary: Summary) -> tuple[float, float]:
    """The range of a histogram: all values, or the inner quantiles if there are outliers."""
    low, high = bin_edges(summary.bins)
    inner_low, inner_high = quantiles(summary, INNER_QUANTILES)[0].tolist()
    has_outliers = float(high.max() - low.min()) > 3 * (inner_high - inner_low) > 0
    return (inner_low, inner_high) if has_outliers else (float(low.min()), float(high.max()))


def _single_cell_summary(summary: Summary, cell: int) -> Summary:
    """The summary of one cell, without its examples."""
    first_bin, last_bin = np.searchsorted(summary.bins, [cell * BINS_PER_CELL, (cell + 1) * BINS_PER_CELL])
    cell_slice, documents, no_examples = slice(cell, cell + 1), summary.documents, summary.most[:0]
    return Summary(
        texts=summary.texts[cell_slice],
        missing=summary.missing[cell_slice],
        items=summary.items[cell_slice],
        total=summary.total[cell_slice],
        squares=summary.squares[cell_slice],
        documents=Documents(
            documents.count[cell_slice],
            documents.sizes[cell_slice],
            documents.squares[cell_slice],
            documents.products[cell_slice],
        ),
        bins=summary.bins[first_bin:last_bin] - cell * BINS_PER_CELL,
        counts=summary.counts[first_bin:last_bin],
        most=no_examples,
        least=no_examples,
    )


def _bar_fractions(summary: Summary, bar_edges: np.ndarray) -> np.ndarray:
    """The fraction of the items in each bar. Items are spread evenly over their bin."""
    if not len(summary.bins):
        return np.zeros(len(bar_edges) - 1)
    low, high = bin_edges(summary.bins)
    order = np.argsort(low, kind="stable")
    cumulative = np.concatenate([[0], np.cumsum(summary.counts[order])]) / summary.counts.sum()
    x, y = np.stack([low, high], 1)[order].ravel(), np.stack([cumulative[:-1], cumulative[1:]], 1).ravel()
    return np.diff(np.interp(bar_edges, x, y))


# Texts


def _example_json(row: dict[str, Any], model: RunnableModel | None) -> dict[str, Any]:
    """An example: its value, its source, its text, and its token with the text around it."""
    text, tokens, n_prefix = _decode_example(str(row["words"]), model)
    token_index = (
        int(row["token"]) if len(tokens) == int(row["tokens"]) else -1
    )  # encoded again, the text may have other tokens
    context = (
        None
        if token_index < 0
        else (
            "".join(tokens[n_prefix:token_index])[-CHARS_BEFORE:],
            tokens[token_index],
            "".join(tokens[token_index + 1 :])[:CHARS_AFTER],
        )
    )
    return {
        "value": float(row["value"]),
        "text": text,
        "file": printable(Path(str(row["file"])).name),
        "line": int(row["line"]),
        "tokens": int(row["tokens"]),
        "token": None if context is None else token_index,
        "around": context,
    }


def _decode_example(stored_text: str, model: RunnableModel | None) -> tuple[str, list[str], int]:
    """The text without special tokens, its tokens with them, and the number of special tokens before the text.

    Without a model there are no tokens, and the text is as the run stored it.
    """
    if model is None:
        return stored_text, [], 0
    prefix_ids, _, suffix_ids = split_special_tokens(model, model.encode("a"))
    prefix, suffix = ("".join(model.token_strings_in_text(ids)) for ids in (prefix_ids, suffix_ids))
    text = stored_text.removeprefix(prefix).removesuffix(suffix)
    return text, model.token_strings_in_text(model.encode(text)), len(prefix_ids)

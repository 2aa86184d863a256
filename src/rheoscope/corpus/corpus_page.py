"""The page of a run: what it is of, every field with intervals, its distributions, texts that show it, and drift from another run."""

from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.corpus.corpus_result import (
    QUANTILES,
    CorpusRun,
    analysis_dataset,
    axis_labels,
    interval_half_width,
    open_corpus,
)
from rheoscope.corpus.drift import FALSE_DISCOVERY_RATE, drift
from rheoscope.corpus.merged_summary import FieldSummary, total_counts
from rheoscope.corpus.shards import finished_shards, read_shards
from rheoscope.corpus.summaries import quantiles
from rheoscope.files import check_writable
from rheoscope.messages.numbers import format_number
from rheoscope.picture import field_panels
from rheoscope.picture.picture import format_value
from rheoscope.report.page import Page

if TYPE_CHECKING:
    import xarray

MAX_TABLE_ROWS = 1500
"""Rows of a table of distributions; larger ones are asked in SQL."""
MAX_EXAMPLES, MAX_EXAMPLE_CHARACTERS = 3, 200
"""Texts that are shown of a head, and letters of each."""
MIN_Q_VALUE = 1e-15
"""A q below this is told as such: no law of errors holds so far out."""
EFFECT_NOTE = (
    "The effect is the difference of the means over the standard deviation of texts (Cohen's d); q takes the pieces of one document "
    "together."
)
MAX_DRIFT_ROWS = 25
"""Places that a table of drift names."""


def save_page(folder: Path, other_folder: Path | None, path: Path | None) -> str:
    """The page as a file, and a line that says where."""
    target_path = folder / "report.html" if path is None else path
    check_writable(target_path)
    corpus = open_corpus(folder)
    page = build_page(corpus)
    page = page if other_folder is None else with_drift(page, corpus, open_corpus(other_folder))
    return page.with_facts("Where the numbers come from", run_facts(corpus)).save(target_path)


def build_page(corpus: CorpusRun) -> Page:
    """Every analysis: its picture, its distributions, its examples."""
    totals, job = total_counts(corpus.folder), corpus.manifest.job
    intro = (
        f"{totals['texts']:,} texts, {totals['tokens']:,} tokens, {totals['rejects']:,} rejects; {len(finished_shards(corpus.folder))} of "
        f"{len(read_shards(corpus.folder))} shards; {job.model or 'the default model'}. Means are over texts; intervals are 95 %, "
        "pieces of one document taken together."
    )
    page = Page(f"A corpus: {corpus.folder.resolve().name}", intro)
    for name in sorted(corpus.analyses, key=list(ANALYSIS_MODULES).index):
        if any(analysis_name == name for analysis_name, _ in corpus.summaries):
            page = page.with_picture(field_panels.picture(_plotted_fields(analysis_dataset(corpus, name))))
            page = page.with_section(f"Distributions: {name}", "".join(_distributions(corpus, name)))
            page = _with_examples(page, corpus, name)
    return page


def run_facts(corpus: CorpusRun) -> dict[str, str]:
    """Model, settings and inputs."""
    job = corpus.manifest.job
    return {key: str(value) for key, value in corpus.manifest.model.items() if key != "places"} | {
        "fingerprint": corpus.manifest.fingerprint,
        "analyses": "; ".join(f"{name} {dict(settings) or ''}".strip() for name, settings in job.analyses.items()),
        "texts": f"{job.least} to {job.length} tokens{', packed' if job.pack else ''}",
        "inputs": ", ".join(input_file.path for input_file in corpus.manifest.inputs),
    }


def _plotted_fields(data: "xarray.Dataset") -> "xarray.Dataset":
    """What a picture shows: means and both ends of their intervals."""
    return data[
        [
            name
            for name in data.data_vars
            if not str(name).endswith(("_sd", "_texts", "_documents", "_quantiles")) or _is_declared_field(data, name)
        ]
    ]


def _is_declared_field(data: "xarray.Dataset", name: object) -> bool:
    return str(name) in analysis_by_name(str(data.attrs["analysis"])).fields


def _distributions(corpus: CorpusRun, name: str) -> Iterator[str]:
    """Every field as a table that opens: a row a place."""
    for (analysis_name, field), field_summary in corpus.summaries.items():
        if analysis_name != name:
            continue
        if field_summary.summary.n_cells > MAX_TABLE_ROWS:
            yield f"<p>{escape(field)}: {field_summary.summary.n_cells:,} places; type rheoscope corpus query for them.</p>"
            continue
        header = [
            *field_summary.dims,
            "mean",
            "95 % interval",
            "sd",
            *(f"{fraction:.0%}" for fraction in QUANTILES),
            "texts",
            "documents",
        ]
        header_html = "".join(f"<th>{escape(cell)}</th>" for cell in header)
        body_html = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
            for row in _distribution_rows(corpus, name, field_summary)
        )
        definition = escape(analysis_by_name(name).fields[field].definition)
        yield (
            f"<details><summary>{escape(field)}: {definition}</summary><div class=scroll><table class=numbers><thead><tr>{header_html}</tr>"
            f"</thead><tbody>{body_html}</tbody></table></div></details>"
        )


def _distribution_rows(corpus: CorpusRun, name: str, field_summary: FieldSummary) -> Iterator[list[str]]:
    mean, sd = field_summary.summary.moments()
    half_width, quantile_values = (
        interval_half_width(field_summary.summary),
        quantiles(field_summary.summary, QUANTILES),
    )
    axes = [
        axis_labels(name, dim, size, corpus.manifest.model)
        for dim, size in zip(field_summary.dims, field_summary.shape, strict=True)
    ]
    for cell, indices in enumerate(np.ndindex(field_summary.shape)):
        labels = [str(axis[index]) for axis, index in zip(axes, indices, strict=True)]
        interval_text = (
            f"{format_number(mean[cell] - half_width[cell])} to {format_number(mean[cell] + half_width[cell])}"
        )
        yield [
            *labels,
            format_number(mean[cell]),
            interval_text,
            format_number(sd[cell]),
            *map(format_number, quantile_values[cell]),
            f"{field_summary.summary.texts[cell]:,}",
            f"{field_summary.summary.documents.count[cell]:,}",
        ]


def _with_examples(page: Page, corpus: CorpusRun, name: str) -> Page:
    """Of every field of heads, the texts in which the strongest head is strongest."""
    rows = []
    for (analysis_name, field), field_summary in corpus.summaries.items():
        if analysis_name != name or field_summary.dims != ("layer", "head") or not len(field_summary.summary.most):
            continue
        top_example = field_summary.summary.most[np.argmax(field_summary.summary.most["value"])]
        layer, head = divmod(int(top_example["cell"]), field_summary.shape[1])
        for row in corpus.examples(name, field, layer=layer, head=head).head(MAX_EXAMPLES).itertuples():
            location = f"{Path(str(row.file)).name}:{row.line}"
            rows.append(
                [
                    field,
                    f"L{layer}.{head}",
                    format_number(float(row.value)),
                    location,
                    str(row.words)[:MAX_EXAMPLE_CHARACTERS],
                ]
            )
    if not rows:
        return page
    return page.with_table(
        f"Texts: {name}", ["field", "head", "value", "where", "text"], rows, frozenset({0, 1, 3, 4}),
        "The head that reaches the largest number of a field, and the texts in which it does.",
    )  # fmt: skip


class DriftRow(NamedTuple):
    """One place of a field in two runs."""

    analysis: str
    field: str
    location: str
    difference: float
    effect: float
    q: float

    def row(self) -> list[str]:
        """As a table tells it."""
        q = f"{self.q:.2g}" if self.q >= MIN_Q_VALUE else f"< {MIN_Q_VALUE}"
        return [self.analysis, self.field, self.location, format_value(self.difference), f"{self.effect:+.2f}", q]


def with_drift(page: Page, first: CorpusRun, second: CorpusRun) -> Page:
    """What another run of the same model has more or less of."""
    datasets = drift(first, second)
    for data in datasets.values():
        effects = {key: str(key).removesuffix("_effect") for key in data.data_vars if str(key).endswith("_effect")}
        picture = field_panels.picture(data[list(effects)].rename(effects).assign_attrs(data.attrs))
        page = page.with_picture(replace(picture, title=f"Drift: {picture.title}", caption=EFFECT_NOTE))
    drift_rows = sorted(
        (drift_row for name, data in datasets.items() for drift_row in _compared_rows(name, data)),
        key=lambda row: -abs(row.effect),
    )
    n_significant = sum(drift_row.q <= FALSE_DISCOVERY_RATE for drift_row in drift_rows)
    note = (
        f"From {first.folder.resolve().name} to {second.folder.resolve().name}: {n_significant:,} of "
        f"{len(drift_rows):,} differ (q ≤ {FALSE_DISCOVERY_RATE}). {EFFECT_NOTE}"
    )
    header = ["analysis", "field", "place", "difference", "effect", "q"]
    return page.with_table(
        "The largest drift",
        header,
        [drift_row.row() for drift_row in drift_rows[:MAX_DRIFT_ROWS]],
        frozenset({0, 1, 2}),
        note,
    )


def _compared_rows(name: str, data: "xarray.Dataset") -> Iterator[DriftRow]:
    """Every place that can be compared."""
    for field in [str(key) for key in data.data_vars if f"{key}_effect" in data]:
        numbers = [np.atleast_1d(data[key].values) for key in (field, f"{field}_effect", f"{field}_q_value")]
        dims = data[field].dims
        for index in zip(*np.nonzero(np.isfinite(numbers[1])), strict=True):
            location = ", ".join(f"{dim} {data[dim].values[i]}" for dim, i in zip(dims, index, strict=False))
            difference, effect, q = (float(x[index]) for x in numbers)
            yield DriftRow(name, field, location, difference, effect, q)

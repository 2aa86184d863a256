"""The page of a corpus run: every field with intervals, distributions, example texts, and drift from another run."""

from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.corpus.commit_records import total_counts
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_result import (
    QUANTILES,
    CorpusRun,
    analysis_dataset,
    axis_labels,
    open_corpus,
)
from rheoscope.corpus.drift import FALSE_DISCOVERY_RATE, drift
from rheoscope.corpus.merged_summary import FieldSummary
from rheoscope.corpus.summaries import quantiles
from rheoscope.files import check_writable
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.picture import field_panels
from rheoscope.picture.picture import format_value
from rheoscope.report.page import Page
from rheoscope.statistics.intervals import too_few_units

if TYPE_CHECKING:
    import xarray

MAX_TABLE_ROWS = 1500
"""The largest number of rows in a table of distributions. Larger tables are available through SQL."""
MAX_EXAMPLES, MAX_EXAMPLE_CHARACTERS = 3, 200
"""The number of example texts per head, and of characters per text."""
MIN_Q_VALUE = 1e-15
"""Smaller q values are shown as smaller than this, because the normal approximation does not hold so far out."""
EFFECT_NOTE = Message(
    "The effect is the difference of means in standard deviations over texts (Cohen's d). q values treat the segments of a "
    "document as one unit."
)
DEFAULT_MODEL_LABEL = Message("the default model")
MAX_DRIFT_ROWS = 25
"""The number of rows in the table of drift."""


def save_page(folder: Path, other_folder: Path | None, path: Path | None) -> str:
    """Write the page and return a line with its path."""
    target_path = folder / "report.html" if path is None else path
    check_writable(target_path)
    corpus = open_corpus(folder)
    page = build_page(corpus)
    page = page if other_folder is None else with_drift(page, corpus, open_corpus(other_folder))
    return page.with_facts(Message("Provenance"), run_facts(corpus)).save(target_path)


def build_page(corpus: CorpusRun) -> Page:
    """For every analysis its picture, its distributions and its examples."""
    totals, job = total_counts(corpus.files.records), corpus.manifest.job
    intro = Message(
        "{texts:,} texts with {tokens:,} tokens, {rejects:,} rejects, {done} of {shards} shards, model {model}. Means are over "
        "texts. Intervals are 95 % intervals that treat the segments of a document as one unit.",
        **totals,
        done=len(corpus.files.records),
        shards=corpus.manifest.shards,
        model=job.model or DEFAULT_MODEL_LABEL,
    )
    page = Page(Message("Corpus: {name}", name=corpus.folder.resolve().name), intro)
    for name in sorted(corpus.analyses, key=list(ANALYSIS_MODULES).index):
        if any(analysis_name == name for analysis_name, _ in corpus.summaries):
            page = page.with_picture(field_panels.picture(_plotted_fields(analysis_dataset(corpus, name))))
            page = page.with_section(
                Message("Distributions: {analysis}", analysis=name), "".join(_distributions(corpus, name))
            )
            page = _with_examples(page, corpus, name)
    return page


def run_facts(corpus: CorpusRun) -> dict[str, str]:
    """The model, the settings and the inputs."""
    job = corpus.manifest.job
    return {key: str(value) for key, value in corpus.manifest.model.items() if key != "places"} | {
        "fingerprint": corpus.manifest.fingerprint,
        "analyses": "; ".join(
            f"{name} {dict(settings)}" if settings else name for name, settings in job.analyses.items()
        ),
        "texts": _length_text(job),
        "inputs": ", ".join(input_file.path for input_file in corpus.manifest.inputs),
    }


def _length_text(job: Job) -> Message:
    if job.pack:
        return Message("{least} to {length} tokens, packed", least=job.least, length=job.length)
    return Message("{least} to {length} tokens", least=job.least, length=job.length)


def _plotted_fields(data: "xarray.Dataset") -> "xarray.Dataset":
    """The fields to plot: means and both ends of their intervals."""
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
    """Every field as a collapsible table with one row per cell."""
    for (analysis_name, field), field_summary in corpus.summaries.items():
        if analysis_name != name:
            continue
        if field_summary.summary.n_cells > MAX_TABLE_ROWS:
            note = Message(
                "{field} has {n:,} cells; type rheoscope corpus query {folder}",
                field=field,
                n=field_summary.summary.n_cells,
                folder=str(corpus.folder),
            )
            yield f"<p>{escape(render(note))}</p>"
            continue
        header = [
            *field_summary.dims,
            Message("mean"),
            Message("95 % interval"),
            Message("sd"),
            *(f"{100 * fraction:.0f} %" for fraction in QUANTILES),
            Message("texts"),
            Message("documents"),
        ]
        header_html = "".join(f"<th>{escape(render(cell))}</th>" for cell in header)
        body_html = "".join(
            f"<tr>{''.join(f'<td>{escape(render(cell))}</td>' for cell in row)}</tr>"
            for row in _distribution_rows(corpus, name, field, field_summary)
        )
        definition = escape(render(analysis_by_name(name).fields[field].definition))
        yield (
            f"<details><summary>{escape(field)}: {definition}</summary><div class=scroll><table class=numbers><thead><tr>{header_html}</tr>"
            f"</thead><tbody>{body_html}</tbody></table></div></details>"
        )


def _distribution_rows(corpus: CorpusRun, name: str, field: str, field_summary: FieldSummary) -> Iterator[list[str]]:
    mean, sd = field_summary.summary.moments()
    (low, high), quantile_values = corpus.interval(name, field), quantiles(field_summary.summary, QUANTILES)
    axes = [
        axis_labels(name, dim, size, corpus.manifest.model)
        for dim, size in zip(field_summary.dims, field_summary.shape, strict=True)
    ]
    for cell, indices in enumerate(np.ndindex(field_summary.shape)):
        labels = [str(axis[index]) for axis, index in zip(axes, indices, strict=True)]
        interval_text = (
            too_few_units(Message("documents"), int(field_summary.summary.documents.count[cell]))
            if np.isnan(low[cell])
            else Message("{low} to {high}", low=format_number(low[cell]), high=format_number(high[cell]))
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
    """For every field per head, the texts with the largest values of the head that has the overall maximum."""
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
    header = [Message("field"), Message("head"), Message("value"), Message("location"), Message("text")]
    return page.with_table(
        Message("Example texts: {analysis}", analysis=name),
        header,
        rows,
        frozenset({0, 1, 3, 4}),
        Message("For each field, the head with the largest value and the texts in which it occurs."),
    )


class DriftRow(NamedTuple):
    """One cell of a field in two runs."""

    analysis: str
    field: str
    location: str
    difference: float
    effect: float
    q: float

    def row(self) -> list[str]:
        """The cells of its row in the table."""
        q = f"{self.q:.2g}" if self.q >= MIN_Q_VALUE else f"< {MIN_Q_VALUE}"
        return [self.analysis, self.field, self.location, format_value(self.difference), f"{self.effect:+.2f}", q]


def with_drift(page: Page, first: CorpusRun, second: CorpusRun) -> Page:
    """Add the differences from another run of the same model."""
    datasets = drift(first, second)
    for data in datasets.values():
        effects = {key: str(key).removesuffix("_effect") for key in data.data_vars if str(key).endswith("_effect")}
        picture = field_panels.picture(data[list(effects)].rename(effects).assign_attrs(data.attrs))
        page = page.with_picture(
            replace(picture, title=Message("Drift: {title}", title=picture.title), caption=EFFECT_NOTE)
        )
    drift_rows = sorted(
        (drift_row for name, data in datasets.items() for drift_row in _compared_rows(name, data)),
        key=lambda row: -abs(row.effect),
    )
    n_significant = sum(drift_row.q <= FALSE_DISCOVERY_RATE for drift_row in drift_rows)
    note = Message(
        "From {first} to {second}: {n:,} of {total:,} cells differ significantly (q ≤ {level}). For the others the difference "
        "is unclear. {effect_note}",
        first=first.folder.resolve().name,
        second=second.folder.resolve().name,
        n=n_significant,
        total=len(drift_rows),
        level=FALSE_DISCOVERY_RATE,
        effect_note=EFFECT_NOTE,
    )
    header = [
        Message("analysis"),
        Message("field"),
        Message("cell"),
        Message("difference"),
        Message("effect"),
        Message("q"),
    ]
    return page.with_table(
        Message("Largest drift"),
        header,
        [drift_row.row() for drift_row in drift_rows[:MAX_DRIFT_ROWS]],
        frozenset({0, 1, 2}),
        note,
    )


def _compared_rows(name: str, data: "xarray.Dataset") -> Iterator[DriftRow]:
    """Every cell that can be compared."""
    for field in [str(key) for key in data.data_vars if f"{key}_effect" in data]:
        numbers = [np.atleast_1d(data[key].values) for key in (field, f"{field}_effect", f"{field}_q_value")]
        dims = data[field].dims
        for index in zip(*np.nonzero(np.isfinite(numbers[1])), strict=True):
            location = ", ".join(f"{dim} {data[dim].values[i]}" for dim, i in zip(dims, index, strict=False))
            difference, effect, q = (float(x[index]) for x in numbers)
            yield DriftRow(name, field, location, difference, effect, q)

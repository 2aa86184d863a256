"""The page of a run: what it is of, every field with intervals, its distributions, texts that show it, and drift from another run."""

from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rheoscope.catalogue import TABLE, analysis
from rheoscope.corpus.corpus_result import SHARES, Corpus, dataset, interval, open_corpus, places
from rheoscope.corpus.drift import LEVEL, drift
from rheoscope.corpus.merged_summary import Kept, counts
from rheoscope.corpus.shards import done, shards_of
from rheoscope.corpus.summaries import quantiles
from rheoscope.files import check_free
from rheoscope.messages.numbers import short
from rheoscope.picture import field_panels
from rheoscope.picture.picture import number
from rheoscope.report.page import Page

if TYPE_CHECKING:
    import xarray

ROWS = 1500
"""Rows of a table of distributions; larger ones are asked in SQL."""
EXAMPLES, LETTERS = 3, 200
"""Texts that are shown of a head, and letters of each."""
SMALLEST = 1e-15
"""A q below this is told as such: no law of errors holds so far out."""
EFFECT = (
    "The effect is the difference of the means over the standard deviation of texts (Cohen's d); q takes the pieces of one document "
    "together."
)
STRONGEST = 25
"""Places that a table of drift names."""


def save(folder: Path, beside: Path | None, path: Path | None) -> str:
    """The page as a file, and a line that says where."""
    goal = folder / "report.html" if path is None else path
    check_free(goal)
    corpus = open_corpus(folder)
    page = page_of(corpus)
    page = page if beside is None else with_drift(page, corpus, open_corpus(beside))
    return page.facts("Where the numbers come from", facts_of(corpus)).save(goal)


def page_of(corpus: Corpus) -> Page:
    """Every analysis: its picture, its distributions, its examples."""
    told, job = counts(corpus.folder), corpus.manifest.job
    lead = (
        f"{told['texts']:,} texts, {told['tokens']:,} tokens, {told['rejects']:,} rejects; {len(done(corpus.folder))} of "
        f"{len(shards_of(corpus.folder))} shards; {job.model or 'the default model'}. Means are over texts; intervals are 95 %, "
        "pieces of one document taken together."
    )
    page = Page(f"A corpus: {corpus.folder.resolve().name}", lead)
    for name in sorted(corpus.analyses, key=list(TABLE).index):
        if any(of == name for of, _ in corpus.summaries):
            page = page.drawing(field_panels.picture(_drawn(dataset(corpus, name))))
            page = page.section(f"Distributions: {name}", "".join(_distributions(corpus, name)))
            page = _examples(page, corpus, name)
    return page


def facts_of(corpus: Corpus) -> dict[str, str]:
    """Model, settings and inputs."""
    job = corpus.manifest.job
    return {key: str(value) for key, value in corpus.manifest.model.items() if key != "places"} | {
        "fingerprint": corpus.manifest.fingerprint,
        "analyses": "; ".join(f"{name} {dict(settings) or ''}".strip() for name, settings in job.analyses.items()),
        "texts": f"{job.least} to {job.length} tokens{', packed' if job.pack else ''}",
        "inputs": ", ".join(one.path for one in corpus.manifest.inputs),
    }


def _drawn(found: "xarray.Dataset") -> "xarray.Dataset":
    """What a picture shows: means and both ends of their intervals."""
    return found[
        [
            name
            for name in found.data_vars
            if not str(name).endswith(("_sd", "_texts", "_documents", "_quantiles")) or _own(found, name)
        ]
    ]


def _own(found: "xarray.Dataset", name: object) -> bool:
    return str(name) in analysis(str(found.attrs["analysis"])).fields


def _distributions(corpus: Corpus, name: str) -> Iterator[str]:
    """Every field as a table that opens: a row a place."""
    for (of, field), one in corpus.summaries.items():
        if of != name:
            continue
        if one.summary.cells > ROWS:
            yield f"<p>{escape(field)}: {one.summary.cells:,} places; type rheoscope corpus query for them.</p>"
            continue
        header = [*one.dims, "mean", "95 % interval", "sd", *(f"{share:.0%}" for share in SHARES), "texts", "documents"]
        head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in _rows(corpus, name, one)
        )
        definition = escape(analysis(name).fields[field].definition)
        yield (
            f"<details><summary>{escape(field)}: {definition}</summary><div class=scroll><table class=numbers><thead><tr>{head}</tr>"
            f"</thead><tbody>{body}</tbody></table></div></details>"
        )


def _rows(corpus: Corpus, name: str, one: Kept) -> Iterator[list[str]]:
    mean, sd = one.summary.moments()
    half, spread = interval(one.summary), quantiles(one.summary, SHARES)
    axes = [places(name, dim, size, corpus.manifest.model) for dim, size in zip(one.dims, one.shape, strict=True)]
    for cell, place in enumerate(np.ndindex(one.shape)):
        named = [str(axis[at]) for axis, at in zip(axes, place, strict=True)]
        ends = f"{short(mean[cell] - half[cell])} to {short(mean[cell] + half[cell])}"
        yield [
            *named,
            short(mean[cell]),
            ends,
            short(sd[cell]),
            *map(short, spread[cell]),
            f"{one.summary.texts[cell]:,}",
            f"{one.summary.documents.count[cell]:,}",
        ]


def _examples(page: Page, corpus: Corpus, name: str) -> Page:
    """Of every field of heads, the texts in which the strongest head is strongest."""
    rows = []
    for (of, field), one in corpus.summaries.items():
        if of != name or one.dims != ("layer", "head") or not len(one.summary.most):
            continue
        best = one.summary.most[np.argmax(one.summary.most["value"])]
        layer, head = divmod(int(best["cell"]), one.shape[1])
        for row in corpus.examples(name, field, layer=layer, head=head).head(EXAMPLES).itertuples():
            where = f"{Path(str(row.file)).name}:{row.line}"
            rows.append([field, f"L{layer}.{head}", short(float(row.value)), where, str(row.words)[:LETTERS]])
    if not rows:
        return page
    return page.table(
        f"Texts: {name}", ["field", "head", "value", "where", "text"], rows, frozenset({0, 1, 3, 4}),
        "The head that reaches the largest number of a field, and the texts in which it does.",
    )  # fmt: skip


class Moved(NamedTuple):
    """One place of a field in two runs."""

    analysis: str
    field: str
    place: str
    difference: float
    effect: float
    q: float

    def row(self) -> list[str]:
        """As a table tells it."""
        q = f"{self.q:.2g}" if self.q >= SMALLEST else f"< {SMALLEST}"
        return [self.analysis, self.field, self.place, number(self.difference), f"{self.effect:+.2f}", q]


def with_drift(page: Page, one: Corpus, other: Corpus) -> Page:
    """What another run of the same model has more or less of."""
    found = drift(one, other)
    for data in found.values():
        effects = {key: str(key).removesuffix("_effect") for key in data.data_vars if str(key).endswith("_effect")}
        picture = field_panels.picture(data[list(effects)].rename(effects).assign_attrs(data.attrs))
        page = page.drawing(replace(picture, title=f"Drift: {picture.title}", caption=EFFECT))
    moved = sorted(
        (place for name, data in found.items() for place in _moved(name, data)), key=lambda one: -abs(one.effect)
    )
    finds = sum(place.q <= LEVEL for place in moved)
    note = f"From {one.folder.resolve().name} to {other.folder.resolve().name}: {finds:,} of {len(moved):,} differ (q ≤ {LEVEL}). {EFFECT}"
    header = ["analysis", "field", "place", "difference", "effect", "q"]
    return page.table(
        "The largest drift", header, [place.row() for place in moved[:STRONGEST]], frozenset({0, 1, 2}), note
    )


def _moved(name: str, data: "xarray.Dataset") -> Iterator[Moved]:
    """Every place that can be compared."""
    for field in [str(key) for key in data.data_vars if f"{key}_effect" in data]:
        numbers = [np.atleast_1d(data[key].values) for key in (field, f"{field}_effect", f"{field}_q_value")]
        dims = data[field].dims
        for at in zip(*np.nonzero(np.isfinite(numbers[1])), strict=True):
            place = ", ".join(f"{dim} {data[dim].values[i]}" for dim, i in zip(dims, at, strict=False))
            difference, effect, q = (float(x[at]) for x in numbers)
            yield Moved(name, field, place, difference, effect, q)

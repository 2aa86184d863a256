"""A corpus run on the page: the fields of heads that it holds, their means with intervals, one head's distribution and its texts."""

import threading
from pathlib import Path
from typing import Any

import numpy as np

from rheoscope.catalogue import analysis as analysis_of
from rheoscope.corpus.corpus_result import SHARES, Corpus, interval, open_corpus, places
from rheoscope.corpus.documents import Documents
from rheoscope.corpus.merged_summary import Kept, counts
from rheoscope.corpus.shards import done, shards_of
from rheoscope.corpus.summaries import BINS, Summary, edges, quantiles
from rheoscope.picture.token_labels import printable
from rheoscope.report.long_texts import around
from rheoscope.running.runner import Running
from rheoscope.studio import wire
from rheoscope.studio.jobs import MissingError

HEADS = {"layer", "head"}
BARS = 40
"""Bars of a distribution."""
INNER = (0.005, 0.995)
"""The share of a distribution that is drawn where the rest lies far out."""
BEFORE, AFTER = 90, 200
"""Letters of a text that are shown before and after the token that an example is about."""


class Run:
    """A corpus run that may still be going on: what is asked is of all shards that are done by then."""

    def __init__(self, folder: Path, model: str) -> None:
        self.folder, self.model = folder, model
        self._lock, self._corpus, self._shards = threading.Lock(), open_corpus(folder), -1

    @property
    def name(self) -> str:
        return printable(self.folder.resolve().name)

    @property
    def corpus(self) -> Corpus:
        """The run as it is now: opened again where more of it is done."""
        with self._lock:
            there = len(done(self.folder))
            if there != self._shards:
                self._corpus, self._shards = open_corpus(self.folder), there
            return self._corpus

    def told(self) -> dict[str, Any]:
        """What the run is of, how far it is, and the fields of heads that it holds."""
        corpus = self.corpus
        job, model = corpus.manifest.job, corpus.manifest.model
        return counts(self.folder) | {
            "name": self.name,
            "model": self.model,
            "weights": model["weights"],
            "layers": model["layers"],
            "heads": model["heads"],
            "shards": len(done(self.folder)),
            "of": len(shards_of(self.folder)),
            "length": job.length,
            "packed": job.pack,
            "fields": [f"{name}.{field}" for (name, field), one in corpus.summaries.items() if set(one.dims) >= HEADS],
        }

    def field(self, name: str, field: str) -> bytes:
        """A field of all heads: the mean over texts, its interval, how many texts have it, and what chance gives."""
        corpus = self.corpus
        one = self._kept(corpus, name, field)
        mean, sd = one.summary.moments()
        half = interval(one.summary)
        values = {"mean": mean, "low": mean - half, "high": mean + half, "sd": sd, "texts": one.summary.texts}
        null = _null(corpus, name, field, one)
        if null is not None:
            values["null"] = _spread(null, one)
        coords = {
            dim: {"dims": [dim], "values": places(name, dim, size, corpus.manifest.model)}
            for dim, size in zip(one.dims, one.shape, strict=True)
        }
        arrays = {key: wire.as_array(x.reshape(one.shape), one.dims) for key, x in values.items()}
        return wire.packed({"analysis": name, "field": field, "coords": coords}, arrays)

    def head(self, name: str, field: str, layer: int, head: int, piece: int, model: Running | None) -> dict[str, Any]:
        """One head: how a field of it is distributed, and the texts in which it is largest and smallest."""
        corpus = self.corpus
        one = self._kept(corpus, name, field)
        place = _place(one, layer, head, piece)
        cell, null = _cell(one, place), _null(corpus, name, field, one)
        alone = _only(one.summary, cell)
        (mean,), (sd,) = alone.moments()
        (half,) = interval(alone)
        with self._lock:  # DuckDB answers one at a time
            examples = {
                side: corpus.examples_in(one, cell, least=side == "least").to_dict("records")
                for side in ("most", "least")
            }
        return {
            "mean": mean,
            "low": mean - half,
            "high": mean + half,
            "sd": sd,
            "texts": int(alone.texts[0]),
            "documents": int(alone.documents.count[0]),
            "items": int(alone.items[0]),
            "quantiles": dict(zip(map(str, SHARES), quantiles(alone, SHARES)[0], strict=True)),
            "distribution": distribution(alone, None if null is None else _only(null.summary, _cell(null, place))),
        } | {side: [_example(row, model) for row in rows] for side, rows in examples.items()}

    def _kept(self, corpus: Corpus, name: str, field: str) -> Kept:
        one = corpus.summaries.get((name, field))
        if one is None or not set(one.dims) >= HEADS:
            raise MissingError(f"this corpus holds no field {field[:60]!r} of {name[:60]} for every head")
        return one


def _null(corpus: Corpus, name: str, field: str, one: Kept) -> Kept | None:
    """What chance gives of a field, where that was asked: of every head, or the same of several."""
    null = corpus.summaries.get((name, analysis_of(name).fields[field].null))
    return null if null is not None and set(null.dims) <= set(one.dims) else None


def _spread(null: Kept, one: Kept) -> np.ndarray:
    """The means of what chance gives, at every place of the field."""
    sizes = dict(zip(null.dims, null.shape, strict=True))
    mean = null.summary.moments()[0].reshape(null.shape)
    mean = mean.transpose([null.dims.index(dim) for dim in one.dims if dim in sizes])
    return np.broadcast_to(mean.reshape([sizes.get(dim, 1) for dim in one.dims]), one.shape)


def _cell(one: Kept, place: dict[str, int]) -> int:
    return int(np.ravel_multi_index([place[dim] for dim in one.dims], one.shape)) if one.dims else 0


def _place(one: Kept, layer: int, head: int, piece: int) -> dict[str, int]:
    """The places along all axes: layer and head, and of the others (the last the fastest) number `piece`."""
    others = [(dim, size) for dim, size in zip(one.dims, one.shape, strict=True) if dim not in HEADS]
    sizes = dict(zip(one.dims, one.shape, strict=True))
    if layer >= sizes["layer"] or head >= sizes["head"] or piece >= np.prod([size for _, size in others], dtype=int):
        raise MissingError(
            f"this corpus has no head {head} of layer {layer}; it has {sizes['layer']} layers of {sizes['head']} heads"
        )
    at = np.unravel_index(piece, [size for _, size in others]) if others else ()
    return {"layer": layer, "head": head} | {dim: int(k) for (dim, _), k in zip(others, at, strict=True)}


# Distributions


def distribution(one: Summary, null: Summary | None) -> dict[str, Any]:
    """Bars of equal width: the share of all items of one cell in each; of what chance gives too, on the same bars."""
    if not len(one.bins):
        return {"edges": [], "shares": [], "null": None, "outside": 0.0}
    ends = [_ends(held) for held in (one, null) if held is not None and len(held.bins)]
    cuts = np.linspace(min(low for low, _ in ends), max(high for _, high in ends), BARS + 1)
    shares = _shares(one, cuts)
    return {
        "edges": cuts.tolist(),
        "shares": shares.tolist(),
        "null": None if null is None else _shares(null, cuts).tolist(),
        "outside": max(0.0, 1 - float(shares.sum())),
    }


def _ends(one: Summary) -> tuple[float, float]:
    """Between which numbers a distribution is drawn: all of it, or the inner part where the rest lies far out."""
    low, high = edges(one.bins)
    first, last = quantiles(one, INNER)[0].tolist()
    far = float(high.max() - low.min()) > 3 * (last - first) > 0
    return (first, last) if far else (float(low.min()), float(high.max()))


def _only(kept: Summary, cell: int) -> Summary:
    """The summary of one cell, without its examples."""
    begin, end = np.searchsorted(kept.bins, [cell * BINS, (cell + 1) * BINS])
    at, documents, none = slice(cell, cell + 1), kept.documents, kept.most[:0]
    return Summary(
        texts=kept.texts[at],
        missing=kept.missing[at],
        items=kept.items[at],
        total=kept.total[at],
        squares=kept.squares[at],
        documents=Documents(documents.count[at], documents.sizes[at], documents.squares[at], documents.products[at]),
        bins=kept.bins[begin:end] - cell * BINS,
        counts=kept.counts[begin:end],
        most=none,
        least=none,
    )


def _shares(one: Summary, cuts: np.ndarray) -> np.ndarray:
    """The share of the items between each two cuts; those of a bin lie evenly in it."""
    if not len(one.bins):
        return np.zeros(len(cuts) - 1)
    low, high = edges(one.bins)
    order = np.argsort(low, kind="stable")
    below = np.concatenate([[0], np.cumsum(one.counts[order])]) / one.counts.sum()
    x, y = np.stack([low, high], 1)[order].ravel(), np.stack([below[:-1], below[1:]], 1).ravel()
    return np.diff(np.interp(cuts, x, y))


# Texts


def _example(row: dict[str, Any], model: Running | None) -> dict[str, Any]:
    """A text that shows a head: where it comes from, its words, and what stands around the token that it is about."""
    text, tokens, begin = _read(str(row["words"]), model)
    at = int(row["token"]) if len(tokens) == int(row["tokens"]) else -1  # read anew it may have other tokens
    sides = None if at < 0 else ("".join(tokens[begin:at])[-BEFORE:], tokens[at], "".join(tokens[at + 1 :])[:AFTER])
    return {
        "value": float(row["value"]),
        "text": text,
        "file": printable(Path(str(row["file"])).name),
        "line": int(row["line"]),
        "tokens": int(row["tokens"]),
        "token": None if sides is None else at,
        "around": sides,
    }


def _read(words: str, model: Running | None) -> tuple[str, list[str], int]:
    """A text without what the tokenizer adds at its ends, its tokens with that, and how many of these stand before it.

    No tokens where the model is not open: then the text is as the run keeps it.
    """
    if model is None:
        return words, [], 0
    before, _, after = around(model, model.encode("a"))
    first, last = ("".join(model.words_in_text(ids)) for ids in (before, after))
    text = words.removeprefix(first).removesuffix(last)
    return text, model.words_in_text(model.encode(text)), len(before)

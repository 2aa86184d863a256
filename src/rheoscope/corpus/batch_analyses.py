"""Analyses asked of a batch of texts: the numbers of every text, and which texts an analysis refuses."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rheoscope.catalogue import analysis
from rheoscope.corpus.field_cells import OF_A_TEXT, Cells, cells_of
from rheoscope.corpus.histogram import Histogram
from rheoscope.corpus.segments import Piece
from rheoscope.running.runner import Running
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis
from rheoscope.space.traces import Traces

NUMBERED = frozenset({"layer", "head"})
"""Axes whose places are numbers in every model."""
SHORT = 48
"""Tokens of the text that an analysis is asked once, only to see how it names its axes."""


@dataclass(frozen=True)
class Question:
    """An analysis by name, with its settings."""

    name: str
    settings: Mapping[str, Any]

    @property
    def analysis(self) -> Analysis:
        return analysis(self.name)

    @property
    def of_clouds(self) -> bool:
        """Whether it has to know which tokens are massive."""
        return "keep_massive" in self.analysis.settings


@dataclass(frozen=True, eq=False)
class Asked:
    """What an analysis answered to some texts, field by field, and why others have no answer, by their place in the batch."""

    texts: list[int]
    fields: dict[str, Cells]
    refused: dict[int, str]


def on_host(answer: Asked) -> Asked:
    """The same, as arrays of numpy."""
    return replace(answer, fields={name: cells.on_host() for name, cells in answer.fields.items()})


def check(question: Question) -> None:
    """Refuse what cannot be asked of the texts of a corpus, and settings that are not known."""
    one = question.analysis
    if not one.reads_text or "texts" in one.subjects:
        raise RheoscopeError(
            f"{one.name} is not asked of one text after the other; type rheoscope analyse {one.name}, or another of "
            "rheoscope analyses"
        )
    known = [name for name in inspect.signature(one.batch or one.ask).parameters if name in one.settings]
    for name in question.settings:
        if name not in known:
            raise RheoscopeError(
                f"{one.name} has no setting {name!r} for many texts; it has {', '.join(known) or 'none'}"
            )


def in_turn(questions: Sequence[Question]) -> list[Question]:
    """In the order that keeps a GPU busy: those first that need not know which tokens are massive. The others wait until it has said so,
    and then it has the first to do.

    >>> [one.name for one in in_turn([Question("trajectory", {}), Question("readout", {})])]
    ['readout', 'trajectory']
    """
    return sorted(questions, key=lambda one: one.of_clouds)


def asked(model: Running, question: Question, traces: Traces, pieces: Sequence[Piece], tokens: bool = False) -> Asked:
    """One question to all texts of a batch. Where they are refused together, each is asked alone, so that only those are left
    out that are refused themselves."""
    try:
        found = _answers(model, question, traces)
        return Asked([one.text for one in pieces], _reduced(question, found, tokens), {})
    except RheoscopeError as error:
        if len(pieces) == 1:
            return Asked([], {}, {0: str(error)})
    alone = [asked(model, question, traces[at : at + 1], pieces[at : at + 1], tokens) for at in range(len(pieces))]
    refused = {at: one.refused[0] for at, one in enumerate(alone) if one.refused}
    return joined([one for one in alone if not one.refused], refused)


def with_answer(parts: Sequence[Asked], answer: Asked) -> list[Asked]:
    """An answer below those before it. Histograms are counted into those of the first: a shard of many batches holds one of each."""
    if not parts:
        return [answer]
    first, last = dict(parts[0].fields), dict(answer.fields)
    for name, cells in answer.fields.items():
        held = first[name].histogram if name in first else None
        if held is not None and cells.histogram is not None:
            first[name] = replace(first[name], histogram=Histogram.joined([held, cells.histogram]))
            last[name] = replace(cells, histogram=Histogram())
    return [replace(parts[0], fields=first), *parts[1:], replace(answer, fields=last)]


def joined(parts: Sequence[Asked], refused: dict[int, str] | None = None) -> Asked:
    """Several answers as one. A field that some of them lack has no number there."""
    names = dict.fromkeys(name for one in parts for name in one.fields)
    fields = {
        name: Cells.joined([one.fields.get(name) for one in parts], [len(one.texts) for one in parts]) for name in names
    }
    return Asked([text for one in parts for text in one.texts], fields, refused or {})


def named(model: Running, question: Question) -> dict[str, list[Any]]:
    """The names of the places along those axes of an analysis that mean the same in every text, layers and heads apart, which have
    numbers: from what it answers to a short text of any tokens, without draws. Nothing of an analysis that refuses it.

    >>> import rheoscope as rs
    >>> named(rs.load(), Question("distortion", {}))["image"]
    ['query', 'key', 'content']
    """
    one = question.analysis
    axes = {dim for field in one.fields.values() for dim in field.dims} - OF_A_TEXT - NUMBERED
    if not axes:
        return {}
    vocabulary, context = len(model.view.embed), model.view.context or SHORT
    trace = model.trace(torch.linspace(0, vocabulary - 1, min(SHORT, context)).long())
    subject = {"model": model, "trace": trace, "text": trace.ids}
    settings = dict(question.settings) | ({"draws": 0} if "draws" in one.settings else {})
    try:
        found = one.ask(*(subject[name] for name in one.subjects), **settings)
    except RheoscopeError:
        return {}
    return {dim: found[dim].values.tolist() for dim in sorted(axes & set(found.coords) & set(found.dims))}


def _answers(model: Running, question: Question, traces: Traces) -> dict[str, Any]:
    """Every field as (text, *dims): by the analysis's batch, or one text after the other where it has none."""
    one = question.analysis
    if one.batch is not None:
        return one.batch(traces, **question.settings)
    subjects = [{"model": model, "trace": trace, "text": trace.ids} for trace in traces]
    each = [one.ask(*(subject[name] for name in one.subjects), **question.settings) for subject in subjects]
    return {str(name): _side_by_side([found[name] for found in each]) for name in each[0].data_vars}


def _side_by_side(fields: Sequence[Any]) -> Any:
    """The same field of several texts: padded where texts differ in size, tokens at their own places."""
    arrays = [_placed(field) for field in fields]
    if arrays[0].dtype.kind not in "fiub":
        return np.stack([array.astype(str) for array in arrays])
    shape = np.max([array.shape for array in arrays], 0).astype(int)
    whole = arrays[0].dtype.kind in "iub"
    found = np.full((len(arrays), *shape), -1 if whole else np.nan, np.int64 if whole else np.float64)
    for at, array in enumerate(arrays):
        place: tuple[Any, ...] = (at, *(slice(size) for size in array.shape))
        found[place] = array
    return torch.from_numpy(found)


def _placed(field: Any) -> np.ndarray:
    """The array of a field, along `token` as long as the text, with nothing where a token was dropped."""
    array = np.asarray(field.values)
    if "token" not in field.dims or array.dtype.kind not in "fiub" or field.coords.get("token") is None:
        return array
    axis, at = field.dims.index("token"), np.asarray(field.token.values)
    if at.dtype.kind not in "iu":
        return array
    shape = list(array.shape)
    shape[axis] = int(at.max()) + 1 if len(at) else 0
    found = np.full(shape, -1 if array.dtype.kind in "iub" else np.nan, array.dtype)
    found[(*(slice(None),) * axis, at)] = array
    return found


def _reduced(question: Question, found: Mapping[str, Any], tokens: bool) -> dict[str, Cells]:
    fields = question.analysis.fields
    return {name: cells_of(x, fields[name], tokens) for name, x in found.items() if isinstance(x, Tensor | np.ndarray)}

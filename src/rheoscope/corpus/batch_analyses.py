"""Analyses of a batch of texts: the numbers of every text, and the texts that an analysis rejects."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rheoscope.catalogue import analysis_by_name
from rheoscope.corpus.field_cells import TEXT_AXES, Cells, reduce_to_cells
from rheoscope.corpus.histogram import Histogram
from rheoscope.corpus.segments import Segment
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis
from rheoscope.space.traces import Traces

NUMBERED_AXES = frozenset({"layer", "head"})
"""Axes whose coordinates are numbers in every model."""
PROBE_TOKENS = 48
"""The length of the text on which an analysis runs once to learn the labels of its axes."""


@dataclass(frozen=True)
class Request:
    """An analysis by name, with its settings."""

    name: str
    settings: Mapping[str, Any]

    @property
    def analysis(self) -> Analysis:
        return analysis_by_name(self.name)

    @property
    def needs_massive_tokens(self) -> bool:
        """Whether the analysis needs to know which tokens are massive."""
        return "keep_massive" in self.analysis.settings


@dataclass(frozen=True, eq=False)
class BatchResult:
    """The fields of the accepted texts, and the reason for every rejected one by its index in the batch."""

    texts: list[int]
    fields: dict[str, Cells]
    rejections: dict[int, str]


def to_host(result: BatchResult) -> BatchResult:
    """The result as numpy arrays."""
    return replace(result, fields={name: cells.to_host() for name, cells in result.fields.items()})


def check_request(request: Request) -> None:
    """Raise for an analysis that does not run on single texts, and for unknown settings."""
    declared = request.analysis
    if not declared.reads_text or "texts" in declared.subjects:
        raise RheoscopeError(
            Message("{analysis} does not run on single texts, expected one that does", analysis=declared.name),
            Advice("rs.analyses()", "rheoscope analyses"),
        )
    setting_names = [
        name for name in inspect.signature(declared.batch or declared.ask).parameters if name in declared.settings
    ]
    for name in request.settings:
        if name not in setting_names:
            raise RheoscopeError(
                Message(
                    "{analysis} has no setting {setting!r} in a corpus run; its settings are {settings}",
                    analysis=declared.name,
                    setting=name,
                    settings=", ".join(setting_names) or Message("none"),
                )
            )


def order_for_gpu(requests: Sequence[Request]) -> list[Request]:
    """The order that keeps a GPU busy: first the requests that do not need to know which tokens are massive.

    The GPU works on them while the massive tokens are transferred to the host.

    >>> [request.name for request in order_for_gpu([Request("trajectory", {}), Request("readout", {})])]
    ['readout', 'trajectory']
    """
    return sorted(requests, key=lambda request: request.needs_massive_tokens)


def run_request(
    model: RunnableModel, request: Request, traces: Traces, segments: Sequence[Segment], keep_tokens: bool = False
) -> BatchResult:
    """Run one request on all texts of a batch.

    If the batch is refused, each text runs alone, so that only the refused ones are left out.
    """
    try:
        fields = _analysis_fields(model, request, traces)
        return BatchResult([segment.text_id for segment in segments], _to_cells(request, fields, keep_tokens), {})
    except RheoscopeError as error:
        if len(segments) == 1:
            return BatchResult([], {}, {0: error.message})
    single_results = [
        run_request(model, request, traces[index : index + 1], segments[index : index + 1], keep_tokens)
        for index in range(len(segments))
    ]
    rejections = {index: result.rejections[0] for index, result in enumerate(single_results) if result.rejections}
    return merge_results([result for result in single_results if not result.rejections], rejections)


def append_result(results: Sequence[BatchResult], result: BatchResult) -> list[BatchResult]:
    """Append a result.

    Histograms are added to those of the first result, so a shard of many batches holds one per field.
    """
    if not results:
        return [result]
    first_fields, last_fields = dict(results[0].fields), dict(result.fields)
    for name, cells in result.fields.items():
        histogram = first_fields[name].histogram if name in first_fields else None
        if histogram is not None and cells.histogram is not None:
            first_fields[name] = replace(first_fields[name], histogram=Histogram.join([histogram, cells.histogram]))
            last_fields[name] = replace(cells, histogram=Histogram())
    return [replace(results[0], fields=first_fields), *results[1:], replace(result, fields=last_fields)]


def merge_results(results: Sequence[BatchResult], rejections: dict[int, str] | None = None) -> BatchResult:
    """Merge several results. A field that is missing in one of them has no numbers there."""
    names = dict.fromkeys(name for result in results for name in result.fields)
    fields = {
        name: Cells.join([result.fields.get(name) for result in results], [len(result.texts) for result in results])
        for name in names
    }
    return BatchResult([text for result in results for text in result.texts], fields, rejections or {})


def axis_labels_of(model: RunnableModel, request: Request) -> dict[str, list[Any]]:
    """The labels along the axes of an analysis that mean the same in every text.

    Layers and heads are numbers and left out.

    The labels come from a run on a short text of arbitrary tokens, without draws. The result is empty if the
    analysis rejects that text.

    >>> import rheoscope as rs
    >>> axis_labels_of(rs.load(), Request("distortion", {}))["image"]
    ['query', 'key', 'content']
    """
    declared = request.analysis
    axes = {dim for field in declared.fields.values() for dim in field.dims} - TEXT_AXES - NUMBERED_AXES
    if not axes:
        return {}
    vocabulary, context = len(model.view.embed), model.view.context_length or PROBE_TOKENS
    trace = model.trace(torch.linspace(0, vocabulary - 1, min(PROBE_TOKENS, context)).long())
    subject = {"model": model, "trace": trace, "text": trace.ids}
    settings = dict(request.settings) | ({"draws": 0} if "draws" in declared.settings else {})
    try:
        result = declared.ask(*(subject[name] for name in declared.subjects), **settings)
    except RheoscopeError:
        return {}
    return {dim: result[dim].values.tolist() for dim in sorted(axes & set(result.coords) & set(result.dims))}


def _analysis_fields(model: RunnableModel, request: Request, traces: Traces) -> dict[str, Any]:
    """Every field as (text, *dims): from the batched version of the analysis, or text by text if there is none."""
    declared = request.analysis
    if declared.batch is not None:
        return declared.batch(traces, **request.settings)
    subjects = [{"model": model, "trace": trace, "text": trace.ids} for trace in traces]
    results = [declared.ask(*(subject[name] for name in declared.subjects), **request.settings) for subject in subjects]
    return {str(name): _stack_fields([result[name] for result in results]) for name in results[0].data_vars}


def _stack_fields(fields: Sequence[Any]) -> Any:
    """The same field of several texts, padded where sizes differ, with tokens at their own positions."""
    arrays = [_at_token_positions(field) for field in fields]
    if arrays[0].dtype.kind not in "fiub":
        return np.stack([array.astype(str) for array in arrays])
    shape = np.max([array.shape for array in arrays], 0).astype(int)
    is_integer = arrays[0].dtype.kind in "iub"
    stacked = np.full((len(arrays), *shape), -1 if is_integer else np.nan, np.int64 if is_integer else np.float64)
    for index, array in enumerate(arrays):
        region: tuple[Any, ...] = (index, *(slice(size) for size in array.shape))
        stacked[region] = array
    return torch.from_numpy(stacked)


def _at_token_positions(field: Any) -> np.ndarray:
    """The array of a field with the axis `token` as long as the text, and padding where a token was dropped."""
    array = np.asarray(field.values)
    if "token" not in field.dims or array.dtype.kind not in "fiub" or field.coords.get("token") is None:
        return array
    axis, positions = field.dims.index("token"), np.asarray(field.token.values)
    if positions.dtype.kind not in "iu":
        return array
    shape = list(array.shape)
    shape[axis] = int(positions.max()) + 1 if len(positions) else 0
    padded = np.full(shape, -1 if array.dtype.kind in "iub" else np.nan, array.dtype)
    padded[(*(slice(None),) * axis, positions)] = array
    return padded


def _to_cells(request: Request, arrays: Mapping[str, Any], keep_tokens: bool) -> dict[str, Cells]:
    fields = request.analysis.fields
    return {
        name: reduce_to_cells(x, fields[name], keep_tokens)
        for name, x in arrays.items()
        if isinstance(x, Tensor | np.ndarray)
    }

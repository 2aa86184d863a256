"""The state of a running server: opened models, traced texts and cached results."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rheoscope.catalogue import analysis_by_name
from rheoscope.messages.message import Message
from rheoscope.opening import DEFAULT_NAME
from rheoscope.picture.token_labels import printable
from rheoscope.report.analysis_runs import (
    Progress,
    Request,
    Subject,
    empty_results,
    run_analyses,
    run_analysis,
)
from rheoscope.report.card_cache import card_name, find_card
from rheoscope.report.draw_result import picture_of
from rheoscope.report.input_text import check_target
from rheoscope.report.report_plans import REPORTS, analysis_blocks
from rheoscope.report.report_settings import report_request
from rheoscope.report.story import STORY_LINES, lines_of
from rheoscope.running.features import Features
from rheoscope.running.lost_text import lost_text_message
from rheoscope.running.pair_sides import sides_for
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Text
from rheoscope.space.model_cost import projection_parameters
from rheoscope.space.report_run import Settings
from rheoscope.space.results import Results
from rheoscope.space.trace import Trace
from rheoscope.studio import descriptions, pairs, wire
from rheoscope.studio.byte_cache import ByteCache as ByteCache
from rheoscope.studio.content_ids import UNTRAINED_SUFFIX, make_model_id, make_trace_id, result_key
from rheoscope.studio.edit_cost import EditCost, edit_cost
from rheoscope.studio.edited_model import with_edits
from rheoscope.studio.edits import Edit
from rheoscope.studio.features import settings_with_features
from rheoscope.studio.jobs import Job, JobQueue, MissingError
from rheoscope.studio.model_sources import ModelSources
from rheoscope.studio.projected_points import Axes, parse_axes
from rheoscope.studio.query_settings import parse_settings
from rheoscope.studio.report_blocks import block_json
from rheoscope.studio.windows import Window, select_window

if TYPE_CHECKING:
    import xarray

ALL_LINES = frozenset([*(line.name for line in STORY_LINES), "everything"])
"""All lines of the story, and every other analysis of a report."""


class NoResultError(RheoscopeError):
    """An analysis has no result for this text, for example because the text is too short."""


@dataclass(frozen=True)
class Limits:
    """Limits of one server."""

    max_tokens: int = 1024
    max_text_bytes: int = 64_000
    max_jobs: int = 64
    max_cache_bytes: int = 512_000_000


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model under the id that the page uses. `job.result` is the loaded model."""

    id: str
    source: str
    untrained: bool
    job: Job

    @property
    def model(self) -> RunnableModel | None:
        is_loaded = self.job.result.done() and not self.job.result.cancelled() and self.job.result.exception() is None
        return self.job.result.result() if is_loaded else None

    @property
    def json_dict(self) -> dict[str, Any]:
        title = Message("the default model") if self.source == DEFAULT_NAME else printable(self.source)
        title = Message("{model}, untrained", model=title) if self.untrained else title
        return descriptions.model_json(self.id, title, self.model)


@dataclass(eq=False)
class TextEntry:
    """A text in a model, with or without edits: its trace, the results so far and the job that tells its story.

    The text of an encoder-decoder is a source, or a target with its `source`; `model` is the side that reads it.
    """

    id: str
    opened_model: OpenedModel
    model: RunnableModel
    edited_model: RunnableModel
    text: str
    window: Window | None
    edits: tuple[Edit, ...]
    trace: Trace
    results: Results
    source: str | None = None
    job: Job | None = None
    requested_lines: frozenset[str] = frozenset()
    lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def header(self) -> dict[str, Any]:
        """The description of the text for the page. It is computed when the text is traced."""
        trace_header = descriptions.trace_json(
            self.id, self.opened_model.id, self.model.token_strings, self.trace, self.text, self.edits
        )
        spans = self.model.token_spans(self.text)
        return trace_header | {
            "pair": pairs.pair_json(self.model, self.trace),
            "window": None if self.window is None else self.window.json_dict,
            "lost": None if spans is None else lost_text_message(self.text, spans),
        }

    @property
    def subject(self) -> Subject:
        """The subject of the analyses. It contains the edited model."""
        return Subject(self.edited_model, self.model_input, self.trace)

    @property
    def model_input(self) -> Text:
        """The input of the model: the text, or the token ids of a window."""
        return self.text if self.window is None else self.window.model_input

    def head_facts(self, layer: int, head: int) -> dict[str, Any]:
        """The indices of a head, and whether it is edited."""
        is_edited = any((edit.layer, edit.head) == (layer, head) for edit in self.edits)
        return {"layer": layer, "head": head, "edited": is_edited}

    @property
    def n_bytes(self) -> int:
        """Estimated size: the points, half as much for head contributions, and the weights of edited layers."""
        edited_bytes = sum(
            4 * projection_parameters(heads)
            for heads in self.edited_model.view.layer_heads
            if heads not in self.model.view.layer_heads
        )
        return int(1.5 * self.trace.points.nbytes) + len(self.text) + edited_bytes


class Session:
    """The state of one server. Models load one at a time. All other methods are safe to call from several threads."""

    def __init__(
        self,
        load: Callable[..., RunnableModel],
        sources: ModelSources,
        limits: Limits,
        first_model: str = DEFAULT_NAME,
        device: str | None = None,
        dtype: str | None = None,
        features: Features | None = None,
    ) -> None:
        self.load, self.sources, self.limits, self.first_model = load, sources, limits, first_model
        self.device, self.dtype, self.features = device, dtype, features
        self.queue = JobQueue(limits.max_jobs)
        self.cache = ByteCache(limits.max_cache_bytes)
        self.models: dict[str, OpenedModel] = {}
        self.tokens_per_second: dict[str, float] = {}
        """Model id → the speed of its latest forward pass on this machine."""
        self._running_jobs: dict[Any, Job] = {}
        self._lock, self._load_lock = threading.Lock(), threading.Lock()

    # Models

    def open_model(self, source: str, untrained: bool = False) -> OpenedModel:
        """Start to load a model in the background. A model that failed to load is tried again."""
        model_id = make_model_id(source, untrained)
        load_source = self.sources.resolve(source)
        with self._lock:
            opened_model = self.models.get(model_id)
            if opened_model is None or (opened_model.job.is_over and opened_model.model is None):
                work = partial(self._load, source, load_source, untrained)
                job = self.queue.submit("loading", Message("loading {model}", model=model_id), work)
                opened_model = self.models[model_id] = OpenedModel(model_id, source, untrained, job)
            return opened_model

    def _load(self, source: str, load_source: str | None, untrained: bool, job: Job) -> RunnableModel:
        with self._load_lock:
            on_progress = job.progress_callback(job.name)
            model = self.load(
                load_source, device=self.device, dtype=self.dtype, untrained=untrained, progress=on_progress
            )
            pairs.check_reads_texts(model, source)
            self.sources.remember(source)
        return model

    def get_model(self, model_id: str) -> OpenedModel:
        """The model of an id. It is opened if it is allowed and not open yet."""
        if model_id in self.models:
            return self.models[model_id]
        untrained = model_id.endswith(UNTRAINED_SUFFIX)
        return self.open_model(model_id.removesuffix(UNTRAINED_SUFFIX), untrained)

    # Texts

    def get_entry(self, trace_id: str) -> TextEntry:
        entry = self.cache.get(trace_id)
        if entry is None:
            raise MissingError(
                Message("there is no text {trace!r}, or it has expired; send the text again", trace=trace_id[:40])
            )
        if entry.job is not None:
            entry.job.renew()
        return entry

    def lending_text(self, trace_id: str) -> tuple[RunnableModel, Trace]:
        """The model and the trace of a text whose axes another text uses."""
        entry = self.get_entry(trace_id)
        return entry.model, entry.trace

    def cached_axes(self, entry: TextEntry, axes_name: str, space: str) -> Axes:
        """The axes of a text, cached because all its heads use the same ones."""
        key = (entry.id, "axes", axes_name, space)
        axes = self.cache.get(key)
        if axes is None:
            axes = parse_axes(entry.model, entry.trace, axes_name, space, self.lending_text)
            self.cache.put(key, axes, axes.directions.nbytes + axes.centre.nbytes)
        return axes

    def get_or_trace(
        self,
        opened_model: OpenedModel,
        model: RunnableModel,
        text: str,
        edits: Sequence[Edit],
        window_number: int | None = None,
        target: str | None = None,
    ) -> tuple[TextEntry, bool]:
        """The entry of a text, and whether it was cached. A long text has one entry per window.

        For an encoder-decoder it is the cloud of the source `text`, or that of its `target`.
        """
        check_target(target)
        for part in filter(None, (text, target)):
            self.check_text(part)
        side, side_text = sides_for(model, text, target)
        return self._get_or_trace_side(
            opened_model, side, side_text, edits, window_number, None if target is None else text
        )

    def _get_or_trace_side(
        self,
        opened_model: OpenedModel,
        model: RunnableModel,
        text: str,
        edits: Sequence[Edit],
        window_number: int | None,
        source: str | None,
    ) -> tuple[TextEntry, bool]:
        window = select_window(model, text, self.limits.max_tokens, window_number)
        trace_id = make_trace_id(
            card_name(model.view.facts), text, edits, 0 if window is None else window.number, source
        )
        cached_entry = self.cache.get(trace_id)
        if cached_entry is not None:
            return cached_entry, True
        edited_model = with_edits(model, edits)
        model_input = text if window is None else window.model_input
        start = perf_counter()
        trace = edited_model.trace(model_input)
        self.tokens_per_second[opened_model.id] = len(trace) / (perf_counter() - start)
        results = empty_results(Subject(edited_model, model_input, trace), draw_nulls=True)
        entry = TextEntry(
            trace_id, opened_model, model, edited_model, text, window, tuple(edits), trace, results, source
        )
        assert entry.header  # computed here, so that no later request waits for it
        self.cache.put(trace_id, entry, entry.n_bytes)
        return entry, False

    def edit_cost(self, entry: TextEntry) -> EditCost:
        """The cost of the edits of a text, compared with the same text without edits."""
        window_number = None if entry.window is None else entry.window.number
        unedited_entry, _ = self._get_or_trace_side(
            entry.opened_model, entry.model, entry.text, (), window_number, entry.source
        )
        return edit_cost(unedited_entry.trace, entry.trace)

    def check_text(self, text: str) -> None:
        """Refuse a text that is too long or no valid Unicode, before the model runs."""
        n_bytes = len(text.encode("utf-8", "surrogatepass"))
        if n_bytes > self.limits.max_text_bytes:
            limit = self.limits.max_text_bytes
            raise RheoscopeError(
                Message("a text may have at most {limit:,} bytes, got {received:,}", limit=limit, received=n_bytes)
            )
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise RheoscopeError(Message("the text is not valid Unicode: it contains a lone surrogate"))

    # The story

    def start_story(self, entry: TextEntry, line_names: Sequence[str] | None = None) -> tuple[Job, str]:
        """Start to tell lines of the story of a text (default: all). Returns the job and the id of this client."""
        requested = ALL_LINES if line_names is None else frozenset(line_names)
        with entry.lock:
            job = entry.job
            holder_id = None if job is None or not requested <= entry.requested_lines else self.queue.add_holder(job)
            if job is None or holder_id is None or is_lost(job):
                entry.requested_lines |= requested
                work = partial(
                    self._run_story, entry, None if entry.requested_lines >= ALL_LINES else entry.requested_lines
                )
                name, first_event = Message("telling the story"), ("head", entry.header)
                job = entry.job = self.queue.submit("story", name, work, first_event)
                job.renew()
                holder_id = self.queue.add_holder(job)
            return job, holder_id

    def _run_story(self, entry: TextEntry, line_names: Collection[str] | None, job: Job) -> None:
        lines = [line for line in lines_of(entry.model.view) if line_names is None or line.name in line_names]
        published: set[str] = set()

        def on_result(results: Results) -> None:
            job.checkpoint(is_between_analyses=True)
            entry.results = results
            for key in [*results.datasets, *results.skipped]:
                if key not in published:
                    published.add(key)
                    _publish_outcome(job, key, results)
            for line in lines:
                if line.name not in published and results.has_run(*line.needs):
                    published.add(line.name)
                    job.log.publish("line", **descriptions.line_json(line, results))

        runner = partial(self._cached_result, entry)
        card = find_card(entry.model.view)
        if not entry.opened_model.untrained and lines:
            job.log.publish("card", **descriptions.card_json(replace(entry.results, card=card)))
        card = None if entry.edits else card  # it describes the weights as they are
        results = run_analyses(
            entry.subject, self.requests(line_names), True, on_result, job.progress_callback, runner, card
        )
        for line in lines:
            if line.name not in published:
                job.log.publish("line", **descriptions.line_json(line, results))
        if line_names is None:
            job.log.publish("findings", **descriptions.findings_json(results))

    @staticmethod
    def requests(line_names: Collection[str] | None) -> list[Request]:
        """The analyses that lines of the story need. None stands for all analyses of a report."""
        requests = REPORTS["flow"].all_requests({})
        if line_names is None:
            return requests
        needed_analyses = {name for line in STORY_LINES if line.name in line_names for name in line.needs}
        return [request for request in requests if request.name in needed_analyses]

    # Analyses

    def result_or_job(self, entry: TextEntry, name: str, typed_settings: Mapping[str, str]) -> "Job | xarray.Dataset":
        """The cached result of an analysis, or the job that computes it. Equal requests share a job."""
        settings = self._resolve_settings(entry, name, typed_settings)
        key = result_key(entry, name, settings)
        result = self.cache.get(key)
        if result is not None:
            return result
        with self._lock:
            job = self._running_jobs.get(key)
            if job is None or job.is_over:
                work = partial(self._run_analysis, entry, name, settings)
                job = self._running_jobs[key] = self.queue.submit("analysis", name, work)
                job.result.add_done_callback(lambda _: self._running_jobs.pop(key, None))
            return job

    def _resolve_settings(self, entry: TextEntry, name: str, typed_settings: Mapping[str, str]) -> Settings:
        """The settings of the report, overridden by the query. Without the results that these depend on, only the query."""
        settings: Settings = parse_settings(analysis_by_name(name), typed_settings, entry.model)
        with suppress(RheoscopeError):
            settings = report_request(name, **settings).settings_for(entry.results)[""]
        return settings_with_features(self, entry, name, settings)

    def _run_analysis(self, entry: TextEntry, name: str, settings: Settings, job: Job) -> "xarray.Dataset":
        try:
            result = self._cached_result(entry, entry.subject, name, settings, True, job.progress_callback(name))
        except RheoscopeError as error:
            raise NoResultError(error.message, error.advice) from error
        job.log.publish("known", name=name)
        return result

    def _cached_result(
        self,
        entry: TextEntry,
        subject: Subject,
        name: str,
        settings: Settings,
        draw_nulls: bool,
        progress: Progress | None,
    ) -> "xarray.Dataset":
        """The result of an analysis, from the cache if it is there."""
        key = result_key(entry, name, settings)
        result = self.cache.get(key)
        if result is None:
            result = (_run_edited_analysis if entry.edits else run_analysis)(
                subject, name, settings, draw_nulls, progress
            )
            result = result if entry.window is None else result.assign_attrs(window=entry.window.description)
            self.cache.put(key, result, result.nbytes + 2000)
        return result

    def pack_result(self, entry: TextEntry, result: "xarray.Dataset") -> bytes:
        """A result with its pictures in the wire format."""
        pictures = [picture_of(result, entry.model.token_strings)]
        return wire.pack_dataset(result, analysis_by_name(str(result.attrs["analysis"])), pictures)

    def tables_json(self, entry: TextEntry, result: "xarray.Dataset") -> dict[str, Any]:
        """The numbers of a result as the tables that the terminal prints."""
        name = str(result.attrs["analysis"])
        return {
            "blocks": [block_json(block) for block in analysis_blocks(entry.results.with_result(name, result), name)]
        }

    def close(self) -> None:
        self.queue.close()


def _run_edited_analysis(
    subject: Subject, name: str, settings: Settings, draw_nulls: bool, progress: Progress | None
) -> "xarray.Dataset":
    """Run an analysis of an edited model and record the edit in the provenance of the result."""
    note = Message("computed with the edited model; the mean of the text, which centres the edits, is held fixed")
    return run_analysis(subject, name, settings, draw_nulls, progress).assign_attrs(edited=note)


def is_lost(job: Job) -> bool:
    """Whether a job will not produce a result: it was abandoned, or it failed."""
    return ((job.is_abandoned or job.has_expired) and not job.is_over) or (
        job.is_over and job.result.exception() is not None
    )


def _publish_outcome(job: Job, key: str, results: Results) -> None:
    if key in results.datasets:
        job.log.publish("known", name=key)
    else:
        job.log.publish("failed", name=key, reason=results.reason(key))

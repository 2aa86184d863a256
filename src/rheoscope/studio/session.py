"""What a running server holds: models that were opened, texts by what they are, answers by what was asked."""

import hashlib
import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rheoscope.catalogue import analysis_by_name
from rheoscope.picture.token_labels import printable
from rheoscope.report.analysis_runs import (
    Controls,
    Progress,
    Request,
    Subject,
    empty_results,
    run_analyses,
    run_analysis,
)
from rheoscope.report.draw_result import picture_of
from rheoscope.report.progress_bars import control_factories
from rheoscope.report.report_plans import REPORTS
from rheoscope.report.report_settings import report_request
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Text
from rheoscope.space.model_cost import projection_parameters
from rheoscope.space.report_run import Settings
from rheoscope.space.results import Results
from rheoscope.space.trace import Trace
from rheoscope.studio import descriptions, wire
from rheoscope.studio.byte_cache import ByteCache as ByteCache
from rheoscope.studio.edited_model import with_edits
from rheoscope.studio.edits import Edit
from rheoscope.studio.jobs import Job, JobQueue, MissingError
from rheoscope.studio.model_sources import DEFAULT_SOURCE, ModelSources
from rheoscope.studio.projected_points import Axes, parse_axes
from rheoscope.studio.query_settings import parse_settings
from rheoscope.studio.windows import Window, select_window

if TYPE_CHECKING:
    import xarray

ALL_QUESTIONS = frozenset([*(question.name for question in QUESTIONS), "everything"])
"""All questions, and everything else that the report of a text asks."""
UNTRAINED_SUFFIX = ".untrained"
"""At the end of the id of a model at initial weights."""


class NoResultError(RheoscopeError):
    """An analysis has no answer for this text: too few tokens, a model without what it reads, heads that are edited."""


@dataclass(frozen=True)
class Limits:
    """How much one server takes."""

    max_tokens: int = 1024
    max_text_bytes: int = 64_000
    max_jobs: int = 64
    max_cache_bytes: int = 512_000_000
    n_controls: int | None = None
    """Untrained models that the questions stand beside; None: as many as the command takes."""


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model by the name that the page has for it; `job.result` is the model once it is open."""

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
        title = "the default model" if self.source == DEFAULT_SOURCE else self.source
        return descriptions.model_json(self.id, title + ", untrained" * self.untrained, self.model)


@dataclass(eq=False)
class TextEntry:
    """A text in a model under edits (`edited`): its trace, what was found so far, the job that asks the questions."""

    id: str
    opened_model: OpenedModel
    model: RunnableModel
    edited_model: RunnableModel
    text: str
    window: Window | None
    edits: tuple[Edit, ...]
    trace: Trace
    results: Results
    job: Job | None = None
    requested_questions: frozenset[str] = frozenset()
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def header(self) -> dict[str, Any]:
        trace_header = descriptions.trace_json(
            self.id, self.opened_model.id, self.model.token_strings, self.trace, self.text, self.edits
        )
        return trace_header | {"window": None if self.window is None else self.window.json_dict}

    @property
    def subject(self) -> Subject:
        """What analyses are asked about: whatever runs the model runs the edited one."""
        return Subject(self.edited_model, self.model_input, self.trace)

    @property
    def model_input(self) -> Text:
        """What the model reads: the text, or a window of it."""
        return self.text if self.window is None else self.window.model_input

    def head_facts(self, layer: int, head: int) -> dict[str, Any]:
        """Which head is told of, and whether it is an edited one."""
        is_edited = any((edit.layer, edit.head) == (layer, head) for edit in self.edits)
        return {"layer": layer, "head": head, "edited": is_edited}

    @property
    def n_bytes(self) -> int:
        """Points, and half as much again for what heads carried; the weights that edits made wider."""
        edited_bytes = sum(
            4 * projection_parameters(heads)
            for heads in self.edited_model.view.layer_heads
            if heads not in self.model.view.layer_heads
        )
        return int(1.5 * self.trace.points.nbytes) + len(self.text) + edited_bytes


class Session:
    """One server's state. Models are opened one at a time; everything else may be asked by many threads at once."""

    def __init__(
        self,
        load: Callable[..., RunnableModel],
        sources: ModelSources,
        limits: Limits,
        first_model: str = DEFAULT_SOURCE,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.load, self.sources, self.limits, self.first_model = load, sources, limits, first_model
        self.device, self.dtype = device, dtype
        self.queue = JobQueue(limits.max_jobs)
        self.cache = ByteCache(limits.max_cache_bytes)
        self.models: dict[str, OpenedModel] = {}
        self._running_jobs: dict[Any, Job] = {}
        self._lock, self._load_lock = threading.Lock(), threading.Lock()

    # Models

    def open_model(self, source: str, untrained: bool = False) -> OpenedModel:
        """The model of a name, opened behind the back of whoever asks; one that failed is tried again."""
        model_id = make_model_id(source, untrained)
        load_source = self.sources.resolve(source)
        with self._lock:
            opened_model = self.models.get(model_id)
            if opened_model is None or (opened_model.job.is_over and opened_model.model is None):
                work = partial(self._load, source, load_source, untrained)
                job = self.queue.submit("loading", f"loading {model_id}", work)
                opened_model = self.models[model_id] = OpenedModel(model_id, source, untrained, job)
            return opened_model

    def _load(self, source: str, load_source: str | None, untrained: bool, job: Job) -> RunnableModel:
        with self._load_lock:
            on_progress = job.progress_callback("loading")
            model = self.load(
                load_source, device=self.device, dtype=self.dtype, untrained=untrained, progress=on_progress
            )
            self.sources.remember(source)
        return model

    def get_model(self, model_id: str) -> OpenedModel:
        """A model by its id; one that was never opened is opened where that is allowed."""
        if model_id in self.models:
            return self.models[model_id]
        untrained = model_id.endswith(UNTRAINED_SUFFIX)
        return self.open_model(model_id.removesuffix(UNTRAINED_SUFFIX), untrained)

    # Texts

    def get_entry(self, trace_id: str) -> TextEntry:
        entry = self.cache.get(trace_id)
        if entry is None:
            raise MissingError(f"no text {trace_id[:40]!r} is here (any more); post the text again")
        return entry

    def lending_text(self, trace_id: str) -> tuple[RunnableModel, Trace]:
        """A text that lends its axes, and its model."""
        entry = self.get_entry(trace_id)
        return entry.model, entry.trace

    def cached_axes(self, entry: TextEntry, axes_name: str, space: str) -> Axes:
        """Axes that a text is seen on, remembered: every head of it asks for the same."""
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
    ) -> tuple[TextEntry, bool]:
        """A text in an open model, by what it is; says whether it was here already. A long one is read a window at a time."""
        self.check_text(text)
        window = select_window(model, text, self.limits.max_tokens, window_number)
        trace_id = make_trace_id(str(model.view.facts.get("weights")), text, edits, 0 if window is None else window.at)
        cached_entry = self.cache.get(trace_id)
        if cached_entry is not None:
            return cached_entry, True
        edited_model = with_edits(model, edits)
        model_input = text if window is None else window.model_input
        trace = edited_model.trace(model_input)
        results = empty_results(Subject(edited_model, model_input, trace), draw_nulls=True)
        entry = TextEntry(trace_id, opened_model, model, edited_model, text, window, tuple(edits), trace, results)
        self.cache.put(trace_id, entry, entry.n_bytes)
        return entry, False

    def check_text(self, text: str) -> None:
        """Refuse a text that is too long, before anything is computed."""
        n_bytes = len(text.encode("utf-8", "surrogatepass"))
        if n_bytes > self.limits.max_text_bytes:
            raise RheoscopeError(
                f"a text has at most {self.limits.max_text_bytes} bytes here, got {n_bytes}; type a shorter one"
            )
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise RheoscopeError("the text holds half a character (a lone surrogate); type it again")

    # The questions

    def start_questions(self, entry: TextEntry, question_names: Sequence[str] | None = None) -> tuple[Job, str]:
        """The job that asks questions of a text (all, unless they are named), and the id under which this client holds it."""
        requested = ALL_QUESTIONS if question_names is None else frozenset(question_names)
        with entry.lock:
            job = entry.job
            holder_id = (
                None if job is None or not requested <= entry.requested_questions else self.queue.add_holder(job)
            )
            if job is None or holder_id is None or _is_lost(job):
                entry.requested_questions |= requested
                work = partial(
                    self._run_questions,
                    entry,
                    None if entry.requested_questions >= ALL_QUESTIONS else entry.requested_questions,
                )
                job = entry.job = self.queue.submit("told", f"questions {entry.id}", work)
                holder_id = self.queue.add_holder(job)
            return job, holder_id

    def _run_questions(self, entry: TextEntry, question_names: Collection[str] | None, job: Job) -> None:
        questions = [question for question in QUESTIONS if question_names is None or question.name in question_names]
        published: set[str] = set()

        def on_result(results: Results) -> None:
            job.raise_if_stopped()
            entry.results = results
            for key in [*results.datasets, *results.skipped]:
                if key not in published:
                    published.add(key)
                    _publish_outcome(job, key, results)
            for question in questions:
                if question.name not in published and results.has_run(*question.needs):
                    published.add(question.name)
                    job.log.publish("verdict", **descriptions.verdict_json(question, results))

        job.log.publish("head", **entry.header)
        requests, controls = self.requests(entry, question_names), self._control_factories(entry, job)
        results = run_analyses(
            entry.subject,
            requests,
            True,
            controls,
            on_result,
            job.progress_callback,
            partial(self._cached_result, entry),
        )
        for question in questions:
            if question.name not in published:
                job.log.publish("verdict", **descriptions.verdict_json(question, results))
        if question_names is None:
            job.log.publish("findings", **descriptions.findings_json(results))

    def requests(self, entry: TextEntry, question_names: Collection[str] | None) -> list[Request]:
        """What the questions need; where none is named, everything that the report of a text asks."""
        requests = REPORTS["flow"].requests({})
        if question_names is not None:
            needed_analyses = {
                analysis_name
                for question in QUESTIONS
                if question.name in question_names
                for analysis_name in question.needs
            }
            requests = [request for request in requests if request.name in needed_analyses]
        return requests

    def _control_factories(self, entry: TextEntry, job: Job) -> Controls:
        """The same text in untrained models; an edited text, or an untrained model, stands beside none."""
        if entry.edits or entry.opened_model.untrained or self.limits.n_controls == 0:
            return ()
        source = self.sources.resolve(entry.opened_model.source)
        factories = control_factories(
            entry.model, source, self.device, self.dtype, self.limits.n_controls, len(entry.trace)
        )
        return [partial(self._make_control, entry, job, build_control) for build_control in factories]

    def _make_control(self, entry: TextEntry, job: Job, build_control: Callable[[], RunnableModel]) -> Subject:
        job.raise_if_stopped()
        with self._load_lock:
            control_model = build_control()
        return Subject(control_model, entry.model_input, control_model.trace(entry.model_input))

    # Analyses

    def result_or_job(self, entry: TextEntry, name: str, typed_settings: Mapping[str, str]) -> "Job | xarray.Dataset":
        """The answer of an analysis where it is known, else the job that asks it; whoever asks the same shares it."""
        settings = self._resolve_settings(entry, name, typed_settings)
        key = result_key(entry, name, settings)
        result = self.cache.get(key)
        if result is not None:
            return result
        with self._lock:
            job = self._running_jobs.get(key)
            if job is None or job.is_over:
                work = partial(self._run_analysis, entry, name, settings)
                job = self._running_jobs[key] = self.queue.submit("asked", name, work)
                job.result.add_done_callback(lambda _: self._running_jobs.pop(key, None))
            return job

    def _resolve_settings(self, entry: TextEntry, name: str, typed_settings: Mapping[str, str]) -> Settings:
        """As the report asks it, with what was typed; where that stands on answers that are not known, as it is asked alone."""
        analysis = analysis_by_name(name)
        parsed = parse_settings(analysis, typed_settings, entry.model)
        try:
            return report_request(name, **parsed).settings_for(entry.results)[""]
        except RheoscopeError:
            return parsed

    def _run_analysis(self, entry: TextEntry, name: str, settings: Settings, job: Job) -> "xarray.Dataset":
        try:
            result = self._cached_result(entry, entry.subject, name, settings, True, job.progress_callback(name))
        except RheoscopeError as error:
            raise NoResultError(str(error)) from error
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
        """The answer of an analysis, remembered."""
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
        """An answer with its pictures, as it travels."""
        pictures = [picture_of(result, entry.model.token_strings)]
        return wire.pack_dataset(result, analysis_by_name(str(result.attrs["analysis"])), pictures)

    def close(self) -> None:
        self.queue.close()


def make_model_id(source: str, untrained: bool = False) -> str:
    """The id under which the page knows a model.

    >>> make_model_id("gpt2"), make_model_id("gpt2", untrained=True)
    ('gpt2', 'gpt2.untrained')
    """
    return printable(source)[:200] + UNTRAINED_SUFFIX * untrained


def make_trace_id(weights: str, text: str, edits: Sequence[Edit], window_number: int = 0) -> str:
    """The id of a text (or of a window of it, counted from 1) in a model under edits, by what it is.

    >>> make_trace_id("a1", "The keys", ()) == make_trace_id("a1", "The keys", []), len(make_trace_id("a1", "The keys", ()))
    (True, 20)
    """
    content = json.dumps(
        [weights, text, [edit.json_dict for edit in edits], *([window_number] if window_number else [])], sort_keys=True
    )
    return hashlib.sha256(content.encode()).hexdigest()[:20]


def result_key(entry: TextEntry, name: str, settings: Settings) -> tuple[str, str, str]:
    """An answer by what it is about (a text or weights alone, under edits), its name and the settings that are not its defaults."""
    analysis = analysis_by_name(name)
    subject_id = entry.id if analysis.reads_text or entry.edits else str(entry.model.view.facts.get("weights"))
    defaults = {setting: _json_text(parameter.default) for setting, parameter in analysis.settings.items()}
    changed = {
        setting: value_text
        for setting, value in settings.items()
        if (value_text := _json_text(value)) != defaults.get(setting)
    }
    return subject_id, name, json.dumps(changed, sort_keys=True)


def _json_text(value: Any) -> str:
    return json.dumps(value, default=lambda unserialisable: type(unserialisable).__name__)


def _run_edited_analysis(
    subject: Subject, name: str, settings: Settings, draw_nulls: bool, progress: Progress | None
) -> "xarray.Dataset":
    """An answer about an edited model says so."""
    note = "points, runs and operators of the edited model; the mean of the text that edits are centred by is held"
    return run_analysis(subject, name, settings, draw_nulls, progress).assign_attrs(edited=note)


def _is_lost(job: Job) -> bool:
    """Whether nothing will come of it any more."""
    return (job.is_abandoned and not job.is_over) or (job.is_over and job.result.exception() is not None)


def _publish_outcome(job: Job, key: str, results: Results) -> None:
    if key in results.datasets:
        job.log.publish("known", name=key)
    else:
        job.log.publish("failed", name=key, reason=results.reason(key))

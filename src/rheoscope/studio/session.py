"""What a running server holds: models that were opened, texts by what they are, answers by what was asked."""

import hashlib
import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rheoscope.catalogue import analysis
from rheoscope.picture.token_labels import printable
from rheoscope.report.draw_result import picture_of
from rheoscope.report.progress_bars import untrained_controls
from rheoscope.report.report_plans import JOBS
from rheoscope.report.report_settings import asked
from rheoscope.report.run_analyses import Ask, Beside, Progress, Settings, Subject, answer, ask, begun
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.running.runner import Running
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Text
from rheoscope.space.model_cost import projections
from rheoscope.space.results import Answers
from rheoscope.space.trace import Trace
from rheoscope.studio import descriptions, wire
from rheoscope.studio.byte_cache import Kept as Cache
from rheoscope.studio.edited_model import under
from rheoscope.studio.edits import Edit
from rheoscope.studio.jobs import Job, MissingError, Queue
from rheoscope.studio.model_sources import DEFAULT, Sources
from rheoscope.studio.projected_points import Axes, axes_of
from rheoscope.studio.query_settings import settings_of
from rheoscope.studio.windows import Window, window_of

if TYPE_CHECKING:
    import xarray

EVERYTHING = frozenset([*(one.name for one in QUESTIONS), "everything"])
"""All questions, and everything else that the report of a text asks."""
UNTRAINED = ".untrained"
"""At the end of the id of a model at initial weights."""


class NoAnswerError(RheoscopeError):
    """An analysis has no answer for this text: too few tokens, a model without what it reads, heads that are edited."""


@dataclass(frozen=True)
class Limits:
    """How much one server takes."""

    tokens: int = 1024
    text_bytes: int = 64_000
    jobs: int = 64
    kept_bytes: int = 512_000_000
    controls: int | None = None
    """Untrained models that the questions stand beside; None: as many as the command takes."""


@dataclass(frozen=True, eq=False)
class Opened:
    """A model by the name that the page has for it; `job.result` is the model once it is open."""

    id: str
    source: str
    untrained: bool
    job: Job

    @property
    def model(self) -> Running | None:
        done = self.job.result.done() and not self.job.result.cancelled() and self.job.result.exception() is None
        return self.job.result.result() if done else None

    @property
    def told(self) -> dict[str, Any]:
        title = "the default model" if self.source == DEFAULT else self.source
        return descriptions.of_model(self.id, title + ", untrained" * self.untrained, self.model)


@dataclass(eq=False)
class Entry:
    """A text in a model under edits (`edited`): its trace, what was found so far, the job that asks the questions."""

    id: str
    opened: Opened
    model: Running
    edited: Running
    text: str
    window: Window | None
    edits: tuple[Edit, ...]
    trace: Trace
    so_far: Answers
    job: Job | None = None
    asked: frozenset[str] = frozenset()
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def head(self) -> dict[str, Any]:
        told = descriptions.of_trace(self.id, self.opened.id, self.model.words, self.trace, self.text, self.edits)
        return told | {"window": None if self.window is None else self.window.told}

    @property
    def subject(self) -> Subject:
        """What analyses are asked about: whatever runs the model runs the edited one."""
        return Subject(self.edited, self.said, self.trace)

    @property
    def said(self) -> Text:
        """What the model reads: the text, or a window of it."""
        return self.text if self.window is None else self.window.said

    def about(self, layer: int, head: int) -> dict[str, Any]:
        """Which head is told of, and whether it is an edited one."""
        edited = any((one.layer, one.head) == (layer, head) for one in self.edits)
        return {"layer": layer, "head": head, "edited": edited}

    @property
    def bytes(self) -> int:
        """Points, and half as much again for what heads carried; the weights that edits made wider."""
        wide = sum(4 * projections(one) for one in self.edited.view.blocks if one not in self.model.view.blocks)
        return int(1.5 * self.trace.points.nbytes) + len(self.text) + wide


class Session:
    """One server's state. Models are opened one at a time; everything else may be asked by many threads at once."""

    def __init__(
        self,
        load: Callable[..., Running],
        sources: Sources,
        limits: Limits,
        first: str = DEFAULT,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.load, self.sources, self.limits, self.first = load, sources, limits, first
        self.device, self.dtype = device, dtype
        self.queue = Queue(limits.jobs)
        self.cache = Cache(limits.kept_bytes)
        self.models: dict[str, Opened] = {}
        self._asked: dict[Any, Job] = {}
        self._lock, self._loading = threading.Lock(), threading.Lock()

    # Models

    def open(self, source: str, untrained: bool = False) -> Opened:
        """The model of a name, opened behind the back of whoever asks; one that failed is tried again."""
        name = model_id(source, untrained)
        taken = self.sources.checked(source)
        with self._lock:
            known = self.models.get(name)
            if known is None or (known.job.over and known.model is None):
                work = partial(self._load, source, taken, untrained)
                job = self.queue.begin("loading", f"loading {name}", work)
                known = self.models[name] = Opened(name, source, untrained, job)
            return known

    def _load(self, source: str, taken: str | None, untrained: bool, job: Job) -> Running:
        with self._loading:
            tell = job.progress("loading")
            model = self.load(taken, device=self.device, dtype=self.dtype, untrained=untrained, progress=tell)
            self.sources.remember(source)
        return model

    def opened(self, name: str) -> Opened:
        """A model by its id; one that was never opened is opened where that is allowed."""
        if name in self.models:
            return self.models[name]
        untrained = name.endswith(UNTRAINED)
        return self.open(name.removesuffix(UNTRAINED), untrained)

    # Texts

    def entry(self, name: str) -> Entry:
        found = self.cache.get(name)
        if found is None:
            raise MissingError(f"no text {name[:40]!r} is here (any more); post the text again")
        return found

    def lent(self, name: str) -> tuple[Running, Trace]:
        """A text that lends its axes, and its model."""
        found = self.entry(name)
        return found.model, found.trace

    def axes(self, entry: Entry, axes: str, space: str) -> Axes:
        """Axes that a text is seen on, remembered: every head of it asks for the same."""
        key = (entry.id, "axes", axes, space)
        found = self.cache.get(key)
        if found is None:
            found = axes_of(entry.model, entry.trace, axes, space, self.lent)
            self.cache.put(key, found, found.along.nbytes + found.centre.nbytes)
        return found

    def trace(
        self, opened: Opened, model: Running, text: str, edits: Sequence[Edit], window: int | None = None
    ) -> tuple[Entry, bool]:
        """A text in an open model, by what it is; says whether it was here already. A long one is read a window at a time."""
        self.check(text)
        part = window_of(model, text, self.limits.tokens, window)
        name = content_id(str(model.view.facts.get("weights")), text, edits, 0 if part is None else part.at)
        found = self.cache.get(name)
        if found is not None:
            return found, True
        edited = under(model, edits)
        said = text if part is None else part.said
        trace = edited.trace(said)
        so_far = begun(Subject(edited, said, trace), nulls=True)
        entry = Entry(name, opened, model, edited, text, part, tuple(edits), trace, so_far)
        self.cache.put(name, entry, entry.bytes)
        return entry, False

    def check(self, text: str) -> None:
        """Refuse a text that is too long, before anything is computed."""
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > self.limits.text_bytes:
            raise RheoscopeError(
                f"a text has at most {self.limits.text_bytes} bytes here, got {size}; type a shorter one"
            )
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise RheoscopeError("the text holds half a character (a lone surrogate); type it again")

    # The questions

    def tell(self, entry: Entry, questions: Sequence[str] | None = None) -> tuple[Job, str]:
        """The job that asks questions of a text (all, unless they are named), and the id under which this client holds it."""
        wanted = EVERYTHING if questions is None else frozenset(questions)
        with entry.lock:
            job = entry.job
            held = None if job is None or not wanted <= entry.asked else self.queue.hold(job)
            if job is None or held is None or _lost(job):
                entry.asked |= wanted
                work = partial(self._tell, entry, None if entry.asked >= EVERYTHING else entry.asked)
                job = entry.job = self.queue.begin("told", f"questions {entry.id}", work)
                held = self.queue.hold(job)
            return job, held

    def _tell(self, entry: Entry, questions: Collection[str] | None, job: Job) -> None:
        wanted = [one for one in QUESTIONS if questions is None or one.name in questions]
        told: set[str] = set()

        def hear(so_far: Answers) -> None:
            job.check()
            entry.so_far = so_far
            for key in [*so_far.found, *so_far.left_out]:
                if key not in told:
                    told.add(key)
                    _tell_of(job, key, so_far)
            for one in wanted:
                if one.name not in told and so_far.asked(*one.needs):
                    told.add(one.name)
                    job.log.tell("verdict", **descriptions.of_verdict(one, so_far))

        job.log.tell("head", **entry.head)
        asks, beside = self.asks(entry, questions), self._beside(entry, job)
        so_far = ask(entry.subject, asks, True, beside, hear, job.progress, partial(self._known, entry))
        for one in wanted:
            if one.name not in told:
                job.log.tell("verdict", **descriptions.of_verdict(one, so_far))
        if questions is None:
            job.log.tell("findings", **descriptions.of_findings(so_far))

    def asks(self, entry: Entry, questions: Collection[str] | None) -> list[Ask]:
        """What the questions need; where none is named, everything that the report of a text asks."""
        every = JOBS["flow"].asks({})
        if questions is not None:
            needed = {name for one in QUESTIONS if one.name in questions for name in one.needs}
            every = [one for one in every if one.name in needed]
        return every

    def _beside(self, entry: Entry, job: Job) -> Beside:
        """The same text in untrained models; an edited text, or an untrained model, stands beside none."""
        if entry.edits or entry.opened.untrained or self.limits.controls == 0:
            return ()
        source = self.sources.checked(entry.opened.source)
        makers = untrained_controls(
            entry.model, source, self.device, self.dtype, self.limits.controls, len(entry.trace)
        )
        return [partial(self._control, entry, job, make) for make in makers]

    def _control(self, entry: Entry, job: Job, make: Callable[[], Running]) -> Subject:
        job.check()
        with self._loading:
            control = make()
        return Subject(control, entry.said, control.trace(entry.said))

    # Analyses

    def analysis(self, entry: Entry, name: str, typed: Mapping[str, str]) -> "Job | xarray.Dataset":
        """The answer of an analysis where it is known, else the job that asks it; whoever asks the same shares it."""
        settings = self._settings(entry, name, typed)
        key = answer_key(entry, name, settings)
        found = self.cache.get(key)
        if found is not None:
            return found
        with self._lock:
            job = self._asked.get(key)
            if job is None or job.over:
                work = partial(self._answer, entry, name, settings)
                job = self._asked[key] = self.queue.begin("asked", name, work)
                job.result.add_done_callback(lambda _: self._asked.pop(key, None))
            return job

    def _settings(self, entry: Entry, name: str, typed: Mapping[str, str]) -> Settings:
        """As the report asks it, with what was typed; where that stands on answers that are not known, as it is asked alone."""
        one = analysis(name)
        given = settings_of(one, typed, entry.model)
        try:
            return asked(name, **given).settings(entry.so_far)[""]
        except RheoscopeError:
            return given

    def _answer(self, entry: Entry, name: str, settings: Settings, job: Job) -> "xarray.Dataset":
        try:
            found = self._known(entry, entry.subject, name, settings, True, job.progress(name))
        except RheoscopeError as error:
            raise NoAnswerError(str(error)) from error
        job.log.tell("known", name=name)
        return found

    def _known(
        self, entry: Entry, subject: Subject, name: str, settings: Settings, nulls: bool, progress: Progress | None
    ) -> "xarray.Dataset":
        """The answer of an analysis, remembered."""
        key = answer_key(entry, name, settings)
        found = self.cache.get(key)
        if found is None:
            found = (_under_edits if entry.edits else answer)(subject, name, settings, nulls, progress)
            found = found if entry.window is None else found.assign_attrs(window=entry.window.in_words)
            self.cache.put(key, found, found.nbytes + 2000)
        return found

    def packed(self, entry: Entry, found: "xarray.Dataset") -> bytes:
        """An answer with its pictures, as it travels."""
        pictures = [picture_of(found, entry.model.words)]
        return wire.of_dataset(found, analysis(str(found.attrs["analysis"])), pictures)

    def close(self) -> None:
        self.queue.close()


def model_id(source: str, untrained: bool = False) -> str:
    """The id under which the page knows a model.

    >>> model_id("gpt2"), model_id("gpt2", untrained=True)
    ('gpt2', 'gpt2.untrained')
    """
    return printable(source)[:200] + UNTRAINED * untrained


def content_id(weights: str, text: str, edits: Sequence[Edit], window: int = 0) -> str:
    """The id of a text (or of a window of it, counted from 1) in a model under edits, by what it is.

    >>> content_id("a1", "The keys", ()) == content_id("a1", "The keys", []), len(content_id("a1", "The keys", ()))
    (True, 20)
    """
    said = json.dumps([weights, text, [one.told for one in edits], *([window] if window else [])], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:20]


def answer_key(entry: Entry, name: str, settings: Settings) -> tuple[str, str, str]:
    """An answer by what it is about (a text or weights alone, under edits), its name and the settings that are not its defaults."""
    one = analysis(name)
    about = entry.id if one.reads_text or entry.edits else str(entry.model.view.facts.get("weights"))
    usual = {setting: _as_text(parameter.default) for setting, parameter in one.settings.items()}
    other = {setting: said for setting, value in settings.items() if (said := _as_text(value)) != usual.get(setting)}
    return about, name, json.dumps(other, sort_keys=True)


def _as_text(value: Any) -> str:
    return json.dumps(value, default=lambda one: type(one).__name__)


def _under_edits(
    subject: Subject, name: str, settings: Settings, nulls: bool, progress: Progress | None
) -> "xarray.Dataset":
    """An answer about an edited model says so."""
    told = "points, runs and operators of the edited model; the mean of the text that edits are centred by is held"
    return answer(subject, name, settings, nulls, progress).assign_attrs(edited=told)


def _lost(job: Job) -> bool:
    """Whether nothing will come of it any more."""
    return (job.doomed and not job.over) or (job.over and job.result.exception() is not None)


def _tell_of(job: Job, key: str, so_far: Answers) -> None:
    if key in so_far.found:
        job.log.tell("known", name=key)
    else:
        job.log.tell("failed", name=key, reason=so_far.left_out[key])

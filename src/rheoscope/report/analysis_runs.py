"""Run analyses on a model and a text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rheoscope.attention.memory import explain_out_of_memory
from rheoscope.catalogue import analysis_by_name
from rheoscope.messages.advice import use
from rheoscope.running.progress import current_listener, listen
from rheoscope.space.model import Model
from rheoscope.space.report_run import Settings, SettingsByKey
from rheoscope.space.results import Results
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

Progress = Callable[[int, int], None]
OnResult = Callable[[Results], object]
OnProgress = Callable[[str], Progress]
"""Called with the name of the running analysis. Returns the function that reports its progress."""


@dataclass(frozen=True, eq=False)
class Subject:
    """The input of analyses: a model, and a text if there is one."""

    model: Model
    text: Any = None
    trace: Trace | None = None

    def argument(self, name: str) -> Any:
        """The value of a parameter of this name."""
        return {
            "model": self.model,
            "view": self.model.view,
            "trace": self.trace,
            "text": self.text,
            "texts": self.text if isinstance(self.text, list) else [self.text],
        }[name]


Runner = Callable[[Subject, str, Settings, bool, Progress | None], "xarray.Dataset"]
"""Runs one analysis: subject, name, settings, whether nulls are drawn, and a progress callback → result."""


def _no_settings(results: Results) -> dict[str, Settings]:
    return {"": {}}


@dataclass(frozen=True, eq=False)
class Request:
    """One analysis of the catalogue and its settings.

    `settings_for` derives the settings from the results so far: {"": settings}, or one entry per run, keyed by a suffix.
    `waits_for` are the analyses whose results it reads, by default all earlier ones.
    """

    name: str
    settings_for: SettingsByKey = _no_settings
    waits_for: tuple[str, ...] | None = None

    def settings_by_key(self, results: Results) -> dict[str, Settings]:
        return {f"{self.name} {suffix}".strip(): settings for suffix, settings in self.settings_for(results).items()}


RunRequest = Callable[[Request, Results], Results]
"""Runs one request, given the results that it needs, and adds its own."""
Schedule = Callable[[RunRequest, Sequence[Request], Results], Iterator[Results]]
"""Runs requests and yields the results after each, in their order."""


def request(name: str, **settings: Any) -> Request:
    """One run of an analysis with fixed settings."""
    return Request(name, lambda results: {"": settings})


def run_analyses(
    subject: Subject,
    requests: Sequence[Request],
    draw_nulls: bool = True,
    on_result: OnResult = lambda results: None,
    on_progress: OnProgress | None = None,
    runner: "Runner | None" = None,
    card: "xarray.Dataset | None" = None,
    schedule: "Schedule | None" = None,
) -> Results:
    """Run all requests. An analysis that raises is skipped with its reason, and the others still run.

    `on_result` gets the Results so far after each request, `on_progress` the name of the running analysis. Without `draw_nulls`
    no null is sampled. `runner` replaces `run_analysis`, for example with a cache. `card` is the card of the model, if any.
    `schedule` decides when requests run, by default one after the other.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> sorted(run_analyses(Subject(model, "a", model.trace("a")), [Request("clusters"), Request("trajectory")]).skipped)
    ['clusters']
    """

    def run(request: Request, results: Results) -> Results:
        return _run_request(subject, request, results, on_progress, runner or run_analysis)

    last = replace(empty_results(subject, draw_nulls), card=card)
    for results in (schedule or run_in_turn)(run, requests, last):
        on_result(results)
        last = results
    return last


def run_in_turn(run: RunRequest, requests: Sequence[Request], results: Results) -> Iterator[Results]:
    """The results after each request, which run one after the other."""
    for request in requests:
        results = run(request, results)
        yield results


def empty_results(subject: Subject, draw_nulls: bool) -> Results:
    """Results without any analysis."""
    return Results(subject.model.view, subject.model.token_strings, subject.trace, has_nulls=draw_nulls)


LONG_TEXT = 256
"""The number of tokens above which a text is long, so that expensive analyses run with smaller settings."""


def is_long(trace: Trace | None) -> bool:
    """Whether a text is long enough for the settings of long texts."""
    return trace is not None and len(trace) > LONG_TEXT


def _run_request(
    subject: Subject, request: Request, results: Results, on_progress: OnProgress | None, runner: "Runner"
) -> Results:
    try:
        settings_by_key = request.settings_by_key(results)
    except Exception as error:
        return results.with_failure(request.name, error)
    for key, settings in settings_by_key.items():
        progress = None if on_progress is None else on_progress(key)
        try:
            results = results.with_result(key, runner(subject, request.name, settings, results.has_nulls, progress))
        except Exception as error:  # the other analyses still run
            results = results.with_failure(key, error)
    return results


def run_analysis(
    subject: Subject, name: str, settings: Settings, draw_nulls: bool = True, progress: Progress | None = None
) -> "xarray.Dataset":
    """Run one analysis on a subject. Without `draw_nulls` it samples no null.

    Without `progress`, the progress listener of this thread is called.
    """
    spec, on_progress = analysis_by_name(name), progress or current_listener()
    arguments = {parameter: subject.argument(parameter) for parameter in spec.subjects}
    settings = settings if draw_nulls or "draws" not in spec.settings else settings | {"draws": 0}
    spec.check_settings(settings)
    if on_progress is not None and spec.reports_progress:
        settings = settings | {"progress": on_progress}
    with (
        listen(None if spec.reports_progress else on_progress),
        explain_out_of_memory(name, use(device="cpu")),
    ):
        return spec.ask(**arguments | settings)

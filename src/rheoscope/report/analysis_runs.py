"""Run analyses on a model and a text, with untrained controls in a second thread."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
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

MAX_CONTROLS = 4
"""The number of untrained controls that serve as a null distribution. Fewer have no usable spread."""
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
Controls = Sequence[Callable[[], Subject]]
"""Each builds one untrained control when it is needed."""


def _no_settings(results: Results) -> dict[str, Settings]:
    return {"": {}}


@dataclass(frozen=True, eq=False)
class Request:
    """One analysis of the catalogue and its settings.

    `settings_for` derives the settings from the results so far: {"": settings}, or one entry per run, keyed by a suffix.
    """

    name: str
    settings_for: SettingsByKey = _no_settings

    def settings_by_key(self, results: Results) -> dict[str, Settings]:
        return {f"{self.name} {suffix}".strip(): settings for suffix, settings in self.settings_for(results).items()}


def request(name: str, **settings: Any) -> Request:
    """One run of an analysis with fixed settings."""
    return Request(name, lambda results: {"": settings})


def run_analyses(
    subject: Subject,
    requests: Sequence[Request],
    draw_nulls: bool = True,
    controls: Controls = (),
    on_result: OnResult = lambda results: None,
    on_progress: OnProgress | None = None,
    runner: "Runner | None" = None,
) -> Results:
    """Run all requests. An analysis that raises is skipped with its reason, and the others still run.

    `on_result` gets the Results so far after each request, `on_progress` the name of the running analysis. Without `draw_nulls`
    no null is sampled. `controls` build the same text in untrained models. A second thread runs the declared analyses on them,
    without nulls, and then takes requests from the end of the list. `runner` replaces `run_analysis`, for example with a cache.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> sorted(run_analyses(Subject(model, "a", model.trace("a")), [Request("clusters"), Request("trajectory")]).skipped)
    ['clusters']
    """
    results, runner = empty_results(subject, draw_nulls), runner or run_analysis
    run = partial(_run_request, subject, on_progress=on_progress, runner=runner)
    with _background_thread() as submit:
        control_futures = submit_controls(
            controls, [request for request in requests if _n_controls(request.name, subject)], submit
        )
        early_requests = [
            request
            for request in reversed(requests)
            if control_futures and not analysis_by_name(request.name).depends_on
        ]
        early_requests.sort(key=lambda request: not analysis_by_name(request.name).start_early)
        early_futures = {
            request: submit(_run_request, subject, request, results, None, runner) for request in early_requests
        }
        for next_index, request in enumerate(requests, 1):
            if _cancel_if_unstarted(early_futures.get(request)):
                results = run(request, results)
            else:
                early_futures |= _run_while_waiting(
                    early_futures[request], requests[next_index:], early_futures, results, run
                )
                results = results.merged_with(early_futures[request].result())
            if request.name in control_futures:
                early_futures |= _run_while_waiting(
                    control_futures[request.name], requests[next_index:], early_futures, results, run
                )
                results = _add_controls(results, control_futures[request.name])
            on_result(results)
    return results


EarlyResults = dict[Request, "Future[Results]"]
"""Requests that run before their turn, with their results."""


def _cancel_if_unstarted(future: "Future[Any] | None") -> bool:
    """Cancel the job if it has not started, so that the caller runs it. Returns whether the caller should."""
    return future is None or future.cancel()


def _run_while_waiting(
    awaited_future: "Future[Any]",
    later_requests: Sequence[Request],
    early_futures: EarlyResults,
    results: Results,
    run: Callable[[Request, Results], Results],
) -> EarlyResults:
    """Run later requests until the awaited result is there, if they have not started and have all they depend on."""
    early_results: EarlyResults = {}
    for request in later_requests:
        if awaited_future.done():
            break
        if _can_run(request.name, results) and _cancel_if_unstarted(early_futures.get(request)):
            early_results[request] = Future()
            early_results[request].set_result(run(request, results))
    return early_results


def empty_results(subject: Subject, draw_nulls: bool) -> Results:
    """Results without any analysis."""
    return Results(subject.model.view, subject.model.token_strings, subject.trace, has_nulls=draw_nulls)


LONG_TEXT = 256
"""The number of tokens above which a text is long, so that expensive analyses run with smaller settings."""


def is_long(trace: Trace | None) -> bool:
    """Whether a text is long enough for the settings of long texts."""
    return trace is not None and len(trace) > LONG_TEXT


def _n_controls(name: str, subject: Subject) -> int:
    """How many untrained controls an analysis is run on for comparison."""
    spec = analysis_by_name(name)
    return 0 if is_long(subject.trace) and not spec.long_text_controls else spec.controls


def _can_run(name: str, results: Results) -> bool:
    """Whether everything that an analysis depends on has run."""
    return results.has_run(*analysis_by_name(name).depends_on)


ControlResults = tuple[tuple[Subject, Results], ...]
"""Every control with its results so far."""


@contextmanager
def _background_thread() -> "Iterator[Callable[..., Future[Any]]]":
    """A thread that runs submitted jobs in order. Jobs that have not started at the end are dropped.

    A job has the progress listener of the thread that submitted it.
    """
    executor, is_interrupted = ThreadPoolExecutor(1), False

    def submit(work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        return executor.submit(copy_context().run, work, *arguments)

    try:
        yield submit
    except KeyboardInterrupt:
        is_interrupted = True  # the command ends at once, without waiting for the running analysis
        raise
    finally:
        executor.shutdown(wait=not is_interrupted, cancel_futures=True)


def submit_controls(
    controls: Controls, requests: Sequence[Request], submit: "Callable[..., Future[Any]]"
) -> "dict[str, Future[ControlResults]]":
    """Submit the runs on the controls. Returns their results by the name of the analysis."""
    if not controls or not requests:
        return {}
    previous: Future[ControlResults] = submit(tuple)
    futures: dict[str, Future[ControlResults]] = {}
    for request in requests:
        previous = futures[request.name] = submit(_extend_controls, previous, request, controls)
    return futures


def _extend_controls(previous: "Future[ControlResults]", request: Request, controls: Controls) -> ControlResults:
    """The controls with one more analysis. Controls are built as soon as an analysis needs them."""
    control_results, n_controls = previous.result(), analysis_by_name(request.name).controls
    control_results += tuple(
        (subject := make_subject(), empty_results(subject, draw_nulls=False))
        for make_subject in controls[len(control_results) : n_controls]
    )
    return tuple(
        (control, _run_request(control, request, results, None, run_analysis) if index < n_controls else results)
        for index, (control, results) in enumerate(control_results)
    )


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


def _add_controls(results: Results, future: "Future[ControlResults]") -> Results:
    try:
        return replace(results, controls=tuple(control_results for _, control_results in future.result()))
    except Exception as error:
        return results.with_failure("untrained control", error)


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

"""Analyses in two lanes: two that do not need each other run at the same time, each on half of the cores."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import reduce

import torch

from rheoscope.report.analysis_runs import Request, RunRequest, is_long
from rheoscope.space.results import Results
from rheoscope.space.trace import Trace

N_LANES = 2


def has_lanes(trace: Trace | None) -> bool:
    """Whether two analyses of this text at once save time: it is short, on a CPU, and torch may use two cores.

    On a short text most operations are too small for a second core. A long text needs the memory and all cores for one analysis.
    """
    on_cpu = trace is not None and trace.points.device.type == "cpu"
    return on_cpu and not is_long(trace) and torch.get_num_threads() >= N_LANES


def run_in_lanes(run: RunRequest, requests: Sequence[Request], first: Results) -> Iterator[Results]:
    """The results after each request, in their order. A request starts when those that it waits for have ended."""
    n_threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(N_LANES, initializer=torch.set_num_threads, initargs=(max(1, n_threads // N_LANES),))
    outcomes: list[tuple[str, Future[Results]]] = []
    try:
        for request in requests:
            needed = [outcome for name, outcome in outcomes if request.waits_for is None or name in request.waits_for]
            outcome = pool.submit(copy_context().run, _run_after, run, request, needed, first)
            outcomes.append((request.name, outcome))
        results = first
        for _, outcome in outcomes:
            results = results.merged_with(outcome.result())
            yield results
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(n_threads)  # set_num_threads in a lane also sets the default of later threads


def _run_after(run: RunRequest, request: Request, needed: Sequence["Future[Results]"], first: Results) -> Results:
    """Run a request on the outcomes that it needs. They were submitted before it, so a lane never waits for itself."""
    return run(request, reduce(Results.merged_with, (outcome.result() for outcome in needed), first))

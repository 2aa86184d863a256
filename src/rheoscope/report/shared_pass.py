"""Analyses of a streamed model that move through its blocks together, so that each block is read once for all of them."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import partial, reduce

from rheoscope.catalogue import analysis_by_name
from rheoscope.report.analysis_runs import Request, RunRequest, Schedule
from rheoscope.running.block_turns import BlockTurns
from rheoscope.running.streamed_weights import StreamedWeights
from rheoscope.space.results import Results


def share_passes(weights: StreamedWeights) -> Schedule:
    """A schedule that runs the analyses of a trace in one pass over the blocks. Those that run the model follow one by one."""
    return partial(run_in_shared_pass, weights)


def run_in_shared_pass(
    weights: StreamedWeights, run: RunRequest, requests: Sequence[Request], first: Results
) -> Iterator[Results]:
    """The results after each request, in their order."""
    outcomes: dict[int, Future[Results]] = {}
    pool = ThreadPoolExecutor(max(1, len(requests)))
    try:
        with weights.taking_turns() as turns:
            for index, request in enumerate(requests):
                needed = positions(requests[:index], request.waits_for)
                if is_shareable(request) and all(position in outcomes for position in needed):
                    before = [outcomes[position] for position in needed]
                    outcomes[index] = pool.submit(copy_context().run, _run_in_turn, turns, run, request, before, first)
            wait(outcomes.values())
        results = first
        for index, request in enumerate(requests):
            results = results.merged_with(outcomes[index].result()) if index in outcomes else run(request, results)
            yield results
    finally:
        pool.shutdown(cancel_futures=True)


def is_shareable(request: Request) -> bool:
    """Whether an analysis only reads a trace or the weights. Others run the model, which reads all blocks for each run."""
    return analysis_by_name(request.name).needs != "model"


def positions(earlier: Sequence[Request], waits_for: tuple[str, ...] | None) -> list[int]:
    """The positions of the earlier requests that a request waits for. None waits for all.

    >>> positions([Request("a"), Request("b")], ("b", "c")), positions([Request("a"), Request("b")], None)
    ([1], [0, 1])
    """
    return [index for index, request in enumerate(earlier) if waits_for is None or request.name in waits_for]


def _run_in_turn(
    turns: BlockTurns, run: RunRequest, request: Request, before: Sequence["Future[Results]"], first: Results
) -> Results:
    """Run a request on the outcomes that it needs, which were submitted before it."""
    results = reduce(Results.merged_with, (outcome.result() for outcome in before), first)
    with turns.take_part():
        return run(request, results)

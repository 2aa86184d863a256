"""The measurements of claims on one cloud of a card: that of the model, or that of an untrained model."""

from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path

from rheoscope.messages.message import Message
from rheoscope.report.card_cache import cached_measurement
from rheoscope.report.card_clouds import CardCloud
from rheoscope.shapes import RheoscopeError
from rheoscope.space.claim import Claim, Measured
from rheoscope.space.traces import Traces

OnTask = Callable[[str], Callable[[int, int], None]]
"""Starts a task with a name and returns the function that reports its progress."""
Measurements = dict[str, Mapping[str, Measured]]
"""The parts of every measured claim, by the name of its row."""
MIN_VALUES = 2
"""The smallest number of texts with a value. A single one has no spread, so its interval would have no width."""
CONTROL_DRAWS = 2
"""Rotated or edited versions of each untrained model. Their mean over all untrained models is shown and decides nothing."""


def measure_cloud(
    cloud: CardCloud,
    traces: tuple[Traces, ...],
    claims: Sequence[Claim],
    draws: int,
    seed: int,
    folder: Path | None,
    progress: OnTask | None,
) -> tuple[Measurements, dict[str, RheoscopeError]]:
    """The measurements of every claim by name, and the errors of those that this cloud does not have."""
    from rheoscope import __version__

    measured: Measurements = {}
    errors: dict[str, RheoscopeError] = {}
    for claim in claims:
        reason = cloud.reason_without(claim)
        if reason is not None:
            errors[claim.name] = reason
            continue
        sample = cloud.sample(traces, draws, seed, None if progress is None else progress(claim.statement))
        try:
            parts = cached_measurement(claim, sample, folder, __version__)
            measured[claim.name] = {part: values.cpu() for part, values in parts.items()}
        except RheoscopeError as error:
            errors[claim.name] = error.with_traceback(None)  # its frames hold the model and its tensors
    return measured, errors


def reason_without_interval(parts: Mapping[str, Measured]) -> RheoscopeError | None:
    """Why a measured claim has no interval: a part has fewer than two values. A statistic of the weights alone has one."""
    for values in parts.values():
        n, total = int(values.effects.isfinite().sum()), len(values.effects)
        if n < min(MIN_VALUES, total):
            return RheoscopeError(
                Message("{n} of {total} inputs have a value, expected at least {low}", n=n, total=total, low=MIN_VALUES)
            )
    return None


def measure_untrained(
    clouds: Sequence[CardCloud],
    claims: Sequence[Claim],
    names: Container[str] | None,
    seed: int,
    folder: Path | None,
    progress: OnTask | None,
) -> tuple[Measurements, dict[str, RheoscopeError]]:
    """The same for all clouds of an untrained model, for the rows of these names or for all. The claims share its traces."""
    measured: Measurements = {}
    errors: dict[str, RheoscopeError] = {}
    for cloud in clouds:
        rows, traces = [row for row in cloud.claims(claims) if names is None or row.name in names], cloud.traces()
        for is_decisive, draws in ((True, 0), (False, CONTROL_DRAWS)):
            group = [row for row in rows if (row.random_models == "untrained") == is_decisive]
            values, reasons = measure_cloud(cloud, traces, group, draws, seed, folder, progress)
            measured, errors = measured | values, errors | reasons
    return measured, errors

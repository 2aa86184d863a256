"""The alarms of the training monitor: every rule compares the last readings with stated thresholds.

The thresholds were set on the runs that `benchmarks/training_monitor.py` lists as `RULE_RUNS`, and checked on others.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from rheoscope.learn.monitor.quantities import Reading
from rheoscope.messages.message import Message, plural


@dataclass(frozen=True)
class Finding:
    """A head in which a rule applies, or a layer if `head` is None. `other_head` is the head with which it is compared."""

    layer: int
    head: int | None
    value: float
    other_head: int | None = None


@dataclass(frozen=True)
class Alarm:
    """A rule that begins to apply at a step: the worst finding, and in how many others it begins to apply at the same check."""

    step: int
    rule: str
    layer: int
    head: int | None
    value: float
    other_head: int | None = None
    n_others: int = 0

    def __str__(self) -> str:
        return self.line

    @property
    def line(self) -> Message:
        """The alarm in one line: step, head, value, rule, and what to try.

        >>> Alarm(300, "dead_head", 2, 1, 0.0, n_others=3).line[:61]
        'step 300, L2.H1 and 3 others: dead head, displacement 0.00000'
        """
        rule = RULES[self.rule]
        return Message(
            "step {step:,}, {place}: {title}, {value} (rule: {statement}). {advice}",
            step=self.step,
            place=self.place,
            title=rule.title,
            value=rule.value_text(self),
            statement=rule.statement,
            advice=rule.advice,
        )

    @property
    def place(self) -> str:
        """The head or the layer, and the number of others."""
        name = f"L{self.layer}" if self.head is None else f"L{self.layer}.H{self.head}"
        if not self.n_others:
            return name
        return plural("{place} and {n} other", "{place} and {n} others", n=self.n_others, place=name)


@dataclass(frozen=True)
class Rule(ABC):
    """A condition on the readings so far, of which the last is the current one."""

    title: ClassVar[Message]
    advice: ClassVar[Message]

    @property
    @abstractmethod
    def statement(self) -> Message:
        """The condition with its thresholds."""

    @abstractmethod
    def find(self, readings: Sequence[Reading]) -> Iterator[Finding]:
        """Where the rule applies now, in any order."""

    @abstractmethod
    def value_text(self, alarm: Alarm) -> Message:
        """The value of an alarm with its name."""

    def severity(self, finding: Finding) -> float:
        """The larger, the worse."""
        return finding.value


@dataclass(frozen=True)
class LogitGrowth(Rule):
    """Scores grow without bound: a learning rate that is too high, or queries and keys that grow."""

    limit: float = 50.0
    factor: float = 1.5
    checks: int = 5
    title = Message("logit growth")
    advice = Message("Try a lower learning rate, QK-norm or QK-clip.")

    @property
    def statement(self) -> Message:
        return Message(
            "at least {limit:g}, and {factor:g} times the value of {checks} checks ago",
            limit=self.limit,
            factor=self.factor,
            checks=self.checks,
        )

    def find(self, readings: Sequence[Reading]) -> Iterator[Finding]:
        now, before = current_and_earlier(readings, "largest_logit", self.checks)
        if now is not None and before is not None:
            yield from _findings(now, (now >= self.limit) & (now >= self.factor * before))

    def value_text(self, alarm: Alarm) -> Message:
        return Message("largest |logit| {value:.1f}", value=alarm.value)


@dataclass(frozen=True)
class EntropyCollapse(Rule):
    """The heads of a layer come to attend to single tokens, with scores far larger than that needs.

    Heads that learn to be sharp lose entropy as fast, but rarely with scores above 40.
    """

    factor: float = 0.6
    logit_limit: float = 50.0
    checks: int = 5
    title = Message("entropy collapse")
    advice = Message("Try a lower learning rate, QK-norm or a longer warm-up.")

    @property
    def statement(self) -> Message:
        return Message(
            "mean over the layer at most {factor:g} times the value of {checks} checks ago, with a logit of at least {limit:g}",
            factor=self.factor,
            checks=self.checks,
            limit=self.logit_limit,
        )

    def find(self, readings: Sequence[Reading]) -> Iterator[Finding]:
        now, before = current_and_earlier(readings, "entropy", self.checks)
        logits = readings[-1].values.get("largest_logit")
        if now is None or before is None or logits is None:
            return
        falls = np.nanmean(now, -1) <= self.factor * np.nanmean(before, -1)
        is_collapsed = falls & (np.nanmax(logits, -1) >= self.logit_limit)
        yield from _findings(now, is_collapsed[:, None] & (now <= self.factor * before))

    def value_text(self, alarm: Alarm) -> Message:
        return Message("relative entropy {value:.3f}", value=alarm.value)

    def severity(self, finding: Finding) -> float:
        return -finding.value


@dataclass(frozen=True)
class RankCollapse(Rule):
    """All tokens of a text become equal, so that attention has nothing to choose from."""

    limit: float = 0.999
    title = Message("rank collapse")
    advice = Message("Check the skip connections and the norms, and try a smaller update per layer.")

    @property
    def statement(self) -> Message:
        return Message("mean cosine of two tokens above {limit:g}", limit=self.limit)

    def find(self, readings: Sequence[Reading]) -> Iterator[Finding]:
        for layer, value in enumerate(readings[-1].values.get("token_cosine", ())):
            if value > self.limit:
                yield Finding(layer, None, float(value))

    def value_text(self, alarm: Alarm) -> Message:
        return Message("mean cosine of the tokens that the layer reads {value:.5f}", value=alarm.value)


@dataclass(frozen=True)
class DeadHead(Rule):
    """A head moves no token any more. A layer whose heads all start at 0 is no alarm."""

    limit: float = 1e-3
    title = Message("dead head")
    advice = Message("Check the initial weights and the weight decay of W_V and W_O, or remove the head.")

    @property
    def statement(self) -> Message:
        return Message(
            "below {limit:g} of its largest value so far, or of the median head of its layer", limit=self.limit
        )

    def find(self, readings: Sequence[Reading]) -> Iterator[Finding]:
        values = [reading.values["relative_displacement"] for reading in readings if _has(reading)]
        if values:
            reference = np.maximum(np.max(values, 0), np.nanmedian(values[-1], -1, keepdims=True))
            yield from _findings(values[-1], values[-1] < self.limit * reference)

    def value_text(self, alarm: Alarm) -> Message:
        return Message("displacement {value:.5f} of the length of the tokens", value=alarm.value)

    def severity(self, finding: Finding) -> float:
        return -finding.value


@dataclass(frozen=True)
class DuplicatedHead(Rule):
    """Two heads of a layer move all tokens in the same way."""

    limit: float = 0.999
    title = Message("duplicated head")
    advice = Message("Check that the heads have different initial weights, or remove one of the two.")

    @property
    def statement(self) -> Message:
        return Message("cosine of the displacements by two heads above {limit:g}", limit=self.limit)

    def find(self, readings: Sequence[Reading]) -> Iterator[Finding]:
        now, nearest = (readings[-1].values.get(name) for name in ("nearest_head_cosine", "nearest_head"))
        if now is None or nearest is None:
            return
        for finding in _findings(now, now > self.limit):
            other = int(nearest[finding.layer, finding.head])
            is_second_of_pair = other < (finding.head or 0) and nearest[finding.layer, other] == finding.head
            if not is_second_of_pair:
                yield Finding(finding.layer, finding.head, finding.value, other)

    def value_text(self, alarm: Alarm) -> Message:
        return Message(
            "cosine {value:.5f} with L{layer}.H{other}", value=alarm.value, layer=alarm.layer, other=alarm.other_head
        )


RULES: Mapping[str, Rule] = {
    "logit_growth": LogitGrowth(),
    "entropy_collapse": EntropyCollapse(),
    "rank_collapse": RankCollapse(),
    "dead_head": DeadHead(),
    "duplicated_head": DuplicatedHead(),
}
"""All rules by name."""


@dataclass
class AlarmList:
    """The alarms of a run. Each rule is reported once for each head, at the first check at which it applies."""

    alarms: list[Alarm] = field(default_factory=list)
    reported: set[tuple[str, int, int | None]] = field(default_factory=set)

    def update(self, readings: Sequence[Reading]) -> list[Alarm]:
        """The alarms that begin at the last reading, at most one for each rule."""
        new_alarms = [alarm for name in RULES if (alarm := self._new_alarm(name, readings)) is not None]
        self.alarms += new_alarms
        return new_alarms

    def _new_alarm(self, name: str, readings: Sequence[Reading]) -> Alarm | None:
        rule = RULES[name]
        findings = [x for x in rule.find(readings) if (name, x.layer, x.head) not in self.reported]
        self.reported |= {(name, x.layer, x.head) for x in findings}
        if not findings:
            return None
        worst = max(findings, key=rule.severity)
        return Alarm(readings[-1].step, name, worst.layer, worst.head, worst.value, worst.other_head, len(findings) - 1)


def current_and_earlier(
    readings: Sequence[Reading], name: str, checks: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """A quantity now and some checks earlier, or at the first check if there were fewer. None if there is no earlier check."""
    if len(readings) < 2:
        return None, None
    return readings[-1].values.get(name), readings[max(0, len(readings) - 1 - checks)].values.get(name)


def _has(reading: Reading) -> bool:
    return "relative_displacement" in reading.values


def _findings(values: np.ndarray, is_found: np.ndarray) -> Iterator[Finding]:
    """The heads of a mask with their values."""
    for layer, head in np.argwhere(is_found).tolist():
        yield Finding(layer, head, float(values[layer, head]))

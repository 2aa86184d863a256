"""The rules of the alarms: each applies from its threshold on, is reported once for each head, and takes one line."""

from typing import Any

import numpy as np
import pytest

from rheoscope.learn.monitor.alarms import RULES, AlarmList
from rheoscope.learn.monitor.monitor_pictures import PANEL_OF_RULE
from rheoscope.learn.monitor.quantities import QUANTITIES
from tests.learn.monitor.cases import reading


def alarms(*readings: Any) -> AlarmList:
    """The alarms of a run with these readings."""
    alarm_list = AlarmList()
    for index in range(len(readings)):
        alarm_list.update(readings[: index + 1])
    return alarm_list


def logits(*values: float) -> list[Any]:
    return [reading(10 * i, largest_logit=[[1.0, value]]) for i, value in enumerate(values, 1)]


def rules(*readings: Any) -> list[tuple[str, int, int, int | None]]:
    return [(alarm.rule, alarm.step, alarm.layer, alarm.head) for alarm in alarms(*readings).alarms]


def test_logits_that_grow_are_reported_once() -> None:
    assert rules(*logits(5, 20, 40, 51, 100)) == [("logit_growth", 40, 0, 1)]
    assert rules(*logits(5, 20, 40, 49)) == []


def test_large_logits_that_do_not_grow_are_no_alarm() -> None:
    assert rules(*logits(180, 185, 190, 195, 200, 205, 210, 215)) == []
    assert rules(*logits(180)) == []


def test_an_entropy_that_falls_with_large_logits_is_a_collapse() -> None:
    def run(logit: float, last: float) -> list[Any]:
        values = zip((0.9, 0.8, 0.6, last), (1.0, 5.0, 20.0, logit), strict=True)
        return [
            reading(i, entropy=[[0.9, 0.9], [entropy, 0.5 * entropy]], largest_logit=[[1.0, 1.0], [largest, 1.0]])
            for i, (entropy, largest) in enumerate(values)
        ]

    assert ("entropy_collapse", 3, 1, 1) in rules(*run(60.0, 0.4))
    assert "entropy_collapse" not in {rule for rule, *_ in rules(*run(60.0, 0.7))}
    assert rules(*run(40.0, 0.1)) == []  # heads that learn to be sharp


def test_equal_tokens_are_a_rank_collapse() -> None:
    assert rules(reading(1, token_cosine=[0.5, 0.9995])) == [("rank_collapse", 1, 1, None)]
    assert rules(reading(1, token_cosine=[0.5, 0.99])) == []


def test_a_head_that_stops_to_move_tokens_is_dead() -> None:
    alive, dead = (
        reading(1, relative_displacement=[[0.1, 0.2, 0.1]]),
        reading(2, relative_displacement=[[0.1, 0.0, 0.1]]),
    )
    assert rules(alive, dead) == [("dead_head", 2, 0, 1)]
    assert rules(dead) == [("dead_head", 2, 0, 1)]  # compared with the other heads
    assert rules(reading(1, relative_displacement=[[0.2]]), reading(2, relative_displacement=[[0.0]])) == [
        ("dead_head", 2, 0, 0)
    ]


def test_heads_that_all_start_at_zero_are_not_dead() -> None:
    assert rules(*(reading(i, relative_displacement=[[0.0, 0.0]]) for i in range(3))) == []


def test_a_pair_of_equal_heads_is_reported_once() -> None:
    equal = reading(5, nearest_head_cosine=[[0.3, 0.9999, 0.9999]], nearest_head=[[1, 2, 1]])
    (alarm,) = alarms(equal).alarms
    assert (alarm.rule, alarm.head, alarm.other_head) == ("duplicated_head", 1, 2)
    assert rules(reading(5, nearest_head_cosine=[[0.97, 0.97]], nearest_head=[[1, 0]])) == []


def test_several_heads_make_one_line_that_names_the_worst() -> None:
    (alarm,) = alarms(*(reading(i, largest_logit=[[1.0, 10.0**i], [1.0, 30.0**i]]) for i in (0, 2))).alarms
    assert (alarm.layer, alarm.head, alarm.n_others) == (1, 1, 1)
    assert alarm.line == (
        "step 2, L1.H1 and 1 other: logit growth, largest |logit| 900.0 (rule: at least 50, and 1.5 times the value of 5 checks "
        "ago). Try a lower learning rate, QK-norm or QK-clip."
    )


def test_missing_quantities_and_nan_are_no_alarm() -> None:
    assert rules(reading(1), reading(2)) == []
    nothing = {"largest_logit": [[np.nan]], "entropy": [[np.nan]], "relative_displacement": [[np.nan]]}
    with pytest.warns(RuntimeWarning, match="All-NaN|Mean of empty"):
        assert rules(reading(1, **nothing), reading(2, **nothing)) == []


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_a_panel_and_advice(name: str) -> None:
    assert PANEL_OF_RULE[name] in QUANTITIES
    assert RULES[name].advice.endswith(".")

"""Published tables of races, computed again from the stored logs by code that shares nothing with the package.

For every row: the mean difference from the baseline over paired seeds, its 95 % interval by Student's t, Holm's p over all contrasts of
the race, and the verdict. A printed number must agree to its last digit.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
TABLES = {"small_decoders": "small", "larger": "large", "encoders": "encoder", "multi30k": "multi30k"}
"""The page of a race and the name of its logs."""
BASELINE = "untied"
MINUS = "−"


def published_rows(page: str) -> list[list[str]]:
    """The cells of the first table with a column of verdicts, in reading order."""
    lines = (RESULTS / "races" / f"{page}.md").read_text(encoding="utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("| entrant | loss"))
    rows = [line.strip("| ").split(" | ") for line in lines[start + 2 :]]
    return rows[: next(index for index, cells in enumerate(rows) if len(cells) < 5)]


def number(text: str) -> float:
    return float(text.replace(MINUS, "-"))


def last_digit(text: str) -> float:
    """Half a unit of the last digit of a printed number.

    >>> last_digit("−.107"), last_digit("2e-5"), last_digit("1")
    (0.0005, 5e-06, 0.5)
    """
    digits, _, exponent = text.partition("e")
    decimals = len(digits.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - decimals)


def is_rounded(text: str, value: float) -> bool:
    """Whether a printed number is this value, rounded to its last digit."""
    return abs(number(text) - value) <= last_digit(text) + 1e-6


def entrant_of(cell: str) -> tuple[str, bool]:
    """The entrant of a row, and whether it has as many parameters as the baseline."""
    name = re.match(r"`([^`]+)`", cell)
    assert name is not None
    return name[1], "as many parameters" in cell


def final_losses(logs: str) -> dict[str, np.ndarray]:
    """Entrant → the loss of every seed at the last step, at the rate that was chosen for the entrant."""
    race = json.loads((RESULTS / "race" / f"{logs}.json").read_text())
    return {
        pack["entrant"]: np.array(pack["loss"][-1], dtype=np.float64)
        for pack in race["packs"]
        if pack["rate"] == race["chosen"][pack["entrant"]]
    }


def differences(losses: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: x - losses[BASELINE] for name, x in losses.items() if name != BASELINE}


def holm(p: dict[str, float]) -> dict[str, float]:
    """The smallest level at which Holm's procedure rejects each hypothesis."""
    adjusted, running = {}, 0.0
    for rank, name in enumerate(sorted(p, key=lambda name: p[name])):
        running = max(running, min(1.0, (len(p) - rank) * p[name]))
        adjusted[name] = running
    return adjusted


@pytest.mark.parametrize("page", TABLES)
def test_a_published_table_follows_from_its_logs(page: str) -> None:
    delta = differences(final_losses(TABLES[page]))
    errors = {name: x.std(ddof=1) / np.sqrt(len(x)) for name, x in delta.items()}
    p = {name: 2 * stats.t.sf(abs(x.mean()) / errors[name], len(x) - 1) for name, x in delta.items()}
    adjusted, rows = holm(p), published_rows(page)
    wrong: list[tuple[str, str, object]] = []
    assert len(rows) == len(delta)
    for entrant_cell, mean, interval, p_cell, verdict, *_ in rows:
        short_name, is_matched = entrant_of(entrant_cell)
        name = f"{short_name}:parameters" if is_matched else short_name
        x, half_width = delta[name], stats.t.ppf(0.975, len(delta[name]) - 1) * errors[name]
        low, high = interval.split(" to ")
        printed = (
            (mean, x.mean()),
            (low, x.mean() - half_width),
            (high, x.mean() + half_width),
            (p_cell, adjusted[name]),
        )
        wrong += [(name, text, float(value)) for text, value in printed if not is_rounded(text, value)]
        expected = "unclear" if adjusted[name] >= 0.05 else "ahead" if x.mean() < 0 else "behind"
        wrong += [(name, verdict, expected)] * (verdict != expected)
    assert wrong == []


def test_the_table_of_the_preserved_system_follows_from_its_logs() -> None:
    """Holm's correction covers the contrasts at the best rates and those at the baseline's rate, where it is another one."""
    race = json.loads((RESULTS / "race" / "preserved.json").read_text())
    losses = {(pack["entrant"], pack["rate"]): np.array(pack["loss"][-1], dtype=np.float64) for pack in race["packs"]}
    rates = {name: run[0] for name, run in race["chosen"].items()}
    baseline, baseline_rate = losses[BASELINE, rates[BASELINE]], rates[BASELINE]
    delta = {(name, rates[name]): losses[name, rates[name]] - baseline for name in rates if name != BASELINE}
    delta |= {(name, baseline_rate): losses[name, baseline_rate] - baseline for name in rates
              if name != BASELINE and (name, baseline_rate) in losses}  # fmt: skip
    errors = {run: x.std(ddof=1) / np.sqrt(len(x)) for run, x in delta.items()}
    p = {str(run): 2 * stats.t.sf(abs(x.mean()) / errors[run], len(x) - 1) for run, x in delta.items()}
    adjusted = holm(p)

    def interval_of(run: tuple[str, float]) -> tuple[float, float, float]:
        mean, half = delta[run].mean(), stats.t.ppf(0.975, len(baseline) - 1) * errors[run]
        return mean, mean - half, mean + half

    lines = (RESULTS / "races" / "preserved.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if re.match(r"\| `[^`]+` \| \de-3 ", line)]
    assert {row[0].strip("`") for row in rows} == set(rates) - {BASELINE}
    assert len(baseline) == 12
    for cell, rate, mean, interval, p_cell, verdict, _, at_baseline in rows:
        run = (cell.strip("`"), float(rate))
        assert run in delta
        printed = [mean, *interval.split(" to "), p_cell]
        values = [*interval_of(run), adjusted[str(run)]]
        assert all(map(is_rounded, printed, values)), cell
        assert verdict == ("unclear" if adjusted[str(run)] >= 0.05 else "ahead" if delta[run].mean() < 0 else "behind")
        other = (run[0], baseline_rate)
        if at_baseline == "the same":
            assert other == run
        elif at_baseline == "not trained":
            assert other not in delta
        else:
            assert all(map(is_rounded, re.findall(rf"[+{MINUS}]\.\d+", at_baseline), interval_of(other))), cell


def test_a_wrong_digit_is_found() -> None:
    delta = differences(final_losses("large"))["tied"]
    assert is_rounded("+.153", delta.mean())
    assert not is_rounded("+.154", delta.mean())

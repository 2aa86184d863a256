"""Power, false verdicts and coverage of the statistics of races, in simulated races without training.

    python benchmarks/race_statistics.py               about three minutes of one core
    python benchmarks/race_statistics.py --smallest    a few races with few entrants; nothing is stored

Races have four entrants, and once all 15 of the factorial. Rates are chosen as in a real race: curves over at least five rates with four
seeds, then 12 new seeds. An entrant that is not planted equals the baseline, with the same best rate or with another one.

    power       a planted advantage of .03 nats is found (bar: 90 % of 40 races)
    false       races between equal entrants with any verdict (bar: 16 of 200)
    coverage    intervals of token ratios that contain the true ratio (bar: 93 to 97 %; more if runs are censored)

The noise is that of the pilot (sd .011 of a run, .011 shared by a seed) or that of the published decoders (.028 and .016). Results are
stored in results/race_statistics.json.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from simulated_races import ENTRANTS, PILOT_NOISE, PUBLISHED_NOISE, Noise, SimulatedRace
from timing import make_parser, store_rows

from rheoscope.learn.comparison import Comparison, compare_entrants
from rheoscope.learn.contrasts import AHEAD, UNDECIDED
from rheoscope.learn.entrants import BASELINE

NOISES = {"pilot": PILOT_NOISE, "published": PUBLISHED_NOISE}
ADVANTAGE, REACHED_TARGET = 0.03, 4.5
FEW = 4
COVERAGES = (
    ("all reach it", (0.8, 0.9, 1.0, 1.1), REACHED_TARGET),
    ("default target", (0.8, 0.9), None),
    ("censored", (1.0, 1.1), None),
)
"""Kinds of token ratios: the true ratios and the target. At the default target, slow entrants have censored runs."""
Row = dict[str, object]


def compare(race: SimulatedRace) -> Comparison:
    with tempfile.TemporaryDirectory() as folder:
        return race.compare(Path(folder))


def has_false_verdict(race: SimulatedRace) -> bool:
    """Whether a race between equal entrants has a verdict. At another best rate, only those at the chosen rates are false."""
    rows = compare(race).rows[1:]
    verdicts = [row.verdict for row in rows]
    if not race.shift:
        verdicts += [row.at_baseline_rate.verdict for row in rows if row.at_baseline_rate is not None]
    return any(verdict != UNDECIDED for verdict in verdicts)


def finds_the_planted(race: SimulatedRace) -> bool:
    return {row.curves.entrant: row.verdict for row in compare(race).rows}[race.entrants[0]] == AHEAD


def false_verdicts(noise: Noise, n_races: int, entrants: Sequence[str], shifted: bool, seeds: int) -> int:
    """The number of races between equal entrants with a verdict."""
    shift = {name: index % 3 - 1 for index, name in enumerate(entrants)} if shifted else {}
    race = SimulatedRace(0, noise, tuple(entrants), seeds, shift=shift)
    return sum(has_false_verdict(replace(race, number=number)) for number in range(n_races))


def planted_found(noise: Noise, n_races: int, entrants: Sequence[str], seeds: int) -> int:
    """The number of races in which the first entrant, which is ahead by `ADVANTAGE`, is found."""
    race = SimulatedRace(0, noise, tuple(entrants), seeds, advantage={entrants[0]: ADVANTAGE})
    return sum(finds_the_planted(replace(race, number=1000 + number)) for number in range(n_races))


def ratio_coverage(
    noise: Noise, n_races: int, seeds: int, ratios: Sequence[float], target: float | None = None
) -> tuple[int, int]:
    """How many intervals of token ratios contain the true ratio, and how many there are."""
    names = ENTRANTS[: len(ratios)]
    true_ratios = dict(zip(names, ratios, strict=True))
    n_covered = 0
    for number in range(2000, 2000 + n_races):
        race = SimulatedRace(number, noise, names, seeds, token_ratio=true_ratios)
        for row in compare_entrants(map(race.curves, (BASELINE, *names)), target).rows[1:]:
            n_covered += row.tokens_ratio.low <= true_ratios[row.curves.entrant] <= row.tokens_ratio.high
    return n_covered, n_races * len(ratios)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    options = parser.parse_args(argv)
    smallest = options.smallest
    n_null, n_planted, n_coverage = (2, 1, 3) if smallest else (50, 10, 50) if options.quick else (200, 40, 200)
    few = ENTRANTS[: 2 if smallest else FEW]
    rows: list[Row] = []

    def add(kind: str, noise: str, seeds: int, count: int, total: int) -> None:
        print(f"{kind:50} {noise:10} {seeds:3} seeds   {count:4} of {total} ({100 * count / total:.1f} %)", flush=True)
        rows.append({"name": kind, "noise": noise, "seeds": seeds, "count": count, "total": total})

    if not smallest:
        n_found = planted_found(PILOT_NOISE, n_planted, ENTRANTS, 12)
        add(f"planted .03 found among {len(ENTRANTS)}", "pilot", 12, n_found, n_planted)
    for name, noise in NOISES.items():
        for seeds in (12,) if name == "pilot" or smallest else (12, 24, 36):
            add("planted .03 found", name, seeds, planted_found(noise, n_planted, few, seeds), n_planted)
        add("false: equal entrants", name, 12, false_verdicts(noise, n_null, few, False, 12), n_null)
        add("false: equal at other rates", name, 12, false_verdicts(noise, n_null, few, True, 12), n_null)
        for seeds in (12,) if smallest else (6, 12):
            for kind, ratios, target in COVERAGES:
                covered = ratio_coverage(noise, n_coverage, seeds, ratios, target)
                add(f"interval of a token ratio covers, {kind}", name, seeds, *covered)
    store_rows("race_statistics", rows, smallest)


if __name__ == "__main__":
    main()

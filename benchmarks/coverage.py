"""Coverage of every interval that the project prints: how often the stated 95 % contain the true value.

    python benchmarks/coverage.py                    2,000 repeats, 4 to 50 units, about two minutes
    python benchmarks/coverage.py --quick            500 repeats (--smallest: seconds, nothing is stored)
    python benchmarks/coverage.py --seed 1           other samples; the constants of the bootstrap-t were chosen on seed 0

Units are normal or lognormal (σ = 1, skewness 6.2). Allowed: 93 to 97 % for normal units, and at least 92 % for lognormal units from
12 units on. Intervals by Student's t are declared for nearly normal numbers only, so their lognormal rows have no limit. Results are
stored in results/coverage.json.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from timing import make_parser, store_rows

from rheoscope.corpus.corpus_intervals import bootstrap_ends
from rheoscope.corpus.segments import MAX_SEGMENTS
from rheoscope.statistics.intervals import (
    MIN_MEDIAN_UNITS,
    MIN_UNITS,
    Interval,
    bootstrap_t_interval,
    median_interval,
    student_interval,
)

UNITS = (4, 5, 6, 8, 12, 16, 20, 30, 50)
NORMAL_LIMITS = (0.93, 0.97)
LOGNORMAL_LIMITS, LOGNORMAL_UNITS = (0.92, 1.0), 12
SAMPLES = ("normal", "lognormal")


def draw_units(sample: str, repeats: int, units: int, numbers: np.random.Generator) -> torch.Tensor:
    """Independent numbers (repeat, unit)."""
    x = torch.from_numpy(numbers.normal(size=(repeats, units)))
    return x.exp() if sample == "lognormal" else x


def true_mean(sample: str) -> float:
    return math.exp(0.5) if sample == "lognormal" else 0.0


def per_token_interval(x: torch.Tensor, numbers: np.random.Generator) -> Interval:
    """Σ sums / Σ sizes for texts of 32 to 512 tokens."""
    sizes = torch.from_numpy(numbers.integers(32, 512, size=tuple(x.shape))).double()
    return bootstrap_t_interval(x * sizes, sizes)


def document_interval(x: torch.Tensor, numbers: np.random.Generator) -> Interval:
    """The mean over the segments of documents. Each document has 1 to 8 segments that scatter around its own number."""
    repeats = len(x)
    counts = numbers.integers(1, 9, size=tuple(x.shape))
    cells, documents = (np.repeat(index.ravel(), counts.ravel()) for index in np.indices(x.shape))
    segments = x.numpy()[cells, documents] + 0.1 * numbers.normal(size=len(cells))
    low, high = bootstrap_ends(documents * MAX_SEGMENTS, cells, segments, repeats)
    return torch.from_numpy(low), torch.from_numpy(high)


METHODS: dict[str, tuple[str, int, Callable[[torch.Tensor, np.random.Generator], Interval]]] = {
    "bootstrap-t of a mean": (
        "over_texts, senses, relatedness, faithfulness, windows of a report, race differences",
        MIN_UNITS,
        lambda x, _: bootstrap_t_interval(x),
    ),
    "bootstrap-t per token": ("surgery, decay", MIN_UNITS, per_token_interval),
    "bootstrap-t over documents": ("corpora", MIN_UNITS, document_interval),
    "Student's t of a mean": ("race differences and curves", MIN_UNITS, lambda x, _: student_interval(x)),
    "order statistics of a median": ("token ratios of races", MIN_MEDIAN_UNITS, lambda x, _: median_interval(x)),
}
"""Name of the interval → where it is printed, its smallest number of units, and the function."""


def limits(method: str, sample: str, units: int) -> tuple[float, float] | None:
    """The allowed coverage; None where nothing is promised."""
    if sample == "normal":
        return NORMAL_LIMITS
    return None if units < LOGNORMAL_UNITS or method.startswith("Student") else LOGNORMAL_LIMITS


def coverage(method: str, sample: str, units: int, repeats: int, seed: int) -> float:
    """The share of intervals that contain the true mean or median."""
    numbers = np.random.default_rng([units, SAMPLES.index(sample), seed])
    low, high = METHODS[method][2](draw_units(sample, repeats, units, numbers), numbers)
    median = 1.0 if sample == "lognormal" else 0.0
    truth = median if method.endswith("median") else true_mean(sample)
    return float(((low <= truth) & (truth <= high)).double().mean())


def main(argv: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    repeats = 50 if options.smallest else 500 if options.quick else 2000
    unit_counts = (6, 12) if options.smallest else UNITS
    rows: list[dict[str, object]] = []
    for method, (places, min_units, _) in METHODS.items():
        print(f"{method} ({places})")
        for sample in SAMPLES:
            shares = {
                units: coverage(method, sample, units, repeats, options.seed)
                for units in unit_counts
                if units >= min_units
            }
            for units, share in shares.items():
                allowed = limits(method, sample, units)
                is_allowed = allowed is None or allowed[0] <= share <= allowed[1]
                rows.append(
                    {
                        "interval": method,
                        "places": places,
                        "sample": sample,
                        "units": units,
                        "repeats": repeats,
                        "seed": options.seed,
                    }
                    | {"coverage": share, "limits": allowed, "is_allowed": is_allowed}
                )
            print(f"  {sample:10}", *(f"{units}: {share:.3f}" for units, share in shares.items()), flush=True)
    n_outside = sum(not row["is_allowed"] for row in rows)
    print(f"{n_outside} of {len(rows)} coverages are outside their limits")
    store_rows("coverage", rows, options.smallest)


if __name__ == "__main__":
    main()

"""The tables of races, computed again from the logs by slow code that shares nothing with the package but the logs."""

import json
import math
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from rheoscope.learn.comparison import Comparison, compare_entrants
from rheoscope.learn.contrasts import (
    AHEAD,
    BEHIND,
    UNDECIDED,
    RateCandidates,
    detectable_difference,
    difference_at_chosen_rates,
)
from rheoscope.learn.entrants import entrant_config
from rheoscope.learn.race_result import race_result
from rheoscope.learn.rate_curves import basin
from rheoscope.learn.target_tokens import tokens_ratio
from rheoscope.models.config import Config
from rheoscope.models.transformer import make_architecture
from tests.learn.test_curves import curves

LOGS = Path(__file__).parents[2] / "docs" / "results" / "race"


def slow_rows(file: Path) -> dict[str, dict[str, float | str]]:
    """A race with one rate per entrant: differences, intervals, Holm's correction and token ratios, one number at a time."""
    content = json.loads(file.read_text())
    packs = {pack["entrant"]: pack for pack in content["packs"]}
    assert len(packs) == len(content["packs"])
    baseline = packs.pop("untied")
    target = max(slow_losses(baseline, -1))
    rows: dict[str, dict[str, float | str]] = {}
    for name, pack in packs.items():
        pairs = list(zip(slow_losses(pack, -1), slow_losses(baseline, -1), strict=True))
        test = stats.ttest_rel(*zip(*pairs, strict=True))
        ratios = [
            slow_crossing(pack, seed, target) / slow_crossing(baseline, seed, target) for seed in range(len(pairs))
        ]
        interval = test.confidence_interval()
        rows[name] = {
            "difference": sum(entrant - base for entrant, base in pairs) / len(pairs),
            "difference_low": float(interval.low),
            "difference_high": float(interval.high),
            "p": float(test.pvalue),
            "tokens_ratio": float(np.median(ratios)),
        }
    for rank, name in enumerate(sorted(rows, key=lambda name: rows[name]["p"])):
        earlier = [row["p_holm"] for row in rows.values() if "p_holm" in row]
        rows[name]["p_holm"] = min(1.0, max([float(rows[name]["p"]) * (len(rows) - rank), *map(float, earlier)]))
        sign = BEHIND if float(rows[name]["difference"]) > 0 else AHEAD
        rows[name]["verdict"] = sign if float(rows[name]["p_holm"]) <= 0.05 else UNDECIDED
    return rows


def slow_losses(pack: dict[str, Any], index: int) -> list[float]:
    """The losses of all seeds at an evaluation, as the float32 numbers that training computed."""
    return [float(np.float32(loss)) for loss in pack["loss"][index]]


def slow_crossing(pack: dict[str, Any], seed: int, target: float) -> float:
    """The tokens at which the loss of a seed, joined by straight lines, first reaches the target."""
    points = [(tokens, slow_losses(pack, index)[seed]) for index, tokens in enumerate(pack["tokens"])]
    for (tokens, loss), (next_tokens, next_loss) in pairwise(points):
        if next_loss <= target:
            return float(tokens + (next_tokens - tokens) * (loss - target) / (loss - next_loss))
    return math.inf


@pytest.mark.parametrize("name", ["small", "shakespeare", "residual"])
def test_the_published_tables_equal_those_of_slow_code(name: str) -> None:
    result = race_result(LOGS / f"{name}.json")
    rows = slow_rows(LOGS / f"{name}.json")
    assert list(rows) == [str(entrant) for entrant in result.entrant.values[1:]]
    assert result.attrs["contrasts"] == len(rows)
    for entrant, row in rows.items():
        values = result.sel(entrant=entrant)
        for key in ("difference", "difference_low", "difference_high", "p_holm", "tokens_ratio"):
            assert float(values[key]) == pytest.approx(row[key], rel=1e-6, abs=1e-9), (entrant, key)
        assert str(values.verdict.values) == row["verdict"]


def test_the_tokens_per_parameter_count_every_weight() -> None:
    content = json.loads((LOGS / "small.json").read_text())
    result, recipe = race_result(LOGS / "small.json"), content["recipe"]
    for entrant in ("untied", "tied"):
        config = entrant_config(entrant, Config.from_dict(recipe["config"]), recipe["context"])
        with torch.device("meta"):
            weights = {id(weight): weight.numel() for weight in make_architecture(config).parameters()}
        tokens = recipe["steps"] * recipe["batch"] * recipe["context"]
        expected = tokens / sum(weights.values())
        assert float(result.tokens_per_parameter.sel(entrant=entrant)) == pytest.approx(expected)


# Token ratios


@pytest.mark.parametrize("n", [6, 7, 8, 11, 12, 16])
def test_the_interval_of_a_token_ratio_interpolates_between_order_statistics(n: int) -> None:
    """Hettmansperger and Sheather's interval from binomial probabilities, for ratios without censored runs."""
    ratios = np.sort(np.random.default_rng(n).lognormal(0, 0.1, n))
    depth = max(d for d in range(1, n // 2 + 1) if 2 * stats.binom.cdf(d - 1, n, 0.5) <= 0.05)
    coverage = [1 - 2 * stats.binom.cdf(d - 1, n, 0.5) for d in (depth, depth + 1)]
    share = (coverage[0] - 0.95) / (coverage[0] - coverage[1])
    weight = (n - depth) * share / (depth + (n - 2 * depth) * share)
    low = (1 - weight) * ratios[depth - 1] + weight * ratios[depth]
    high = (1 - weight) * ratios[n - depth] + weight * ratios[n - depth - 1]
    ratio = tokens_ratio(torch.tensor(80 * ratios), torch.full((n,), 80.0, dtype=torch.float64), 1e9)
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((np.median(ratios), low, high))


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_with_censored_runs_contains_those_of_all_possible_runs(seed: int) -> None:
    """Censored runs reach the target at any later time. The interval holds for every choice of these times."""
    generator = torch.Generator().manual_seed(seed)
    entrant, baseline = 80 + 30 * torch.rand(2, 7, generator=generator, dtype=torch.float64)
    end = 100.0
    shown = [torch.where(tokens > end, torch.inf, tokens) for tokens in (entrant, baseline)]
    assert any(bool(tokens.isinf().any()) for tokens in shown)
    censored = tokens_ratio(shown[0], shown[1], end)
    lengths = (100.1, 150.0, 1e6)
    n_free = sum(int(tokens.isinf().sum()) for tokens in shown)
    for times in list(product(lengths, repeat=n_free))[:60]:
        free = iter(times)
        possible = [
            torch.tensor([next(free) if math.isinf(x) else x for x in tokens.tolist()], dtype=torch.float64)
            for tokens in shown
        ]
        ratio = tokens_ratio(possible[0], possible[1], 1e9)
        assert censored.low <= ratio.low + 1e-12
        assert ratio.high <= censored.high + 1e-12


# Contrasts


def example_comparison() -> tuple[Comparison, dict[tuple[str, float], torch.Tensor]]:
    """Rates that were chosen on other seeds, wrongly for the baseline and for the entrant `late`."""
    generator = torch.Generator().manual_seed(3)
    means = {
        ("untied", 2e-3): 3.10,  # chosen
        ("untied", 4e-3): 3.00,
        ("early", 2e-3): 3.10,
        ("early", 4e-3): 3.00,  # chosen
        ("late", 2e-3): 3.10,
        ("late", 8e-3): 3.20,  # chosen
        ("best", 2e-3): 2.90,
        ("best", 4e-3): 2.80,  # chosen
    }
    losses = {key: mean + 0.01 * torch.randn(12, generator=generator).double() for key, mean in means.items()}
    chosen = {"untied": 2e-3, "early": 4e-3, "late": 8e-3, "best": 4e-3}
    all_curves = [curves(name, values, rate) for (name, rate), values in losses.items()]
    return compare_entrants(all_curves, judged_rates=chosen), losses


def test_an_unlucky_rate_decides_no_verdict() -> None:
    comparison, losses = example_comparison()
    rows = {row.curves.entrant: row for row in comparison.rows}
    assert [rows[name].verdict for name in ("early", "late", "best")] == [UNDECIDED, UNDECIDED, AHEAD]
    assert float(rows["early"].difference.mean) == pytest.approx(-0.1, abs=0.01)
    assert float(rows["late"].difference.mean) == pytest.approx(0.1, abs=0.01)
    pairs = {
        ("early", 4e-3): (("early", 4e-3), ("untied", 4e-3)),
        ("early", 2e-3): (("early", 2e-3), ("untied", 2e-3)),
        ("late", 8e-3): (("late", 2e-3), ("untied", 2e-3)),
        ("late", 2e-3): (("late", 2e-3), ("untied", 2e-3)),
        ("best", 4e-3): (("best", 4e-3), ("untied", 4e-3)),
        ("best", 2e-3): (("best", 2e-3), ("untied", 2e-3)),
    }
    p = {key: float(stats.ttest_rel(losses[entrant], losses[base]).pvalue) for key, (entrant, base) in pairs.items()}
    for key in p:  # the tests of lucky choices have another sign than the differences at the chosen rates
        entrant, base = (losses[side] for side in pairs[key])
        shown = losses[key] - losses["untied", 2e-3]
        if (entrant - base).mean() * shown.mean() < 0:
            p[key] = 1.0
    ordered = sorted(p, key=p.__getitem__)
    holm = {}
    for rank, key in enumerate(ordered):
        holm[key] = min(1.0, max([p[key] * (len(p) - rank), *holm.values()]))
    assert comparison.n_contrasts == len(p)
    for name, row in rows.items():
        if name != "untied":
            assert row.p_holm == pytest.approx(holm[name, row.curves.rate])
            assert row.at_baseline_rate is not None
            assert row.at_baseline_rate.p_holm == pytest.approx(holm[name, 2e-3])


def test_one_rate_per_entrant_gives_the_paired_test() -> None:
    generator = torch.Generator().manual_seed(0)
    entrant, baseline = (curves(name, 3 + 0.1 * torch.randn(12, generator=generator).double()) for name in ("a", "b"))
    difference = difference_at_chosen_rates(
        RateCandidates([entrant], entrant), RateCandidates([baseline], baseline), slice(None)
    )
    assert float(difference.p) == pytest.approx(stats.ttest_rel(entrant.final_loss, baseline.final_loss).pvalue)


def test_a_contrast_at_the_baselines_lucky_rate_has_no_p_value() -> None:
    generator = torch.Generator().manual_seed(1)
    all_curves = [
        curves(name, 3 + 0.1 * torch.randn(12, generator=generator).double(), rate)
        for name in ("untied", "tied")
        for rate in (1e-3, 2e-3, 4e-3, 8e-3)
    ]
    comparison = compare_entrants(all_curves)
    tied = comparison.rows[1]
    assert tied.curves.rate != comparison.rows[0].curves.rate
    assert tied.at_baseline_rate is not None
    assert math.isnan(tied.at_baseline_rate.p_holm)
    assert comparison.n_contrasts == 1


def test_the_basin_equals_that_of_a_fine_grid() -> None:
    losses = {1e-3: 4.42, 2e-3: 4.34, 4e-3: 4.33, 8e-3: 4.58}
    fine = np.geomspace(1e-3, 8e-3, 100_001)
    interpolated = np.interp(np.log(fine), np.log(list(losses)), list(losses.values()))
    inside = fine[interpolated <= min(losses.values()) + 0.02]
    assert basin(losses) == pytest.approx((inside.min(), inside.max()), rel=1e-4)


@pytest.mark.parametrize("n_contrasts", [1, 15])
def test_a_detectable_difference_is_detected_in_nine_of_ten_races(n_contrasts: int) -> None:
    """Simulated tests at the strictest level of Holm's correction."""
    size = detectable_difference(0.02, 12, n_contrasts)
    samples = np.random.default_rng(0).normal(size, 0.02, (4000, 12))
    p = stats.ttest_1samp(samples, 0, axis=1).pvalue
    assert float((p <= 0.05 / n_contrasts).mean()) == pytest.approx(0.9, abs=0.02)

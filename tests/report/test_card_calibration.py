"""Answers of a card are calibrated: a few random and planted models and simulated texts here, more in benchmarks/calibration.py."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rheoscope.catalogue import all_claims
from rheoscope.report.card import answer_claims
from rheoscope.space.claim import ClaimSample, Measured
from rheoscope.statistics import claim_answers

FOLDER = Path(__file__).parents[2] / "benchmarks"
CHEAP_CLAIMS = ("erasure", "rest", "next_token", "directions")
"""Claims that need no list of words and little time."""


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function from the name of a module beside the benchmark to the module."""
    monkeypatch.syspath_prepend(FOLDER)
    yield import_module
    for name in [name for name, module in sys.modules.items() if _is_in_folder(module)]:
        del sys.modules[name]


def _is_in_folder(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).parent == FOLDER and not module.__name__.startswith("benchmarks.")


def test_cards_of_random_models_have_no_clear_answer(benchmark_module: Any) -> None:
    benchmark, size = benchmark_module("calibration"), benchmark_module("tiny_cards").Size
    small = size(models=2, n_texts=6, n_tokens=10, shapes=("default",), claims=CHEAP_CLAIMS)
    summary = benchmark.random_cards(small, benchmark.Checkpoint(), None)
    assert summary["cards"] == 2
    assert summary["clear_cards"] == 0, summary["by_claim"]
    assert sum(summary["answers"].values()) == 2 * len(CHEAP_CLAIMS), summary["refused"]


def test_a_clear_answer_is_counted(benchmark_module: Any) -> None:
    summarise = benchmark_module("calibration").summarise_cards
    cards = {"x": {"shape": "gpt2", "answers": {"rest": "no"}, "refused": []}}
    assert summarise(cards)["is_allowed"]
    cards["y"] = {"shape": "gpt2", "answers": {"rest": "reversed"}, "refused": []}
    summary = summarise(cards)
    assert (summary["clear_cards"], summary["by_claim"]) == (1, {"rest reversed": 1})
    assert not summary["is_allowed"]


def random_background() -> dict[str, dict[str, Measured]]:
    """Measurements of all claims without an effect."""
    draw = torch.Generator().manual_seed(0)
    return {
        claim.name: {
            part.name: Measured(torch.randn(96, generator=draw), draws=torch.randn(40, 96, generator=draw))
            for part in claim.parts
        }
        for claim in all_claims()
    }


@pytest.mark.parametrize(
    ("name", "strength", "n_models"),
    [
        ("erasure", 0.1, 2),
        ("directions", 1.5, 2),
        ("next_token", 0.135, 1),
        ("symmetry", 0.1, 1),
        ("gradient", 0.094, 1),
        ("rest", 0.484, 1),
    ],
)
def test_planted_effects_have_their_answers(benchmark_module: Any, name: str, strength: float, n_models: int) -> None:
    """The strength is that of twice the smallest effect of interest."""
    cards, (claim,) = benchmark_module("planted_cards"), benchmark_module("tiny_cards").chosen_claims([name])
    effects = []
    for planted, expected in ((strength, "yes"), (0.0, "no")):
        for seed in range(n_models):
            model, batches = cards.PLANTS[name](planted, 100 + seed)
            measured = claim.measure(ClaimSample(model, batches[:2], draws=40, seed=seed))
            result = cards.planted_answer(claim, measured, random_background(), {})
            assert result["answer"] == expected, (seed, result)
            effects.append(
                float(measured[claim.parts[0].name].effects.double().mean()) / claim.parts[0].smallest_effect
            )
    assert np.mean(effects[:n_models]) == pytest.approx(2, abs=0.35), effects


def test_every_seed_has_new_weights_and_new_texts(benchmark_module: Any) -> None:
    plant = benchmark_module("planted_weights").PLANTS["symmetry"]
    first, again, other = (plant(0.1, seed) for seed in (0, 0, 1))
    for sample, is_equal in ((again, True), (other, False)):
        assert torch.equal(sample.batches[0].ids, first.batches[0].ids) is is_equal
        weights = [model.network.stack.blocks[0].attention.read.weight for model in (sample.model, first.model)]
        assert torch.equal(*weights) is is_equal


def test_untrained_models_limit_a_planted_effect(benchmark_module: Any) -> None:
    """The same effect is unclear if untrained models reach it."""
    cards, plant = benchmark_module("planted_cards"), benchmark_module("planted_points").PLANTS["directions"]
    (claim,) = benchmark_module("tiny_cards").chosen_claims(["directions"])
    measured = claim.measure(ClaimSample(*plant(1.5, 100), draws=40))
    controls = {("directions", "directions"): torch.linspace(0, 0.2, 8)}
    assert cards.planted_answer(claim, measured, random_background(), controls)["answer"] == "unclear"


def test_a_case_is_allowed_by_its_share_of_answers(benchmark_module: Any) -> None:
    cards = benchmark_module("planted_cards")
    case = next(case for case in cards.cases(["directions"]) if case.effect == 2)
    row = {"estimate": 0.2, "low": 0.1, "high": 0.3, "threshold": 0.1, "random_mean": 0.0}

    def summary(n_yes: int) -> Any:
        answers = ["yes"] * n_yes + ["unclear"] * (40 - n_yes)
        return cards.summarise_case(
            case, 1.5, [{"answer": answer, "numbers": {"directions": row}} for answer in answers]
        )

    assert summary(36)["is_allowed"]
    assert not summary(35)["is_allowed"]


def test_a_strength_is_found(benchmark_module: Any) -> None:
    cards = benchmark_module("planted_cards")
    no_effect, twice = sorted(cards.cases(["directions"]), key=lambda case: case.effect)
    calls = []

    def effect(strength: float) -> float:
        calls.append(strength)
        return strength**2

    assert cards.find_strength(effect, (0.0, 1.0), no_effect, 12) == 0
    assert effect(cards.find_strength(effect, (0.0, 1.0), twice, 12)) == pytest.approx(0.2, abs=0.004)
    assert len(calls) <= 10
    assert cards.find_strength(effect, (0.0, 0.1), twice, 12) == 0.1


def test_a_stored_strength_is_not_searched_again(
    benchmark_module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cards, tiny_cards = benchmark_module("planted_cards"), benchmark_module("tiny_cards")
    chosen, checkpoint = cards.cases(["directions"]), benchmark_module("checkpointed_jobs").Checkpoint()
    (tmp_path / "calibration.json").write_text(
        json.dumps({"b": {"cases": {case.name: {"strength": case.effect} for case in chosen}}})
    )
    monkeypatch.setattr(cards, "RESULTS", tmp_path)
    expected = {case.name: case.effect for case in chosen}
    assert cards.find_strengths(chosen, tiny_cards.Size(), checkpoint) == expected
    monkeypatch.setattr(cards, "strength_job", lambda case, size: {"strength": 7.0})
    assert set(cards.find_strengths(chosen, tiny_cards.Size(search=True), checkpoint).values()) == {7.0}


def simulated_populations(benchmark_module: Any, effect: float = 0.0) -> Any:
    """Texts and null draws of four kinds of claims. Null draws, not texts, have most of the error of two of them."""
    population, draw = benchmark_module("resampled_cards").Population, torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).double()

    shared = 0.01 * normal(400, 1)
    return {
        "similarity": {
            "similarity": population(effect * 0.05 + 0.03 * normal(96), None, shared + 0.03 * normal(400, 96))
        },
        "symmetry": {"symmetry": population(torch.tensor([effect * 0.05]).double(), None, 0.02 * normal(400, 1))},
        "identity": {"identity": population(effect * 0.1 + 0.1 * normal(96), 0.1 * normal(10, 96), None)},
        "directions": {"directions": population(effect * 0.1 + 0.1 * normal(96), None, None)},
    }


def test_intervals_cover_texts_and_null_draws(benchmark_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_answers, "RESAMPLES", 400)  # the tails of the simultaneous intervals need 20,000
    result = benchmark_module("resampled_cards").coverage(simulated_populations(benchmark_module), 40, samples=150)
    assert all(0.9 < share < 0.99 for share in result["coverage"].values()), result["coverage"]
    assert result["joint_coverage"] > 0.92


def test_other_null_draws_change_no_simulated_answer(benchmark_module: Any) -> None:
    tiny_cards = benchmark_module("tiny_cards")
    for effect, expected in ((0.0, "no"), (3.0, "yes")):
        populations = simulated_populations(benchmark_module, effect)
        for seed in range(5):
            generator = torch.Generator().manual_seed(seed)
            measured = {
                claim: {
                    part: item.sample(torch.arange(len(item.observed)), 40, generator) for part, item in parts.items()
                }
                for claim, parts in populations.items()
            }
            answers = tiny_cards.printed_answers(answer_claims(measured, {}))
            assert set(answers.values()) == {expected}, (seed, answers)


def test_a_changed_answer_is_allowed_near_a_threshold_only(benchmark_module: Any) -> None:
    compare = benchmark_module("resampled_cards").compare_seeds

    def card(low: float, answer: str) -> dict[str, Any]:
        row = {"estimate": low + 0.02, "low": low, "high": low + 0.04, "random_mean": 0.0, "threshold": 0.01}
        return {"answers": {"similarity": answer}, "numbers": {"similarity": row}}

    near = compare({0: card(0.051, "yes"), 1: card(0.049, "unclear")})
    assert near["is_allowed"]
    assert list(near["near_threshold"]) == ["similarity"]
    assert list(near["changes"]) == ["similarity, seed 1"]
    assert not compare({0: card(0.09, "yes"), 1: card(0.03, "unclear")})["is_allowed"]
    assert not compare({0: card(0.09, "yes"), 1: card(0.08, "yes")})["near_threshold"]


def test_only_the_chosen_claims_are_measured_with_other_seeds(benchmark_module: Any, tmp_path: Path) -> None:
    """The others keep their measurement with seed 0, so that the card has all its intervals."""
    cards, size = benchmark_module("resampled_cards"), benchmark_module("tiny_cards").Size
    checkpoint = benchmark_module("checkpointed_jobs").Checkpoint(tmp_path / "jobs.jsonl")
    small = size(seeds=1, draws=8, claims=("erasure", "directions"), subject="tiny model")
    by_seed = cards.finish_cards(small, checkpoint, tmp_path)
    names = {claim.name for claim in all_claims() if claim.name not in ("senses", "relatedness")}  # those need words
    assert set(by_seed[0]["answers"]) == set(by_seed[1]["answers"]) == names
    changed = {
        name
        for name, row in by_seed[1]["numbers"].items()
        if row["estimate"] != by_seed[0]["numbers"][name]["estimate"]
    }
    assert changed == {"erasure"}  # directions has no null draws
    populations = cards.default_populations(small, checkpoint, tmp_path)
    assert populations["erasure"]["erasure"].draws.shape[0] == 2 * 8
    assert populations["gradient"]["gradient"].draws.shape[0] == 8


def test_finished_jobs_are_read_and_not_repeated(benchmark_module: Any, tmp_path: Path) -> None:
    checkpoint, calls = benchmark_module("checkpointed_jobs").Checkpoint(tmp_path / "jobs.jsonl"), []

    def work(number: int) -> dict[str, int]:
        calls.append(number)
        return {"square": number**2}

    checkpoint.finish(work, {"two": (2,)})
    with checkpoint.file.open("a") as file:
        file.write('{"job": "three", "res')  # an interrupted run
    assert checkpoint.finish(work, {"three": (3,), "two": (2,)}) == {"three": {"square": 9}, "two": {"square": 4}}
    assert checkpoint.finish(work, {"three": (3,)}) == {"three": {"square": 9}}
    assert calls == [2, 3]


def test_every_claim_has_a_plant_with_and_without_an_effect(benchmark_module: Any) -> None:
    cases = benchmark_module("planted_cards").cases(None)
    expected = {(claim.name, effect) for claim in all_claims() for effect in (0.0, 2.0)}
    assert {(case.plant, case.effect) for case in cases} == expected | {("relatedness.kept", -2.0)}

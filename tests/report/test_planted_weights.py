"""The answers to claims about models with planted effects: three claims here, all eight in benchmarks/planted_weights.py."""

import pytest
import torch

from benchmarks import planted_weights
from benchmarks.planted_weights import PLANTS, STRENGTH_RANGES, STRENGTHS, answer_sample, find_claim, find_strength


@pytest.mark.parametrize(("name", "n_batches"), [("symmetry", 1), ("gradient", 2), ("rest", 1)])
def test_an_effect_of_two_deltas_is_a_yes_and_no_effect_is_a_no(
    name: str, n_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer texts and untrained models than a card has."""
    monkeypatch.setattr(planted_weights, "MIN_DRAWS", 4)
    delta = find_claim(name).parts[0].smallest_effect
    for strength, effect, answer in zip(STRENGTHS[name], (0, 2 * delta), ("no", "yes"), strict=True):
        sample = PLANTS[name](strength, seed=0)
        outcome = answer_sample(name, sample._replace(batches=sample.batches[:n_batches]), seed=0)
        assert outcome.answer == answer
        assert outcome.effect == pytest.approx(effect, abs=delta / 2)


def test_every_seed_has_new_weights_and_new_texts() -> None:
    first, again, other = (PLANTS["symmetry"](0.1, seed) for seed in (0, 0, 1))
    for sample, is_equal in ((again, True), (other, False)):
        assert torch.equal(sample.batches[0].ids, first.batches[0].ids) is is_equal
        weights = [model.network.stack.blocks[0].attention.read.weight for model in (sample.model, first.model)]
        assert torch.equal(*weights) is is_equal


def test_the_strength_of_an_effect_is_found_by_bisection(monkeypatch: pytest.MonkeyPatch) -> None:
    low, _ = STRENGTH_RANGES["relation"]
    monkeypatch.setattr(planted_weights, "mean_effect", lambda name, strength, seeds: (strength - low) ** 2)
    assert find_strength("relation", 0.2) == pytest.approx(low + 0.2**0.5, abs=0.01)
    assert find_strength("relation", 0.0) == low


def test_every_plant_has_strengths_within_its_range() -> None:
    assert STRENGTHS.keys() == STRENGTH_RANGES.keys() == PLANTS.keys()
    for name, (zero, planted) in STRENGTHS.items():
        low, high = STRENGTH_RANGES[name]
        assert low <= zero < planted <= high

"""Tasks: losses against a loop, sums over parts of a batch, held-out tokens, and bits per byte by hand."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rheoscope.models.task import MaskedTokenTask, Objective, evaluate, make_task, seed_generators, total_nats
from rheoscope.models.token_corpus import IGNORE_INDEX, MASKED_SPECIALS, prepare, seeded_generator
from rheoscope.models.transformer import build
from rheoscope.models.vocabulary import load_tokenizer
from rheoscope.shapes import RheoscopeError
from tests.models.runs import VOCABULARY, encoder, masked, prose, small, translation, translator

CPU = torch.device("cpu")


def example(seed: int, b: int = 3, t: int = 4, v: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, v, (b, t), generator=generator)
    targets[torch.rand(b, t, generator=generator) < 0.3] = IGNORE_INDEX
    return 3 * torch.randn(b, t, v, generator=generator), targets


def by_hand(logits: Tensor, targets: Tensor, smoothing: float) -> float:
    """Σ (1 - s) (-log p(target)) + s/V Σ over the vocabulary (-log p), token by token in float64."""
    total = 0.0
    for row, target in zip(logits.flatten(0, 1).double(), targets.flatten().tolist(), strict=True):
        if target != IGNORE_INDEX:
            nats = [math.log(sum(math.exp(x) for x in row.tolist())) - x for x in row.tolist()]
            total += (1 - smoothing) * nats[target] + smoothing * sum(nats) / len(nats)
    return total


@given(st.integers(0, 1000), st.sampled_from([0.0, 0.1, 0.9]))
def test_total_nats_equals_the_sum_over_tokens(seed: int, smoothing: float) -> None:
    logits, targets = example(seed)
    assert float(total_nats(logits, targets, smoothing, IGNORE_INDEX)) == pytest.approx(
        by_hand(logits, targets, smoothing), rel=1e-5
    )


@settings(max_examples=30)
@given(st.integers(0, 1000))
def test_losses_of_parts_add_up_and_ignored_targets_do_not_count(seed: int) -> None:
    logits, targets = example(seed)
    total_loss = float(total_nats(logits, targets, 0.1, IGNORE_INDEX))
    assert sum(
        float(total_nats(logits[i : i + 1], targets[i : i + 1], 0.1, IGNORE_INDEX)) for i in range(3)
    ) == pytest.approx(total_loss)
    changed_logits = torch.where((targets == IGNORE_INDEX)[..., None], torch.randn_like(logits), logits)
    assert float(total_nats(changed_logits, targets, 0.1, IGNORE_INDEX)) == total_loss
    assert float(total_nats(logits, torch.full_like(targets, IGNORE_INDEX), 0.1, IGNORE_INDEX)) == 0


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits, targets = example(5)
    assert total_nats(logits.bfloat16(), targets, 0.0, IGNORE_INDEX).dtype is torch.float32


class Uniform(nn.Module):
    """A model with uniform predictions."""

    def forward(self, *x: Tensor) -> Tensor:
        ids = x[min(1, len(x) - 1)]
        return torch.zeros(*ids.shape, VOCABULARY)


@pytest.mark.parametrize(("context", "batch"), [(12, 8), (16, 2), (3, 50), (7, 4)])
def test_every_held_out_token_is_predicted_once(context: int, batch: int) -> None:
    """A uniform model has a loss of log2 V bits for every token except the first."""
    task, recipe = prose(held_out=101), small(context=context, batch=batch)
    metrics = evaluate(Uniform(), task, recipe, CPU)
    assert metrics["loss"] == pytest.approx(math.log(VOCABULARY), rel=1e-6)
    assert metrics["bits per byte"] == pytest.approx(math.log2(VOCABULARY) * 100 / 202, rel=1e-6)
    predicted = torch.cat([y[y != IGNORE_INDEX] for _, y in task.held_out_batches(recipe)])
    assert predicted.tolist() == task.corpus.held_out[1:].tolist()


def test_the_perplexity_of_a_uniform_translator_is_the_vocabulary() -> None:
    task, recipe = translation(), translator(batch=2)
    metrics = evaluate(Uniform(), task, recipe, CPU)
    assert metrics["perplexity"] == pytest.approx(VOCABULARY, rel=1e-6)
    sides = task.corpus.held_out
    assert sum(task.n_targets(batch) for batch in task.held_out_batches(recipe)) == len(sides.tokens) // 2 + len(sides)


def test_evaluation_is_deterministic_and_restores_the_mode() -> None:
    model, task, recipe = build(small(dropout=0.5).config), prose(), small()
    model.train()
    assert evaluate(model, task, recipe, CPU) == evaluate(model, task, recipe, CPU)
    assert model.training
    evaluate(model.eval(), task, recipe, CPU)
    assert not model.training


@pytest.mark.parametrize(("task", "recipe"), [(prose(), small()), (masked(), encoder()), (translation(), translator())])
def test_the_objective_equals_the_loss_of_the_task(task: Any, recipe: Any) -> None:
    model = build(recipe.config.with_changes(vocabulary=task.vocabulary)).eval().requires_grad_(False)
    x, y = task.batch(3, recipe)
    assert torch.equal(Objective(model, task, 0.1)(x, y)[0], task.loss(model, (x, y), 0.1))
    rows = [task.loss(model, (x[i : i + 1], y[i : i + 1]), 0.1) for i in range(len(x))]
    assert float(sum(rows)) == pytest.approx(float(task.loss(model, (x, y), 0.1)), rel=1e-5)  # type: ignore[arg-type]


def test_padding_of_a_pair_changes_nothing() -> None:
    task, recipe = translation(), translator(dropout=0.0)
    model = build(recipe.config).eval().requires_grad_(False)
    source, target = task.batch(0, recipe)
    wider = (torch.nn.functional.pad(source, (0, 3)), torch.nn.functional.pad(target, (0, 2)))
    assert task.n_targets(wider) == task.n_targets((source, target))
    assert float(task.loss(model, wider)) == pytest.approx(float(task.loss(model, (source, target))), rel=1e-5)


# Masked tokens


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 40))
def test_only_selected_tokens_change_and_are_predicted(seed: int, n: int) -> None:
    task = masked()
    x = torch.randint(0, VOCABULARY, (3, n), generator=torch.Generator().manual_seed(seed))
    masked_ids, predicted_targets = task.mask_tokens(x, seeded_generator(seed))
    is_predicted = predicted_targets != IGNORE_INDEX
    assert is_predicted.sum(-1).tolist() == [max(1, round(0.15 * n))] * 3
    assert torch.equal(predicted_targets[is_predicted], x[is_predicted])
    assert torch.equal(masked_ids[~is_predicted], x[~is_predicted])
    repeated = task.mask_tokens(x, seeded_generator(seed))
    assert torch.equal(repeated[0], masked_ids)
    assert torch.equal(repeated[1], predicted_targets)


def test_selected_tokens_are_masked_replaced_or_kept_in_the_ratio_8_1_1() -> None:
    task, x = masked(), torch.full((400, 100), 5)
    masked_ids, predicted_targets = task.mask_tokens(x, seeded_generator(0))
    predicted_inputs = masked_ids[predicted_targets != IGNORE_INDEX]
    assert float((predicted_inputs == task.mask_id).double().mean()) == pytest.approx(0.8 + 0.1 / 12, abs=0.02)
    assert float((predicted_inputs == 5).double().mean()) == pytest.approx(0.1 + 0.1 / 12, abs=0.015)
    assert set(predicted_inputs.tolist()) == set(range(VOCABULARY + 1))
    predicted_fraction = (predicted_targets != IGNORE_INDEX).double().mean(0)
    assert float(predicted_fraction.min()) > 0.08
    assert float(predicted_fraction.max()) < 0.25


def test_the_mask_depends_only_on_seed_and_step() -> None:
    task, recipe = masked(), encoder()
    x, y = task.batch(3, recipe)
    assert torch.equal(x, task.batch(3, recipe)[0])
    assert not torch.equal(y, task.batch(4, recipe)[1])
    assert not torch.equal(y, task.batch(3, recipe.with_changes(seed=1))[1])


@pytest.mark.parametrize(("context", "batch"), [(12, 8), (7, 4), (200, 2)])
def test_held_out_tokens_occur_once_with_the_same_mask_for_every_seed(context: int, batch: int) -> None:
    task, recipe = masked(held_out=101), encoder(context=context, batch=batch)
    rows = [torch.where(y == IGNORE_INDEX, x, y) for x, y in task.held_out_batches(recipe)]
    assert torch.cat([row.flatten() for row in rows]).tolist() == task.corpus.held_out.tolist()
    first, second = (
        torch.cat([y.flatten() for _, y in task.held_out_batches(recipe.with_changes(seed=s))]) for s in (0, 9)
    )
    assert torch.equal(first, second)
    metrics = evaluate(Uniform(), task, recipe, CPU)
    assert metrics["loss"] == pytest.approx(math.log(VOCABULARY), rel=1e-6)
    assert metrics["perplexity"] == pytest.approx(VOCABULARY, rel=1e-5)


def test_a_corpus_without_a_mask_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be. " * 20)
    plain, with_mask_token = (
        prepare([tmp_path / "a.txt"], tmp_path / name, "characters", held_out=0.1, **more)
        for name, more in (("plain", {}), ("able", {"specials": MASKED_SPECIALS}))
    )
    with pytest.raises(RheoscopeError, match=r"has no token <\|mask\|>, which masked prediction needs"):
        make_task(plain, encoder())
    with pytest.raises(RheoscopeError, match=r"has no token <\|mask\|>, which masks tokens for an encoder"):
        prepare([tmp_path / "a.txt"], tmp_path / "third", tokenizer=plain.tokenizer, specials=MASKED_SPECIALS)
    task = make_task(with_mask_token, encoder())
    assert isinstance(task, MaskedTokenTask)
    assert (task.mask_id, task.vocabulary) == (1, plain.vocabulary + 1)
    assert load_tokenizer(with_mask_token.tokenizer).encode("t<|mask|>").ids[-1] == 1


def test_make_task_selects_the_task_of_the_corpus() -> None:
    assert isinstance(make_task(prose().corpus, small()), type(prose()))
    assert isinstance(make_task(translation().corpus, translator()), type(translation()))


def test_seeding_equals_torch_manual_seed_without_queued_calls() -> None:
    """`torch.manual_seed` queues a call with a stack trace for every unused device, at each step."""
    queued = [len(kind._queued_calls) for kind in (torch.cuda, torch.xpu)]
    seed_generators(2**63 - 1, CPU)
    samples = torch.rand(3)
    assert [len(kind._queued_calls) for kind in (torch.cuda, torch.xpu)] == queued
    torch.manual_seed(2**63 - 1)
    assert torch.equal(torch.rand(3), samples)

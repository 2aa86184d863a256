"""Losses against a loop, sums over pieces, every held-out token once, and bits per byte by hand."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
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
    draw = torch.Generator().manual_seed(seed)
    wanted = torch.randint(0, v, (b, t), generator=draw)
    wanted[torch.rand(b, t, generator=draw) < 0.3] = IGNORE_INDEX
    return 3 * torch.randn(b, t, v, generator=draw), wanted


def by_hand(logits: Tensor, wanted: Tensor, smoothing: float) -> float:
    """Σ (1 - s) (-log p(wanted)) + s/V Σ over tokens (-log p), token by token in float64."""
    total = 0.0
    for row, target in zip(logits.flatten(0, 1).double(), wanted.flatten().tolist(), strict=True):
        if target != IGNORE_INDEX:
            surprise = [math.log(sum(math.exp(x) for x in row.tolist())) - x for x in row.tolist()]
            total += (1 - smoothing) * surprise[target] + smoothing * sum(surprise) / len(surprise)
    return total


@given(st.integers(0, 1000), st.sampled_from([0.0, 0.1, 0.9]))
def test_nats_are_the_sum_over_tokens(seed: int, smoothing: float) -> None:
    logits, wanted = example(seed)
    assert float(total_nats(logits, wanted, smoothing, IGNORE_INDEX)) == pytest.approx(
        by_hand(logits, wanted, smoothing), rel=1e-5
    )


@given(st.integers(0, 1000))
def test_pieces_add_up_and_what_is_left_out_counts_nothing(seed: int) -> None:
    logits, wanted = example(seed)
    whole = float(total_nats(logits, wanted, 0.1, IGNORE_INDEX))
    assert sum(
        float(total_nats(logits[i : i + 1], wanted[i : i + 1], 0.1, IGNORE_INDEX)) for i in range(3)
    ) == pytest.approx(whole)
    moved = torch.where((wanted == IGNORE_INDEX)[..., None], torch.randn_like(logits), logits)
    assert float(total_nats(moved, wanted, 0.1, IGNORE_INDEX)) == whole
    assert float(total_nats(logits, torch.full_like(wanted, IGNORE_INDEX), 0.1, IGNORE_INDEX)) == 0


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits, wanted = example(5)
    assert total_nats(logits.bfloat16(), wanted, 0.0, IGNORE_INDEX).dtype is torch.float32


class Uniform(nn.Module):
    """A model that knows nothing, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Tensor, ...]] = []

    def forward(self, *x: Tensor) -> Tensor:
        self.asked.append(x)
        ids = x[min(1, len(x) - 1)]
        return torch.zeros(*ids.shape, VOCABULARY)


@pytest.mark.parametrize(("context", "batch"), [(12, 8), (16, 2), (3, 50), (7, 4)])
def test_every_held_out_token_is_predicted_once(context: int, batch: int) -> None:
    """A uniform model loses log2 V bits a token: all but the first token, over all bytes."""
    task, recipe = prose(held_out=101), small(context=context, batch=batch)
    figures = evaluate(Uniform(), task, recipe, CPU)
    assert figures["loss"] == pytest.approx(math.log(VOCABULARY), rel=1e-6)
    assert figures["bits per byte"] == pytest.approx(math.log2(VOCABULARY) * 100 / 202, rel=1e-6)
    targets = torch.cat([y[y != IGNORE_INDEX] for _, y in task.held_out_batches(recipe)])
    assert targets.tolist() == task.corpus.held_out[1:].tolist()


def test_held_out_translations() -> None:
    task, recipe = translation(), translator(batch=2)
    figures = evaluate(Uniform(), task, recipe, CPU)
    assert figures["perplexity"] == pytest.approx(VOCABULARY, rel=1e-6)
    sides = task.corpus.held_out
    assert sum(task.n_targets(batch) for batch in task.held_out_batches(recipe)) == len(sides.tokens) // 2 + len(sides)


def test_evaluation_is_at_rest_and_leaves_the_model_as_it_was() -> None:
    model, task, recipe = build(small(dropout=0.5).config), prose(), small()
    model.train()
    assert evaluate(model, task, recipe, CPU) == evaluate(model, task, recipe, CPU)
    assert model.training
    evaluate(model.eval(), task, recipe, CPU)
    assert not model.training


@pytest.mark.parametrize(("task", "recipe"), [(prose(), small()), (masked(), encoder()), (translation(), translator())])
def test_an_objective_is_the_model_and_its_loss(task: Any, recipe: Any) -> None:
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


# Hidden tokens


@given(st.integers(0, 1000), st.integers(1, 40))
def test_what_is_not_chosen_stays_and_what_is_chosen_is_asked(seed: int, n: int) -> None:
    task = masked()
    x = torch.randint(0, VOCABULARY, (3, n), generator=torch.Generator().manual_seed(seed))
    shown, asked = task.mask_tokens(x, seeded_generator(seed))
    chosen = asked != IGNORE_INDEX
    assert chosen.sum(-1).tolist() == [max(1, round(0.15 * n))] * 3
    assert torch.equal(asked[chosen], x[chosen])
    assert torch.equal(shown[~chosen], x[~chosen])
    assert all(
        torch.equal(one, other)
        for one, other in zip(task.mask_tokens(x, seeded_generator(seed)), (shown, asked), strict=True)
    )


def test_of_the_chosen_eight_in_ten_are_hidden_one_replaced_and_one_left() -> None:
    task, x = masked(), torch.full((400, 100), 5)
    shown, asked = task.mask_tokens(x, seeded_generator(0))
    seen = shown[asked != IGNORE_INDEX]
    assert float((seen == task.mask_id).double().mean()) == pytest.approx(0.8 + 0.1 / 12, abs=0.02)
    assert float((seen == 5).double().mean()) == pytest.approx(0.1 + 0.1 / 12, abs=0.015)
    assert set(seen.tolist()) == set(range(VOCABULARY + 1))
    places = (asked != IGNORE_INDEX).double().mean(0)
    assert float(places.min()) > 0.08
    assert float(places.max()) < 0.25


def test_batches_hide_by_seed_and_step_alone() -> None:
    task, recipe = masked(), encoder()
    x, y = task.batch(3, recipe)
    assert torch.equal(x, task.batch(3, recipe)[0])
    assert not torch.equal(y, task.batch(4, recipe)[1])
    assert not torch.equal(y, task.batch(3, recipe.with_changes(seed=1))[1])


@pytest.mark.parametrize(("context", "batch"), [(12, 8), (7, 4), (200, 2)])
def test_every_held_out_token_is_shown_once_and_hidden_in_the_same_places(context: int, batch: int) -> None:
    task, recipe = masked(held_out=101), encoder(context=context, batch=batch)
    rows = [torch.where(y == IGNORE_INDEX, x, y) for x, y in task.held_out_batches(recipe)]
    assert torch.cat([row.flatten() for row in rows]).tolist() == task.corpus.held_out.tolist()
    once, again = (
        torch.cat([y.flatten() for _, y in task.held_out_batches(recipe.with_changes(seed=s))]) for s in (0, 9)
    )
    assert torch.equal(once, again)
    figures = evaluate(Uniform(), task, recipe, CPU)
    assert figures["loss"] == pytest.approx(math.log(VOCABULARY), rel=1e-6)
    assert figures["perplexity"] == pytest.approx(VOCABULARY, rel=1e-5)


def test_a_text_without_a_token_that_hides_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be. " * 20)
    plain, able = (
        prepare([tmp_path / "a.txt"], tmp_path / name, "characters", held_out=0.1, **more)
        for name, more in (("plain", {}), ("able", {"specials": MASKED_SPECIALS}))
    )
    with pytest.raises(RheoscopeError, match=r"has no token <\|mask\|>, so nothing can be hidden"):
        make_task(plain, encoder())
    with pytest.raises(RheoscopeError, match=r"has no token <\|mask\|>, which hides tokens from an encoder"):
        prepare([tmp_path / "a.txt"], tmp_path / "third", tokenizer=plain.tokenizer, specials=MASKED_SPECIALS)
    task = make_task(able, encoder())
    assert isinstance(task, MaskedTokenTask)
    assert (task.mask_id, task.vocabulary) == (1, plain.vocabulary + 1)
    assert load_tokenizer(able.tokenizer).encode("t<|mask|>").ids[-1] == 1


def test_a_corpus_and_a_recipe_know_their_task() -> None:
    assert isinstance(make_task(prose().corpus, small()), type(prose()))
    assert isinstance(make_task(translation().corpus, translator()), type(translation()))


def test_draws_are_those_of_torchs_own_seed_and_nothing_is_kept_of_it() -> None:
    """`torch.manual_seed` waits for every device that was not used yet: a stack trace for each, at each step, for ever."""
    waiting = [len(kind._queued_calls) for kind in (torch.cuda, torch.xpu)]
    seed_generators(2**63 - 1, CPU)
    found = torch.rand(3)
    assert [len(kind._queued_calls) for kind in (torch.cuda, torch.xpu)] == waiting
    torch.manual_seed(2**63 - 1)
    assert torch.equal(torch.rand(3), found)

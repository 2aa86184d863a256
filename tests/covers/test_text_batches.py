"""Pieces of texts: how they are cut, what runs side by side, and that it gives the same numbers."""

import pytest
import torch

import rheoscope as rs
from rheoscope.covers import text_batches as room
from rheoscope.covers.text_batches import (
    included_tokens,
    mean_kl,
    next_token_losses,
    split_into_windows,
    window_batches,
)
from tests.cases import double, gap, model, text
from tests.laws.moves import same

SOME = ["gpt2", "llama", "qwen3", "gemma3", "neox", "own", "own_sink", "own_alibi", "own_metric"]
TEXTS = [text(0), text(1, 9), text(2), text(3, 9), text(4), text(5, 2)]


def test_texts_are_cut_and_what_predicts_nothing_is_left_out() -> None:
    of = model("gpt2")
    assert [one.tolist() for one in split_into_windows(of, [5, 6, 7, 8, 9], window=2)] == [[5, 6], [7, 8]]
    assert [len(one) for one in split_into_windows(of, [text(0), text(1, 9)], window=10)] == [10, 8, 9]
    whole = rs.load()
    words = "The keys to the cabinet are on the table. "
    assert torch.cat(split_into_windows(whole, words * 3, 7)).tolist() == whole.encode(words * 3)


def test_what_cannot_be_cut_is_told_in_one_line() -> None:
    with pytest.raises(rs.RheoscopeError, match="a window has at least 2 tokens, got 1; type window=512"):
        split_into_windows(model("gpt2"), [5, 6, 7], window=1)
    with pytest.raises(rs.RheoscopeError, match="a loss needs at least 2 tokens; type a longer text"):
        split_into_windows(model("gpt2"), [5])


@pytest.mark.parametrize("held", [1, 2, 100])
def test_batches_hold_pieces_of_one_length_each_once(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    of = model("llama")
    monkeypatch.setattr(room, "logits_numel", lambda device: held * 18 * len(of.view.embed))
    found = list(window_batches(of, TEXTS))
    assert sorted(at for batch in found for at in batch.window_indices) == list(range(6))
    for batch in found:
        assert len(batch.window_indices) <= max(1, held * 18 // batch.ids.shape[1])
        for row, at in enumerate(batch.window_indices):
            assert torch.equal(batch.ids[row], TEXTS[at])
            alone = of.trace(TEXTS[at], logits=True)
            assert gap(batch.losses_before[row], next_token_losses(alone.logits, TEXTS[at])) <= 1e-5
            assert torch.equal(batch.is_included[row], included_tokens(alone))
    assert len(found) == {1: 5, 2: 4, 100: 3}[held]


@pytest.mark.parametrize("name", ["gpt2", "qwen3", "own_sink", "own_metric"])
def test_surgery_of_texts_side_by_side_is_that_of_each_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """x̄, the size of a control on the cloud and the means of heads belong to each text."""
    of, asked = double(name), {"heads": [(0, 1), (1, 2)], "M": "symmetric", "F": "rank 3"}
    together = rs.surgery(of, TEXTS, **asked)
    monkeypatch.setattr(room, "logits_numel", lambda device: 1)
    same(together, rs.surgery(of, TEXTS, **asked))
    alone = rs.surgery(of, TEXTS[1], **asked)
    for field in ("loss_after", "loss_control", "loss_ablated", "kl"):
        assert together[field].isel(text=1).values == pytest.approx(alone[field].isel(text=0).values, abs=2e-5)
    assert not (together.loss_after == together.loss_before).any()


@torch.no_grad()
def test_losses_and_divergence_by_hand() -> None:
    of, ids = double("gpt2"), torch.stack([text(0), text(1)])
    one, other = (of.run_batch(x).log_softmax(-1) for x in (ids, ids.flip(0)))
    wanted = [[-float(one[b, i, ids[b, i + 1]]) for i in range(17)] for b in range(2)]
    assert next_token_losses(of.run_batch(ids), ids).numpy() == pytest.approx(torch.tensor(wanted).numpy(), abs=1e-6)
    kl = (one.exp() * (one - other)).sum(-1).mean(-1)
    assert gap(mean_kl(one, other), kl) <= 1e-9
    assert float(kl.min()) > 0

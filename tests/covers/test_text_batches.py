"""Tests of windows and batches: how texts are cut, batched and measured."""

import pytest
import torch

import rheoscope as rs
from rheoscope.covers import text_batches as text_batches_module
from rheoscope.covers.text_batches import (
    included_tokens,
    mean_kl,
    next_token_losses,
    split_into_windows,
    window_batches,
)
from tests.cases import double, gap, model, text
from tests.laws.moves import assert_same_fields

SOME = ["gpt2", "llama", "qwen3", "gemma3", "neox", "own", "own_sink", "own_alibi", "own_metric"]
TEXTS = [text(0), text(1, 9), text(2), text(3, 9), text(4), text(5, 2)]


def test_texts_are_cut_into_windows_of_at_least_2_tokens() -> None:
    network = model("gpt2")
    assert [ids.tolist() for ids in split_into_windows(network, [5, 6, 7, 8, 9], window=2)] == [[5, 6], [7, 8]]
    assert [len(ids) for ids in split_into_windows(network, [text(0), text(1, 9)], window=10)] == [10, 8, 9]
    default = rs.load()
    sentences = "The keys to the cabinet are on the table. " * 3
    assert torch.cat(split_into_windows(default, sentences, 7)).tolist() == default.encode(sentences)


def test_windows_and_texts_of_one_token_are_refused() -> None:
    with pytest.raises(rs.RheoscopeError, match="window must be at least 2 tokens, got 1; type window=512"):
        split_into_windows(model("gpt2"), [5, 6, 7], window=1)
    with pytest.raises(rs.RheoscopeError, match="a loss needs at least 2 tokens; use a longer text"):
        split_into_windows(model("gpt2"), [5])


@pytest.mark.parametrize(("capacity", "n_batches"), [(1, 5), (2, 4), (100, 3)])
def test_batches_contain_every_window_once_and_equal_single_texts(
    capacity: int, n_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = model("llama")
    monkeypatch.setattr(text_batches_module, "logits_numel", lambda device: capacity * 18 * len(network.view.embed))
    batches = list(window_batches(network, TEXTS))
    assert sorted(index for batch in batches for index in batch.window_indices) == list(range(6))
    for batch in batches:
        assert len(batch.window_indices) <= max(1, capacity * 18 // batch.ids.shape[1])
        for row, index in enumerate(batch.window_indices):
            assert torch.equal(batch.ids[row], TEXTS[index])
            single = network.trace(TEXTS[index], logits=True)
            assert gap(batch.losses_before[row], next_token_losses(single.logits, TEXTS[index])) <= 1e-5
            assert torch.equal(batch.is_included[row], included_tokens(single))
    assert len(batches) == n_batches


@pytest.mark.parametrize("name", ["gpt2", "qwen3", "own_sink", "own_metric"])
def test_surgery_of_a_batch_equals_surgery_of_single_texts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean x̄, the size of a control on the cloud and the mean outputs belong to each text."""
    network, settings = double(name), {"heads": [(0, 1), (1, 2)], "M": "symmetric", "F": "rank 3"}
    texts = TEXTS[:5]  # two batches; intervals need five texts
    batched = rs.surgery(network, texts, **settings)
    monkeypatch.setattr(text_batches_module, "logits_numel", lambda device: 1)
    assert_same_fields(batched, rs.surgery(network, texts, **settings))
    single = rs.surgery(network, texts[1], **settings)
    for field in ("loss_after", "loss_control", "loss_ablated", "kl"):
        assert batched[field].isel(text=1).values == pytest.approx(single[field].isel(text=0).values, abs=2e-5)
    assert not (batched.loss_after == batched.loss_before).any()


@torch.no_grad()
def test_losses_and_kl_equal_their_definitions() -> None:
    network, ids = double("gpt2"), torch.stack([text(0), text(1)])
    p, q = (network.run_batch(x).log_softmax(-1) for x in (ids, ids.flip(0)))
    expected = torch.tensor([[-float(p[b, i, ids[b, i + 1]]) for i in range(17)] for b in range(2)])
    assert next_token_losses(network.run_batch(ids), ids).numpy() == pytest.approx(expected.numpy(), abs=1e-6)
    kl = (p.exp() * (p - q)).sum(-1).mean(-1)
    assert gap(mean_kl(p, q), kl) <= 1e-9
    assert float(kl.min()) > 0

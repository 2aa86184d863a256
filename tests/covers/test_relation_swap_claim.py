"""Tests of the claim about swapped weights and values: a twin inside Hugging Face's attention, and planted models."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import rheoscope as rs
from rheoscope.covers.relation_swap.claims import donors_by_length, measure, pairs_by_run
from rheoscope.space.claim import ClaimSample
from tests.cases import double
from tests.covers.claim_cases import sample, texts
from tests.pretrained.cases import changed, random, spying


@torch.no_grad()
def swapped_logits(network: Any, ids: Tensor, donors: list[Any], weights: bool) -> Tensor:
    """Logits of a network whose attention takes weights or values from the recorded layers of another text."""
    remaining = iter(donors)

    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **kw: Any) -> Any:
        repeat, donor, n = q.shape[1] // k.shape[1], next(remaining), q.shape[2]
        keys, values = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        scores = (q @ keys.mT * scaling).masked_fill(~torch.ones(n, n).tril().bool(), -torch.inf)
        out = donor.weights @ values[0] if weights else scores.softmax(-1)[0] @ donor.v
        return out.transpose(0, 1)[None], None

    hf.AttentionInterface.register("swapped", attend)
    hf.AttentionMaskInterface.register("swapped", hf.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    original = network.config._attn_implementation
    network.set_attn_implementation("swapped")
    try:
        return network(input_ids=ids[None]).logits[0]
    finally:
        network.set_attn_implementation(original)


@torch.no_grad()
def slow_share(network: Any, ids: Tensor, donor: Tensor) -> float:
    n = min(len(ids), len(donor))
    with spying(network) as layers:
        network(input_ids=donor[None, :n])
    before = network(input_ids=ids[None, :n]).logits[0].log_softmax(-1)
    kl = []
    for weights in (True, False):
        after = swapped_logits(network, ids[:n], layers, weights).log_softmax(-1)
        kl.append(sum(float((before[i].exp() * (before[i] - after[i])).sum()) for i in range(n)) / n)
    return (kl[0] - kl[1]) / (kl[0] + kl[1])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("split", [True, False])
def test_values_equal_a_swap_inside_the_networks_own_attention(name: str, split: bool) -> None:
    """The texts have 18, 13 and 16 tokens. Each takes its donor from the sample, whatever the batches."""
    measured = measure(sample(double(name), split=split, draws=0))["relation"]
    donors = {0: 2, 1: 2, 2: 0}
    expected = [slow_share(double(name).network, texts()[text], texts()[donor]) for text, donor in donors.items()]
    assert measured.observed.tolist() == pytest.approx(expected, abs=1e-5)
    assert measured.draws is None
    assert measured.reference is None


def split_reading(values_read_tokens: bool) -> Any:
    """A model whose weights read only positions and whose values read only tokens, or the reverse."""

    def plant(network: Any) -> None:
        transformer = network.transformer
        for table, columns in ((transformer.wte, slice(0, 16)), (transformer.wpe, slice(16, 32))):
            rows = random(1, len(table.weight), 16)
            rows = rows - rows.mean(-1, keepdim=True)
            table.weight.zero_()
            table.weight[:, columns] = rows / rows.norm(dim=-1, keepdim=True)
        W = transformer.h[0].attn.c_attn.weight
        transformer.h[0].ln_1.bias.zero_()
        hidden_from_values, hidden_from_scores = slice(16, 32), slice(0, 16)
        if not values_read_tokens:
            hidden_from_values, hidden_from_scores = hidden_from_scores, hidden_from_values
        W[hidden_from_scores, :64] = 0
        W[hidden_from_values, 64:] = 0
        transformer.h[1].attn.c_proj.weight.zero_()

    return changed("gpt2", plant)


@pytest.mark.parametrize(("values_read_tokens", "expected"), [(False, 1.0), (True, -1.0)])
def test_the_part_that_reads_only_positions_moves_nothing(values_read_tokens: bool, expected: float) -> None:
    measured = measure(sample(split_reading(values_read_tokens), draws=0))["relation"]
    assert measured.observed.tolist() == pytest.approx([expected] * 3, abs=1e-6)


def test_equal_texts_change_nothing_and_short_texts_have_no_value() -> None:
    model = double("llama")
    equal = ClaimSample(model, (model.trace([[5, 6, 7, 8]] * 2),), 0)
    assert measure(equal)["relation"].observed.tolist() == pytest.approx([0, 0], abs=1e-3)
    short = ClaimSample(model, (model.trace([[5], [6, 7, 8, 9], [9, 8, 7]]),), 0)
    assert measure(short)["relation"].observed.isnan().tolist() == [True, False, False]


def test_bidirectional_texts_run_with_texts_of_the_same_length() -> None:
    """Padding would be read there."""
    texts = [torch.arange(5, 5 + n) for n in (4, 7, 4, 9, 7)]
    runs = [[pair.length for pair in run] for run in pairs_by_run(double("bert"), texts)]
    assert runs == [[4, 4], [7, 7, 7]]
    assert [len(run) for run in pairs_by_run(double("gpt2"), texts)] == [4, 1]


def test_donors_have_the_next_length() -> None:
    assert donors_by_length([5, 5, 7, 6]) == [1, 3, 3, 2]


def test_a_model_without_unembedding_is_refused() -> None:
    model = double("bert_bare")
    with pytest.raises(rs.RheoscopeError, match="no unembedding"):
        measure(ClaimSample(model, (model.trace([[5, 6, 7]] * 2),), 0))

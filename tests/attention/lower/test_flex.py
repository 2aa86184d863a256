"""Pairwise scores, biases, masks and block masks equal their full tables, and flex_attention equals the reference."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention

from rheoscope.attention.definition import query_key_positions, reference_attention
from rheoscope.attention.kernel_score import Laplace, Polynomial
from rheoscope.attention.lower import flex
from rheoscope.attention.mask import BooleanMask, Causal, Mask, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.parameters import tensors_by_path
from rheoscope.attention.position import Position
from rheoscope.attention.position_bias import Buckets
from rheoscope.attention.score import Distance, Gram, Score, SoftCap
from tests.attention.cases import HEADS, MASKS, POSITIONS, gap, inputs, random, random_booleans, to_dtype, zoo_mechanism

SCORES: dict[str, Score] = {
    "dot": Gram(),
    "distance": Distance(),
    "soft-cap": SoftCap(Gram(), 0.7),
    "soft-capped distance": SoftCap(Distance(), 3.0),
    "Laplace": Laplace(0.8),
    "polynomial": Polynomial(4, 0.3, 0.2),
    "soft-capped Laplace": SoftCap(Laplace(), 1.0),
}


@pytest.mark.parametrize("name", SCORES)
def test_a_pointwise_form_equals_the_score(name: str) -> None:
    q, k, _ = inputs(g=4)
    form = SCORES[name].pointwise_form(q.shape[-1])
    assert form is not None
    s = form.dot_maps.dot_form(q, k).scores()
    assert gap(s if form.function is None else form.function(s), SCORES[name](q, k)) < 1e-12


def test_a_score_without_a_pointwise_form_returns_none() -> None:
    assert zoo_mechanism("additive").score.pointwise_form(6) is None
    assert SoftCap(zoo_mechanism("additive").score, 1.0).pointwise_form(6) is None


def every_pair(f: Any, b: int, h: int, m: int, n: int) -> Tensor:
    i, j = query_key_positions(m, n)
    return f(torch.arange(b)[:, None, None, None], torch.arange(h)[:, None, None], i[:, None], j)


@pytest.mark.parametrize("name", MASKS)
def test_a_pairwise_mask_equals_the_mask(name: str) -> None:
    for m, n in ((9, 9), (5, 9)):
        mask = MASKS[name](m, n)
        allowed = mask(*query_key_positions(m, n))
        assert mask.pair_mask is not None
        assert torch.equal(
            every_pair(mask.pair_mask, 2, HEADS, m, n).expand(2, HEADS, m, n), allowed.expand(2, HEADS, m, n)
        )


@pytest.mark.parametrize("name", POSITIONS)
def test_a_pairwise_bias_equals_the_bias(name: str) -> None:
    position: Position = POSITIONS[name](5, 9)
    bias, pair_bias = position.bias(*query_key_positions(5, 9)), position.pair_bias(5, 9)
    if bias is None:
        assert pair_bias is None
    else:
        assert pair_bias is not None
        assert gap(every_pair(pair_bias, 2, HEADS, 5, 9).expand(2, HEADS, 5, 9), bias.expand(2, HEADS, 5, 9)) < 1e-6


@pytest.mark.parametrize(
    "mask", [Causal(), Causal() & Window(40), BooleanMask(random_booleans(1, 2, HEADS, 70, 90, probability=0.01))]
)
def test_block_coverage_equals_that_of_the_mask(mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "MASK_BLOCK", 16)
    monkeypatch.setattr(flex, "block_numel", lambda device: 1)
    batch_and_heads = (2, HEADS) if tensors_by_path(mask) else (1, 1)
    any_allowed, all_allowed = flex.block_coverage(mask, 70, 90, torch.device("cpu"), batch_and_heads)
    table = mask(*query_key_positions(70, 90)).expand(*batch_and_heads, 70, 90)
    for row_block, row in enumerate(table.split(16, -2)):
        for key_block, block in enumerate(row.split(16, -1)):
            assert torch.equal(any_allowed[..., row_block, key_block], block.any(-1).any(-1))
            full = block.shape[-2:] == (16, 16)
            assert torch.equal(all_allowed[..., row_block, key_block], block.all(-1).all(-1) & full)


CASES = {
    "soft-cap": (Mechanism(SoftCap(Gram(), 5.0)), "causal"),
    "Laplace": (Mechanism(Laplace()), "causal"),
    "T5": (Mechanism(position=Buckets(random(1, 8, HEADS), max_distance=20)), None),
    "T5 of a long past": (Mechanism(position=Buckets(random(1, 8, HEADS), max_distance=5)), "causal"),
    "sink of a long past": (
        Mechanism(position=Buckets(random(1, 8, HEADS), max_distance=5), normaliser=Sink(random(3, HEADS))),
        "causal",
    ),
    "distance in a window": (Mechanism(Distance(scale=0.1)), Causal() & Window(20)),
    "sink of a distance": (Mechanism(Distance(scale=0.1), normaliser=Sink(random(3, HEADS))), "causal"),
    "rows without a key": (
        Mechanism(),
        BooleanMask(random_booleans(1, 2, HEADS, 40, 50) & (torch.arange(40) % 8 > 0)[:, None]),
    ),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", CASES)
def test_flex_attention_equals_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward pass of flex_attention on a CPU, not compiled."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    mechanism = to_dtype(CASES[name][0].with_mask(CASES[name][1]), torch.float32)
    q, k, v = (x.bfloat16() for x in inputs(40, 50, d=16, e=16))
    assert flex.mechanism_refusal(mechanism, q, k) == ""
    with torch.no_grad():
        out = flex.run(mechanism, q, k, v, kernel=flex.flex_outputs)
    exact = reference_attention(to_dtype(mechanism, torch.float64), q.double(), k.double(), v.double())[0]
    assert gap(out, exact) < 1.5e-2


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_long_past_is_split_where_its_bias_becomes_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(flex.cudnn, "input_refusal", lambda q, k: "")
    mechanism = to_dtype(CASES["T5 of a long past"][0].with_mask("causal"), torch.float32)
    q, k, v = (x.bfloat16() for x in inputs(50, 50, d=16, e=16))
    form = mechanism.score.pointwise_form(16)
    assert form is not None
    assert flex.bias_ends_early(mechanism, form, q, k)
    assert not flex.bias_ends_early(mechanism, form, q[:, :, 10:], k)
    assert not flex.bias_ends_early(mechanism, form, q[:, :, 10:], k[:, :, 10:])
    assert not flex.bias_ends_early(CASES["sink of a long past"][0].with_mask("causal"), form, q, k)
    with torch.no_grad():
        out = flex.run(mechanism, q, k, v, kernel=flex.flex_outputs)
    exact = reference_attention(to_dtype(mechanism, torch.float64), q.double(), k.double(), v.double())[0]
    assert gap(out, exact) < 1.5e-2
    bias, far = random(1, 8, HEADS), torch.arange(20, 60)
    for both_ways in (False, True):
        beyond = Buckets(bias, 20, both_ways).bias(torch.tensor([60]), 60 - far)
        assert torch.equal(beyond, beyond[..., :1].expand_as(beyond))


def test_tiles_that_do_not_fit_are_replaced_by_smaller_ones() -> None:
    attempts: list[Any] = []

    def compiled(q: Tensor, tiles: Any) -> Tensor:
        attempts.append(tiles)
        if len(attempts) < 3:
            raise RuntimeError("No valid triton configs. OutOfMemoryError: out of resource: shared memory")
        return q

    class FakeKernel(flex.CompiledKernel):
        @property
        def compiled_function(self) -> Any:  # type: ignore[override]
            return compiled

        @compiled_function.deleter
        def compiled_function(self) -> None: ...

    kernel = FakeKernel(flex.flex_outputs)
    assert kernel.run_with_fitting_tiles(torch.ones(1)).item() == 1
    assert attempts == list(flex.TILE_OPTIONS)
    assert kernel.run_with_fitting_tiles(torch.ones(1)).item() == 1
    assert len(attempts) == 4


def test_mechanisms_without_a_pairwise_form_are_refused() -> None:
    q, k, v = inputs()
    assert "needs half precision on a GPU, got float64 on cpu" in str(
        flex.try_lower(zoo_mechanism("scaled_dot"), q, k, v)
    )
    assert "Sigmoid, not softmax" in flex.mechanism_refusal(zoo_mechanism("sigmoid"), q, k)
    assert "Additive is not a function of a dot product" in flex.mechanism_refusal(zoo_mechanism("additive"), q, k)
    assert "change large distances" in flex.mechanism_refusal(zoo_mechanism("metric_map"), q, k)

    class TableMask(Causal):
        pair_mask = None

    assert "the mask TableMask has no pairwise form" in flex.mechanism_refusal(
        replace(zoo_mechanism("scaled_dot"), mask=TableMask()), q, k
    )

    class TableBias(Buckets):
        def pair_bias(self, m: int, n: int) -> None:
            return None

    mechanism = replace(zoo_mechanism("scaled_dot"), position=TableBias(torch.zeros(8, HEADS)))
    assert "TableBias has no pairwise bias" in flex.mechanism_refusal(mechanism, q, k)

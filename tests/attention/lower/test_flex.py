"""Scores, biases and masks pair by pair are the ones over all pairs; blocks are the mask's; the whole is the reference."""

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
def test_a_score_is_its_function_of_a_dot_product(name: str) -> None:
    q, k, _ = inputs(g=4)
    form = SCORES[name].pointwise_form(q.shape[-1])
    assert form is not None
    s = form.dot_maps.dot_form(q, k).scores()
    assert gap(s if form.function is None else form.function(s), SCORES[name](q, k)) < 1e-12


def test_a_score_that_is_no_function_of_a_dot_product_says_so() -> None:
    assert zoo_mechanism("additive").score.pointwise_form(6) is None
    assert SoftCap(zoo_mechanism("additive").score, 1.0).pointwise_form(6) is None


def every_pair(f: Any, b: int, h: int, m: int, n: int) -> Tensor:
    i, j = query_key_positions(m, n)
    return f(torch.arange(b)[:, None, None, None], torch.arange(h)[:, None, None], i[:, None], j)


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_pair_by_pair_is_the_mask(name: str) -> None:
    for m, n in ((9, 9), (5, 9)):
        mask = MASKS[name](m, n)
        permitted = mask(*query_key_positions(m, n))
        assert mask.pair_mask is not None
        assert torch.equal(
            every_pair(mask.pair_mask, 2, HEADS, m, n).expand(2, HEADS, m, n), permitted.expand(2, HEADS, m, n)
        )


@pytest.mark.parametrize("name", POSITIONS)
def test_a_bias_pair_by_pair_is_the_bias(name: str) -> None:
    position: Position = POSITIONS[name](5, 9)
    whole, pair = position.bias(*query_key_positions(5, 9)), position.pair_bias(5, 9)
    if whole is None:
        assert pair is None
    else:
        assert pair is not None
        assert gap(every_pair(pair, 2, HEADS, 5, 9).expand(2, HEADS, 5, 9), whole.expand(2, HEADS, 5, 9)) < 1e-6


@pytest.mark.parametrize(
    "mask", [Causal(), Causal() & Window(40), BooleanMask(random_booleans(1, 2, HEADS, 70, 90, probability=0.01))]
)
def test_blocks_are_those_of_the_mask(mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "MASK_BLOCK", 16)
    monkeypatch.setattr(flex, "block_numel", lambda device: 1)
    lead = (2, HEADS) if tensors_by_path(mask) else (1, 1)
    some, every = flex.block_coverage(mask, 70, 90, torch.device("cpu"), lead)
    whole = mask(*query_key_positions(70, 90)).expand(*lead, 70, 90)
    for at, row in enumerate(whole.split(16, -2)):
        for other, block in enumerate(row.split(16, -1)):
            assert torch.equal(some[..., at, other], block.any(-1).any(-1))
            full = block.shape[-2:] == (16, 16)
            assert torch.equal(every[..., at, other], block.all(-1).all(-1) & full)


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
def test_the_whole_is_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """flex_attention as it is on a CPU, not compiled: forward alone."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    mechanism = to_dtype(CASES[name][0].with_mask(CASES[name][1]), torch.float32)
    q, k, v = (x.bfloat16() for x in inputs(40, 50, d=16, e=16))
    assert flex.mechanism_refusal(mechanism, q, k) == ""
    with torch.no_grad():
        out = flex.run(mechanism, q, k, v, kernel=flex.flex_outputs)
    exact = reference_attention(to_dtype(mechanism, torch.float64), q.double(), k.double(), v.double())[0]
    assert gap(out, exact) < 1.5e-2


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_long_past_is_taken_in_two_where_its_bias_ends(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_tiles_that_do_not_fit_are_tried_smaller() -> None:
    tried: list[Any] = []

    def compiled(q: Tensor, tiles: Any) -> Tensor:
        tried.append(tiles)
        if len(tried) < 3:
            raise RuntimeError("No valid triton configs. OutOfMemoryError: out of resource: shared memory")
        return q

    class Played(flex.CompiledKernel):
        @property
        def compiled_function(self) -> Any:  # type: ignore[override]
            return compiled

        @compiled_function.deleter
        def compiled_function(self) -> None: ...

    kernel = Played(flex.flex_outputs)
    assert kernel.run_with_fitting_tiles(torch.ones(1)).item() == 1
    assert tried == list(flex.TILE_OPTIONS)
    assert kernel.run_with_fitting_tiles(torch.ones(1)).item() == 1
    assert len(tried) == 4


def test_what_has_no_form_for_a_pair_is_refused() -> None:
    q, k, v = inputs()
    assert "half precision on a GPU, these are float64 on cpu" in str(
        flex.try_lower(zoo_mechanism("scaled_dot"), q, k, v)
    )
    assert "Sigmoid, not softmax" in flex.mechanism_refusal(zoo_mechanism("sigmoid"), q, k)
    assert "Additive is no function of a dot product" in flex.mechanism_refusal(zoo_mechanism("additive"), q, k)
    assert "move large distances" in flex.mechanism_refusal(zoo_mechanism("metric_map"), q, k)

    class Own(Causal):
        pair_mask = None

    assert "the mask Own does not answer" in flex.mechanism_refusal(
        replace(zoo_mechanism("scaled_dot"), mask=Own()), q, k
    )

    class Apart(Buckets):
        def pair_bias(self, m: int, n: int) -> None:
            return None

    apart = replace(zoo_mechanism("scaled_dot"), position=Apart(torch.zeros(8, HEADS)))
    assert "Apart has no bias pair by pair" in flex.mechanism_refusal(apart, q, k)

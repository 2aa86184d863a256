"""Tests of every mechanism of the zoo: laws, gradients, masks, lowerings, half precision and weight statistics."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.attention.definition import query_key_positions, reference_attention, repeat_kv_heads
from rheoscope.attention.gradient import attention_gradients
from rheoscope.attention.laws import LAWS
from rheoscope.attention.lower import block_size, linear_prefix
from rheoscope.attention.lower.choice import LOWERINGS
from rheoscope.attention.lower.statistics import weight_statistics
from rheoscope.attention.mask import NoMask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position_bias import Bias
from rheoscope.attention.zoo import ZOO
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import (
    MASKS,
    MECHANISM_NAMES,
    POSITIONS,
    Inputs,
    allows,
    any_mechanism,
    gap,
    gradients,
    inputs,
    lowerings,
    random,
    reference_output,
    to_dtype,
    without_jaxtyping_checks,
    zoo_mechanism,
)

DIFFERENTIABLE = [name for name in MECHANISM_NAMES if any_mechanism(name).domain.is_differentiable]
MASKABLE = [name for name in MECHANISM_NAMES if any_mechanism(name).domain.allows_masks]
CASES = [[(mask, m, n) for m, n in ((9, 9), (5, 9))] for mask in MASKS]
CASES += [
    [(mask, m, n) for m, n in ((9, 5), (1, 9), (1, 1))] for mask in ("none", "causal", "sliding", "prefix", "table")
]
"""Every mask with m = n and m < n. The masks that blocks and kernels support also have few queries or few keys."""
TESTED_ON_ALL_CASES = {"scaled_dot", "softmax_sink", "sigmoid", "linear", "shaped"}
"""One mechanism for each lowering, and `shaped`, which has its own operand. They are tested on all cases and positions."""
POSITION_KINDS = (
    ("none",),
    ("rotary", "rotary neighbours", "sinusoidal", "learned"),
    ("alibi", "buckets", "causal buckets", "bias", "bias per text"),
    ("combined",),
)
"""Positions that change nothing, the tokens, the scores, or both. A mechanism cannot tell positions of one kind apart."""
HUGE = 100.0
"""A factor of q and k that makes dot products and squared distances of about 10^4."""


@st.composite
def random_inputs(draw: Callable[..., Any], square: bool) -> Inputs:
    """Random tensors: 1-2 texts, 1-3 key heads, 1-3 query heads per key head, 1-9 tokens, widths 1-6, any scale."""
    b, g, group = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    n, d, e = draw(st.integers(1, 9)), draw(st.integers(1, 6)), draw(st.integers(1, 6))
    m = n if square else draw(st.integers(1, 9))
    scale, seed = draw(st.sampled_from([0.0, 1e-3, 1.0, 30.0, HUGE])), draw(st.integers(0, 2**20))
    return inputs(m, n, d, e, b, g * group, g, seed, scale)


def cases(name: str) -> list[tuple[str, int, int]]:
    """The masks and sizes for a mechanism: all of them, or a third of the masks in turn with one size each.

    A mechanism sees which pairs are permitted, but not the mask. If it requires m = n, it gets all square sizes.
    """
    if name in TESTED_ON_ALL_CASES:
        return [case for sizes in CASES for case in sizes]
    if any_mechanism(name).domain.requires_square:
        return [case for sizes in CASES for case in sizes if case[1] == case[2]]
    number = MECHANISM_NAMES.index(name)
    return [sizes[(number // 3 + index) % len(sizes)] for index, sizes in enumerate(CASES) if (index + number) % 3 == 0]


def positions(name: str) -> list[str]:
    """The positions for a mechanism: all of them, or one of each kind in turn."""
    if name in TESTED_ON_ALL_CASES:
        return [*POSITIONS]
    return [kind[MECHANISM_NAMES.index(name) % len(kind)] for kind in POSITION_KINDS]


def at_positions(names: Iterable[str]) -> Any:
    """Parametrise a test over mechanisms and their positions."""
    return pytest.mark.parametrize(("name", "position"), [(name, x) for name in names for x in positions(name)])


def tolerance_factor(mechanism: Mechanism, q: torch.Tensor, k: torch.Tensor) -> float:
    """The factor by which the tolerance of a law grows with the scores.

    A score of 10^6 has a rounding error of 10^6 · 2^-53, which the weights inherit. The tolerances (1e-9) allow for scores
    up to 10^4.
    """
    s = mechanism.score(q, repeat_kv_heads(k, q.shape[1]))
    return max(1.0, float(s[s.isfinite()].abs().max()) / 1e4) if bool(s.isfinite().any()) else 1.0


@pytest.mark.parametrize(("name", "law"), [(name, law) for name, row in ZOO.items() for law in row.laws])
@settings(max_examples=4)
@given(data=st.data())
def test_declared_law(name: str, law: str, data: st.DataObject) -> None:
    q, k, v = data.draw(random_inputs(ZOO[name].domain.requires_square))
    mechanism = zoo_mechanism(name, dim=q.shape[-1])
    assert LAWS[law].violation(mechanism, q, k, v) <= LAWS[law].tolerance * tolerance_factor(mechanism, q, k)


def test_every_law_is_declared_by_a_mechanism() -> None:
    assert {law for row in ZOO.values() for law in row.laws} == set(LAWS)


def test_every_position_has_one_kind_and_every_mask_is_used_in_turn() -> None:
    assert sorted(position for kind in POSITION_KINDS for position in kind) == sorted(POSITIONS)
    in_turn = [name for name in MECHANISM_NAMES if name not in TESTED_ON_ALL_CASES]
    assert {case for name in in_turn for case in cases(name)} == {case for sizes in CASES for case in sizes}
    assert {position for name in in_turn for position in positions(name)} == set(POSITIONS)


@pytest.mark.parametrize("name", ZOO)
def test_a_call_outside_the_domain_is_refused(name: str) -> None:
    mechanism, (q, k, v) = zoo_mechanism(name), inputs(m=3, n=5)
    calls = {
        "square attention": (mechanism.domain.requires_square, lambda: mechanism(q, k, v)),
        "does not support masks": (not mechanism.domain.allows_masks, lambda: mechanism(k, k, v, mask="causal")),
        "no gradient": (not mechanism.domain.is_differentiable, lambda: attention_gradients(mechanism, k, k, v, v)),
    }
    for message, (is_refused, call) in calls.items():
        if is_refused:
            with pytest.raises(RheoscopeError, match=message):
                call()
        else:
            call()


# Gradients in closed form


@pytest.mark.parametrize("name", [name for name in ZOO if zoo_mechanism(name).domain.is_differentiable])
def test_the_gradient_of_the_reference_passes_gradcheck(name: str) -> None:
    mechanism = zoo_mechanism(name, dim=4)
    m, n = (3, 3) if mechanism.domain.requires_square else (2, 3)
    leaves = [x.requires_grad_() for x in inputs(m, n, d=4, e=2, b=1, h=2, g=1, seed=5)]
    mask = "causal" if mechanism.domain.allows_masks else None
    assert torch.autograd.gradcheck(lambda *qkv: reference_output(mechanism.with_mask(mask), *qkv), leaves)


@at_positions(DIFFERENTIABLE)
def test_the_closed_form_equals_autograd_at_every_position(name: str, position: str) -> None:
    unpositioned = any_mechanism(name)
    m, n = (5, 5) if unpositioned.domain.requires_square else (4, 6)
    mechanism = replace(unpositioned, position=POSITIONS[position](m, n))
    index = (DIFFERENTIABLE.index(name) + [*POSITIONS].index(position)) % 2
    for mask in ("none", "causal", "table per head") if position == "none" else (("none", "causal")[index],):
        if allows(mechanism, MASKS[mask](m, n), m, n):
            assert_closed_form_equals_autograd(mechanism.with_mask(MASKS[mask](m, n)), inputs(m, n, seed=31))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@settings(max_examples=4)
@given(
    seed=st.integers(0, 2**20),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0, HUGE]),
    m=st.integers(1, 7),
    n=st.integers(1, 7),
)
def test_the_closed_form_equals_autograd_at_any_size(name: str, seed: int, scale: float, m: int, n: int) -> None:
    mechanism = any_mechanism(name)
    assert_closed_form_equals_autograd(
        mechanism, inputs(n if mechanism.domain.requires_square else m, n, seed=seed, scale=scale)
    )


def assert_closed_form_equals_autograd(mechanism: Mechanism, qkv: Inputs) -> None:
    """Assert equal gradients for q, k, v and every tensor of the mechanism. R is 0 at forbidden pairs."""
    out, weights = reference_attention(mechanism, *qkv)
    g = random(41, *out.shape)
    result, expected = attention_gradients(mechanism, *qkv, g), gradients(reference_output, mechanism, qkv, g)
    closed_form = {"q": result.q, "k": result.k, "v": result.v} | result.tensors
    assert set(closed_form) == set(expected)
    assert {
        tensor: error for tensor in expected if not (error := gap(closed_form[tensor], expected[tensor])) <= 1e-9
    } == {}
    permitted = mechanism.mask(*query_key_positions(out.shape[-2], weights.shape[-1]))
    assert not bool((result.scores * ~permitted).any())


@pytest.mark.parametrize(
    "name", [name for name in ZOO if "shift_invariant" in ZOO[name].laws and name in DIFFERENTIABLE]
)
def test_rows_of_the_reversed_map_sum_to_zero(name: str) -> None:
    """A function that ignores constants along a row has no gradient along (1, …, 1)."""
    mechanism = zoo_mechanism(name)
    q, k, v = inputs(5, 5)
    r = attention_gradients(
        mechanism, q, k, v, random(42, 2, 4, 5, 3), "causal" if mechanism.domain.allows_masks else None
    ).scores
    assert bool(r.abs().max() > 1e-3)
    assert float(r.sum(-1).abs().max()) < 1e-12


@pytest.mark.parametrize("name", ["sink per head", "sink shared"])
def test_the_gradient_of_the_sink_completes_the_row_sums_of_the_reversed_map(name: str) -> None:
    q, k, v = inputs(4, 6)
    result = attention_gradients(any_mechanism(name), q, k, v, random(42, 2, 4, 4, 3), "causal")
    missing, sink_gradient = result.scores.sum((0, -2, -1)), result.tensors["normaliser.sink"]
    assert float(missing.abs().max()) > 1e-3
    assert gap(-missing.sum_to_size(sink_gradient.shape), sink_gradient) < 1e-12


# Empty rows and huge logits


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        (name, mask)
        for index, name in enumerate(MASKABLE)
        for mask in (("table", "table per head")[index % 2], "padding")
    ],
)
def test_a_row_without_keys_has_output_and_gradient_0(name: str, mask: str) -> None:
    mechanism, (q, k, v) = any_mechanism(name).with_mask(MASKS[mask](5, 5)), inputs(5, 5)
    empty = ~mechanism.mask(*query_key_positions(5, 5)).any(-1).expand(2, 4, 5)
    assert bool(empty.any())
    assert not bool(reference_attention(mechanism, q, k, v)[1][empty].any())
    for lowering, run in lowerings(mechanism, q, k, v).items():
        out = run(q, k, v)
        assert not bool(out[empty].any()), lowering
        if mechanism.domain.is_differentiable:
            grads = gradients(output_by(lowering), mechanism, (q, k, v), random(43, *out.shape))
            assert all(bool(x.isfinite().all()) for x in grads.values()), lowering
            assert not bool(grads["q"][empty].any()), lowering


def output_by(name: str) -> Callable[..., torch.Tensor]:
    return lambda mechanism, *qkv: LOWERINGS[name](mechanism, *qkv).run(mechanism, *qkv)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MECHANISM_NAMES)
def test_huge_logits_stay_finite(name: str, dtype: torch.dtype) -> None:
    """Logits of ±10^4, from long tokens and from a bias. Bounded scores such as the cosine need the bias."""
    biased = replace(any_mechanism(name), position=Bias(1e4 * random(44, 4, 5, 5).sign()))
    for mechanism, scale in ((any_mechanism(name), HUGE), (biased, 1.0)):
        mechanism, qkv = to_dtype(mechanism, dtype), tuple(x.to(dtype) for x in inputs(5, 5, scale=scale))
        for lowering, run in lowerings(mechanism, *qkv).items():
            out = run(*qkv)
            assert bool(out.isfinite().all()), lowering
            if mechanism.domain.is_differentiable:
                grads = gradients(output_by(lowering), mechanism, qkv, random(45, *out.shape))
                assert all(bool(x.isfinite().all()) for x in grads.values()), lowering


# Lowerings


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 2 texts x 4 heads x 9 keys x 4 rows and chunks of 4, so that 9 tokens fill several of them."""
    monkeypatch.setattr(block_size, "CPU_BLOCK", 2 * 4 * 9 * 4)
    monkeypatch.setattr(linear_prefix, "CHUNK", 4)


@pytest.fixture
def no_shape_checks() -> Iterator[None]:
    """No shape checks, which would double the time. Other tests check the same shapes."""
    with without_jaxtyping_checks():
        yield


@pytest.mark.usefixtures("small_blocks", "no_shape_checks")
@pytest.mark.parametrize("name", MECHANISM_NAMES)
def test_every_lowering_equals_the_reference(name: str) -> None:
    """Output and gradients in float32 are within 1e-5 of the reference in float64."""
    exact = any_mechanism(name)
    for mask, m, n in cases(name):
        if allows(exact, MASKS[mask](m, n), m, n):
            compare_lowerings(exact.with_mask(MASKS[mask](m, n)), inputs(m, n, seed=51), f"{mask} {m} {n}")


@pytest.mark.usefixtures("small_blocks", "no_shape_checks")
@at_positions([*ZOO, "sink per head"])
def test_every_lowering_equals_the_reference_at_every_position(name: str, position: str) -> None:
    """One of four masks in turn, among those that the mechanism and the position allow."""
    index = MECHANISM_NAMES.index(name) + [*POSITIONS].index(position)
    allowed = [
        (exact.with_mask(MASKS[mask](m, n)), m, n, mask)
        for mask, m, n in (("none", 9, 9), ("causal", 9, 9), ("sliding", 5, 9), ("causal", 1, 9))
        if allows(exact := replace(any_mechanism(name), position=POSITIONS[position](m, n)), MASKS[mask](m, n), m, n)
    ]
    exact, m, n, mask = allowed[index % len(allowed)]
    compare_lowerings(exact, inputs(m, n, seed=52), f"{mask} {m} {n}")


def compare_lowerings(exact: Mechanism, qkv: Inputs, case: str) -> None:
    """Compare with and without autograd, because some lowerings compute differently."""
    expected, _ = reference_attention(exact, *qkv)
    g = random(53, *expected.shape)
    is_differentiable = exact.domain.is_differentiable
    expected_grads = gradients(reference_output, exact, qkv, g) if is_differentiable else {}
    mechanism, float32_qkv = to_dtype(exact, torch.float32), tuple(x.float() for x in qkv)
    for lowering, run in lowerings(mechanism, *float32_qkv).items():
        with torch.no_grad():
            assert gap(run(*float32_qkv), expected) < 1e-5, f"{lowering}: {case}"
        grads = gradients(output_by(lowering), mechanism, float32_qkv, g.float()) if is_differentiable else {}
        errors = {
            tensor: error
            for tensor in expected_grads
            if not (error := gap(grads[tensor], expected_grads[tensor])) < 1e-5
        }
        assert errors == {}, f"{lowering}: {case}"


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MECHANISM_NAMES)
def test_half_precision_errors_are_a_few_units_of_rounding(name: str, dtype: torch.dtype) -> None:
    """Compare with float64 on the same rounded inputs, in units of eps times the largest number.

    `reference`, `blocks` and `prefix` compute in float32 and round once, so the bound is half a unit plus float32 errors (0.6).
    `sdpa` also rounds the weights, and `shaped` rounds each of its three summands. Their bound is 2 units, and 4 for gradients.
    """
    dtypes, mechanism = (torch.float16, torch.bfloat16), any_mechanism(name)
    masks = (("none", 5, 9) if dtype is torch.float16 else ("causal", 9, 9), ("table", 9, 9))
    allowed = [case for case in masks if allows(mechanism, NoMask(), *case[1:])]
    mask, m, n = allowed[(MECHANISM_NAMES.index(name) + dtypes.index(dtype)) % len(allowed)]
    exact = mechanism.with_mask(MASKS[mask](m, n) if mechanism.domain.allows_masks else None)
    compare_half_precision(to_dtype(exact, torch.float32), tuple(x.to(dtype) for x in inputs(m, n, seed=54)))


def compare_half_precision(mechanism: Mechanism, half: Inputs) -> None:
    dtype, exact, rounded = half[0].dtype, to_dtype(mechanism, torch.float64), tuple(x.double() for x in half)
    expected, _ = reference_attention(exact, *rounded)
    g = random(55, *expected.shape, dtype=dtype)
    is_differentiable, eps = mechanism.domain.is_differentiable, torch.finfo(dtype).eps
    expected_grads = gradients(reference_output, exact, rounded, g.double()) if is_differentiable else {}
    largest = max(1.0, float(expected.abs().max()), float(half[2].abs().max()))
    for lowering, run in lowerings(mechanism, *half).items():
        bound, grad_bound = (2, 4) if lowering in ("sdpa", "shaped") else (0.6, 0.6)
        out = run(*half)
        assert out.dtype == dtype, lowering
        assert float((out.double() - expected).abs().max()) <= bound * eps * largest, lowering
        if is_differentiable:
            grads = gradients(output_by(lowering), mechanism, half, g)
            errors = {tensor: gap(grads[tensor], expected_grads[tensor]) / eps for tensor in expected_grads}
            assert {tensor: error for tensor, error in errors.items() if not error <= grad_bound} == {}, lowering
            assert {grads[c].dtype for c in "qkv"} == {dtype}, lowering


# Statistics of the weights


@pytest.mark.usefixtures("small_blocks", "no_shape_checks")
@pytest.mark.parametrize(
    "name", [name for name in MECHANISM_NAMES if not any_mechanism(name).domain.has_negative_weights]
)
def test_streamed_statistics_equal_those_of_the_weights(name: str) -> None:
    mechanism = any_mechanism(name)
    for mask, m, n in cases(name):
        if not allows(mechanism, MASKS[mask](m, n), m, n):
            continue
        q, k, _ = inputs(m, n, seed=61)
        statistics, a = (
            weight_statistics(mechanism, q, k, MASKS[mask](m, n)),
            mechanism.weights(q, k, MASKS[mask](m, n)),
        )
        share, (i, j) = a / a.sum(-1, keepdim=True).clamp(min=1e-300), query_key_positions(m, n)
        expected = {
            "entropy": -(share * share.clamp(min=1e-300).log()).sum(-1),
            "first": a[..., 0],
            "top": a.amax(-1),
            "distance": (share * (i[:, None] - j).abs()).sum(-1),
            "received": a.sum(-2),
        }
        errors = {
            statistic: error for statistic, x in expected.items() if not (error := gap(statistics[statistic], x)) < 1e-9
        }
        assert (set(statistics), errors) == (set(expected), {}), f"{mask} {m} {n}"

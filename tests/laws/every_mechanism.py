"""One battery for every row of the zoo: a mechanism added there is tested here without writing a test."""

from collections.abc import Callable, Iterator
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
"""Every mask over a whole text and its end; those that blocks and kernels know, also with few queries and few keys."""
WHOLE = {"scaled_dot", "softmax_sink", "sigmoid", "linear", "shaped"}
"""A mechanism for each lowering, and one with an operand of its own: tried at every case."""
HUGE = 100.0
"""q and k stretched by this make dot products and squared distances of about 10^4."""


@st.composite
def drawn(draw: Callable[..., Any], square: bool) -> Inputs:
    """Random tensors: 1-2 texts, 1-3 key heads, 1-3 query heads to each, 1-9 tokens, any widths, from 0 to huge."""
    b, g, group = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    n, d, e = draw(st.integers(1, 9)), draw(st.integers(1, 6)), draw(st.integers(1, 6))
    m = n if square else draw(st.integers(1, 9))
    scale, seed = draw(st.sampled_from([0.0, 1e-3, 1.0, 30.0, HUGE])), draw(st.integers(0, 2**20))
    return inputs(m, n, d, e, b, g * group, g, seed, scale)


def cases(name: str) -> list[tuple[str, int, int]]:
    """Every mask at one of its sizes, another with each mechanism, or at all of them; no size but one where m must be n."""
    if name in WHOLE:
        return [case for sizes in CASES for case in sizes]
    if any_mechanism(name).domain.requires_square:
        return [case for sizes in CASES for case in sizes if case[1] == case[2]]
    return [sizes[(MECHANISM_NAMES.index(name) + at) % len(sizes)] for at, sizes in enumerate(CASES)]


def room(mechanism: Mechanism, q: torch.Tensor, k: torch.Tensor) -> float:
    """How much looser than for scores of order 1 a law may be: a score of 10^6 is only known to 10^6 · 2^-53, and that
    error, not the law's, is what the weights then show. The tolerances (1e-9) leave this room up to scores of 10^4."""
    s = mechanism.score(q, repeat_kv_heads(k, q.shape[1]))
    return max(1.0, float(s[s.isfinite()].abs().max()) / 1e4) if bool(s.isfinite().any()) else 1.0


@pytest.mark.parametrize(("name", "law"), [(name, law) for name, row in ZOO.items() for law in row.laws])
@settings(max_examples=6)
@given(data=st.data())
def test_declared_law(name: str, law: str, data: st.DataObject) -> None:
    q, k, v = data.draw(drawn(ZOO[name].domain.requires_square))
    mechanism = zoo_mechanism(name, dim=q.shape[-1])
    assert LAWS[law].violation(mechanism, q, k, v) <= LAWS[law].tolerance * room(mechanism, q, k)


def test_the_laws_declared_are_the_laws_there_are() -> None:
    assert {law for row in ZOO.values() for law in row.laws} == set(LAWS)


@pytest.mark.parametrize("name", ZOO)
def test_outside_its_domain_it_refuses(name: str) -> None:
    mechanism, (q, k, v) = zoo_mechanism(name), inputs(m=3, n=5)
    calls = {
        "square attention": (mechanism.domain.requires_square, lambda: mechanism(q, k, v)),
        "does not support masks": (not mechanism.domain.allows_masks, lambda: mechanism(k, k, v, mask="causal")),
        "no gradient": (not mechanism.domain.is_differentiable, lambda: attention_gradients(mechanism, k, k, v, v)),
    }
    for words, (outside, call) in calls.items():
        if outside:
            with pytest.raises(RheoscopeError, match=words):
                call()
        else:
            call()


# The gradient in closed form


@pytest.mark.parametrize("name", [name for name in ZOO if zoo_mechanism(name).domain.is_differentiable])
def test_the_reference_has_the_gradient_it_claims(name: str) -> None:
    mechanism = zoo_mechanism(name)
    m, n = (3, 3) if mechanism.domain.requires_square else (2, 3)
    leaves = [x.requires_grad_() for x in inputs(m, n, b=1, h=2, g=1, seed=5)]
    mask = "causal" if mechanism.domain.allows_masks else None
    assert torch.autograd.gradcheck(lambda *qkv: reference_output(mechanism.with_mask(mask), *qkv), leaves)


@pytest.mark.parametrize("at", POSITIONS)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_the_closed_form_is_the_gradient(name: str, at: str) -> None:
    bare = any_mechanism(name)
    m, n = (5, 5) if bare.domain.requires_square else (4, 6)
    mechanism = replace(bare, position=POSITIONS[at](m, n))
    turn = (DIFFERENTIABLE.index(name) + [*POSITIONS].index(at)) % 2
    for mask in ("none", "causal", "table per head") if at == "none" else (("none", "causal")[turn],):
        if allows(mechanism, MASKS[mask](m, n), m, n):
            agree(mechanism.with_mask(MASKS[mask](m, n)), inputs(m, n, seed=31))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@settings(max_examples=6)
@given(
    seed=st.integers(0, 2**20),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0, HUGE]),
    m=st.integers(1, 7),
    n=st.integers(1, 7),
)
def test_the_closed_form_at_any_size(name: str, seed: int, scale: float, m: int, n: int) -> None:
    mechanism = any_mechanism(name)
    agree(mechanism, inputs(n if mechanism.domain.requires_square else m, n, seed=seed, scale=scale))


def agree(mechanism: Mechanism, qkv: Inputs) -> None:
    """Closed form = autograd for q, k, v and every tensor of the mechanism; R is 0 where the mask forbids."""
    out, weights = reference_attention(mechanism, *qkv)
    g = random(41, *out.shape)
    mine, auto = attention_gradients(mechanism, *qkv, g), gradients(reference_output, mechanism, qkv, g)
    got = {"q": mine.q, "k": mine.k, "v": mine.v} | mine.tensors
    assert set(got) == set(auto)
    assert {at: off for at in auto if not (off := gap(got[at], auto[at])) <= 1e-9} == {}
    permitted = mechanism.mask(*query_key_positions(out.shape[-2], weights.shape[-1]))
    assert not bool((mine.scores * ~permitted).any())


@pytest.mark.parametrize(
    "name", [name for name in ZOO if "shift_invariant" in ZOO[name].laws and name in DIFFERENTIABLE]
)
def test_rows_of_the_reversed_map_sum_to_zero(name: str) -> None:
    """What does not feel a constant along a row has no gradient along it."""
    mechanism = zoo_mechanism(name)
    q, k, v = inputs(5, 5)
    r = attention_gradients(
        mechanism, q, k, v, random(42, 2, 4, 5, 3), "causal" if mechanism.domain.allows_masks else None
    ).scores
    assert bool(r.abs().max() > 1e-3)
    assert float(r.sum(-1).abs().max()) < 1e-12


@pytest.mark.parametrize("name", ["sink per head", "sink shared"])
def test_the_sink_takes_what_the_rows_of_the_reversed_map_lack(name: str) -> None:
    q, k, v = inputs(4, 6)
    found = attention_gradients(any_mechanism(name), q, k, v, random(42, 2, 4, 4, 3), "causal")
    missing, own = found.scores.sum((0, -2, -1)), found.tensors["normaliser.sink"]
    assert float(missing.abs().max()) > 1e-3
    assert gap(-missing.sum_to_size(own.shape), own) < 1e-12


# Masks that forbid everything, logits that are huge


@pytest.mark.parametrize("mask", ["table", "table per head", "padding"])
@pytest.mark.parametrize("name", MASKABLE)
def test_a_row_without_keys_gives_zero(name: str, mask: str) -> None:
    mechanism, (q, k, v) = any_mechanism(name).with_mask(MASKS[mask](5, 5)), inputs(5, 5)
    empty = ~mechanism.mask(*query_key_positions(5, 5)).any(-1).expand(2, 4, 5)
    assert bool(empty.any())
    assert not bool(reference_attention(mechanism, q, k, v)[1][empty].any())
    for lowering, run in lowerings(mechanism, q, k, v).items():
        out = run(q, k, v)
        assert not bool(out[empty].any()), lowering
        if mechanism.domain.is_differentiable:
            found = gradients(lowered(lowering), mechanism, (q, k, v), random(43, *out.shape))
            assert all(bool(x.isfinite().all()) for x in found.values()), lowering
            assert not bool(found["q"][empty].any()), lowering


def lowered(name: str) -> Callable[..., torch.Tensor]:
    return lambda mechanism, *qkv: LOWERINGS[name](mechanism, *qkv).run(mechanism, *qkv)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MECHANISM_NAMES)
def test_huge_logits_stay_finite(name: str, dtype: torch.dtype) -> None:
    """Logits of ±10^4, from long tokens and from a bias (which alone reaches scores that are bounded, as the cosine)."""
    biased = replace(any_mechanism(name), position=Bias(1e4 * random(44, 4, 5, 5).sign()))
    for mechanism, scale in ((any_mechanism(name), HUGE), (biased, 1.0)):
        mechanism, qkv = to_dtype(mechanism, dtype), tuple(x.to(dtype) for x in inputs(5, 5, scale=scale))
        for lowering, run in lowerings(mechanism, *qkv).items():
            out = run(*qkv)
            assert bool(out.isfinite().all()), lowering
            if mechanism.domain.is_differentiable:
                found = gradients(lowered(lowering), mechanism, qkv, random(45, *out.shape))
                assert all(bool(x.isfinite().all()) for x in found.values()), lowering


# Lowerings


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few numbers a block that 9 tokens fill several (2 texts x 4 heads x 9 keys x 4 rows), and chunks of 4."""
    monkeypatch.setattr(block_size, "CPU_BLOCK", 2 * 4 * 9 * 4)
    monkeypatch.setattr(linear_prefix, "CHUNK", 4)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Types are checked by the tests around; here that would double the time."""
    with without_jaxtyping_checks():
        yield


@pytest.mark.usefixtures("small_blocks", "unchecked")
@pytest.mark.parametrize("name", MECHANISM_NAMES)
def test_every_lowering_is_the_reference(name: str) -> None:
    """In float32, output and all gradients to 1e-5 of the reference in float64."""
    exact = any_mechanism(name)
    for mask, m, n in cases(name):
        if allows(exact, MASKS[mask](m, n), m, n):
            compare_lowerings(exact.with_mask(MASKS[mask](m, n)), inputs(m, n, seed=51), f"{mask} {m} {n}")


@pytest.mark.usefixtures("small_blocks", "unchecked")
@pytest.mark.parametrize("at", POSITIONS)
@pytest.mark.parametrize("name", [*ZOO, "sink per head"])
def test_every_lowering_at_every_position(name: str, at: str) -> None:
    """Four masks, in turn, of those that both allow: every mechanism and every position meets each."""
    turn = MECHANISM_NAMES.index(name) + [*POSITIONS].index(at)
    allowed = [
        (exact.with_mask(MASKS[mask](m, n)), m, n, mask)
        for mask, m, n in (("none", 9, 9), ("causal", 9, 9), ("sliding", 5, 9), ("causal", 1, 9))
        if allows(exact := replace(any_mechanism(name), position=POSITIONS[at](m, n)), MASKS[mask](m, n), m, n)
    ]
    exact, m, n, mask = allowed[turn % len(allowed)]
    compare_lowerings(exact, inputs(m, n, seed=52), f"{mask} {m} {n}")


def compare_lowerings(exact: Mechanism, qkv: Inputs, case: str) -> None:
    """Without a graph and with one: some lowerings take another way then."""
    expected, _ = reference_attention(exact, *qkv)
    g = random(53, *expected.shape)
    smooth = exact.domain.is_differentiable
    slopes = gradients(reference_output, exact, qkv, g) if smooth else {}
    mechanism, single = to_dtype(exact, torch.float32), tuple(x.float() for x in qkv)
    for lowering, run in lowerings(mechanism, *single).items():
        with torch.no_grad():
            assert gap(run(*single), expected) < 1e-5, f"{lowering}: {case}"
        found = gradients(lowered(lowering), mechanism, single, g.float()) if smooth else {}
        wrong = {at: off for at in slopes if not (off := gap(found[at], slopes[at])) < 1e-5}
        assert wrong == {}, f"{lowering}: {case}"


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MECHANISM_NAMES)
def test_half_precision_costs_its_own_rounding(name: str, dtype: torch.dtype) -> None:
    """Against float64 of the same rounded inputs, in units of eps times the largest number involved.

    `reference`, `blocks` and `prefix` compute in float32 and round once: half a unit (0.6 with float32's own error).
    `sdpa` rounds the weights too before it averages, `shaped` each of its three summands: 2 units, and 4 for gradients,
    which average twice."""
    for mask, m, n in (("none", 5, 9) if dtype is torch.float16 else ("causal", 9, 9), ("table", 9, 9)):
        exact = any_mechanism(name).with_mask(MASKS[mask](m, n) if any_mechanism(name).domain.allows_masks else None)
        if allows(exact, NoMask(), m, n):
            compare_half(to_dtype(exact, torch.float32), tuple(x.to(dtype) for x in inputs(m, n, seed=54)))


def compare_half(mechanism: Mechanism, half: Inputs) -> None:
    dtype, exact, rounded = half[0].dtype, to_dtype(mechanism, torch.float64), tuple(x.double() for x in half)
    expected, _ = reference_attention(exact, *rounded)
    g = random(55, *expected.shape, dtype=dtype)
    smooth, eps = mechanism.domain.is_differentiable, torch.finfo(dtype).eps
    slopes = gradients(reference_output, exact, rounded, g.double()) if smooth else {}
    largest = max(1.0, float(expected.abs().max()), float(half[2].abs().max()))
    for lowering, run in lowerings(mechanism, *half).items():
        bound, slope_bound = (2, 4) if lowering in ("sdpa", "shaped") else (0.6, 0.6)
        out = run(*half)
        assert out.dtype == dtype, lowering
        assert float((out.double() - expected).abs().max()) <= bound * eps * largest, lowering
        if smooth:
            found = gradients(lowered(lowering), mechanism, half, g)
            worst = {at: gap(found[at], slopes[at]) / eps for at in slopes}
            assert {at: x for at, x in worst.items() if not x <= slope_bound} == {}, lowering
            assert {found[c].dtype for c in "qkv"} == {dtype}, lowering


# Statistics of the weights


@pytest.mark.usefixtures("small_blocks", "unchecked")
@pytest.mark.parametrize(
    "name", [name for name in MECHANISM_NAMES if not any_mechanism(name).domain.has_negative_weights]
)
def test_streamed_statistics_are_those_of_the_weights(name: str) -> None:
    mechanism = any_mechanism(name)
    for mask, m, n in cases(name):
        if not allows(mechanism, MASKS[mask](m, n), m, n):
            continue
        q, k, _ = inputs(m, n, seed=61)
        got, a = weight_statistics(mechanism, q, k, MASKS[mask](m, n)), mechanism.weights(q, k, MASKS[mask](m, n))
        share, (i, j) = a / a.sum(-1, keepdim=True).clamp(min=1e-300), query_key_positions(m, n)
        expected = {
            "entropy": -(share * share.clamp(min=1e-300).log()).sum(-1),
            "first": a[..., 0],
            "top": a.amax(-1),
            "distance": (share * (i[:, None] - j).abs()).sum(-1),
            "received": a.sum(-2),
        }
        wrong = {what: off for what, x in expected.items() if not (off := gap(got[what], x)) < 1e-9}
        assert (set(got), wrong) == (set(expected), {}), f"{mask} {m} {n}"

"""The boundary: the same one changes nothing, nothing before it changes, dense twins, and a planted place to settle at."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rheoscope as rs
from rheoscope.covers.boundary.analysis import find_shared_tokens, hold_others_fixed, with_reorderings
from rheoscope.covers.fixed_point.analysis import layer_map
from tests.cases import default, double, traced
from tests.covers.cases import bare
from tests.covers.test_fixed_point import dense
from tests.pretrained.cases import random

F64 = torch.float64
ENDING = [7, 21, 9, 30]
TEXTS = [[5, 11, 4, *ENDING], [5, 8, 17, *ENDING]]
SOME = ["gpt2", "gemma3", "neox", "own_sigmoid"]
"""Both positions, windows, a parallel block, and weights that add up to nothing in particular."""
MAPS = ["gpt2", "llama", "gemma3", "qwen3", "neox", "opt", "own", "own_metric", "own_sigmoid"]


@pytest.mark.parametrize("name", SOME)
def test_the_same_boundary_changes_nothing(name: str) -> None:
    found = rs.boundary(double(name), [TEXTS[0], TEXTS[0], TEXTS[1]], applications=3, iterations=4)
    for field in found.data_vars:
        if "text" in found[field].dims:
            assert np.array_equal(found[field][0], found[field][1]), field
    for field in ("input_angle", "input_angle_token", "final_angle", "final_angle_token"):
        assert not found[field][:2].any(), field
    assert float(found.final_angle[2].min()) > 0
    assert float(found.input_angle[2, 1]) > 0


@pytest.mark.parametrize("name", MAPS)
def test_nothing_before_the_boundary_changes(name: str) -> None:
    """Law: a causal past does not see its future, bit for bit; the tokens after it do."""
    found = rs.boundary(double(name), [[3, 9, 4, 12, *ENDING], [3, 9, 4, 8, *ENDING]], applications=3, iterations=2)
    before = ~found.after_boundary.values
    assert before.tolist() == [True] * 3 + [False] * 4
    for field in ("input_angle_token", "final_angle_token"):
        assert not found[field].values[..., before].any(), field
    assert float(found.input_angle_token.isel(layer=1).values[1, ~before][:3].min()) > 0  # as far as windows reach
    assert float(found.final_angle_token.values[1][:, ~before][:, :3].min()) > 0


def test_a_model_that_reads_both_ways_changes_before_it_too() -> None:
    found = rs.boundary(
        double("own_encoder_buckets"), [[3, 9, 12, *ENDING], [3, 9, 8, *ENDING]], applications=1, iterations=2
    )
    assert float(found.input_angle_token.isel(layer=1).values[1, :2].min()) > 0


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
def test_it_equals_dense_twins(name: str) -> None:
    """Points, an orbit by hand with the boundary put back each time, and the block of the dense Jacobian between shared tokens."""
    model, texts = double(name), [[5, 6, *ENDING], [8, 13, 17, *ENDING]]
    found = rs.boundary(model, texts, layers=[1], applications=3, iterations=60, keep_massive=True)
    directions = []
    for at, ids in enumerate(texts):
        trace = model.trace(ids)
        T, x, free = layer_map(trace, 1), trace.layer_input(1), len(ids) - 4
        J = dense(T, x).detach().reshape(len(ids), 32, len(ids), 32)[free:, :, free:]
        one = found.isel(text=at, layer=0)
        norm = torch.linalg.matrix_norm(J.reshape(128, 128), 2)
        assert float(one.jacobian_norm) == pytest.approx(float(norm), rel=1e-4)
        blocks = max(float(torch.linalg.eigvals(J[i, :, i]).abs().amax()) for i in range(4))
        assert float(one.jacobian_radius) == pytest.approx(blocks, rel=1e-4)
        moved = ((T(x) - x)[free:].norm() / x[free:].norm()).detach()
        assert float(one.residual) == pytest.approx(float(moved))
        settled = x.clone()
        for _ in range(3):
            settled[free:] = T(settled)[free:].detach()
        directions.append([torch.nn.functional.normalize(y[free:].detach(), dim=-1) for y in (x, settled)])
    for end, field in enumerate(("input_angle", "final_angle")):
        cosines = (directions[0][end] * directions[1][end]).sum(-1)
        assert found[f"{field}_token"].values[1, 0] == pytest.approx(cosines.clamp(-1, 1).arccos().numpy(), abs=1e-6)
        assert found[field].values[1, 0] == pytest.approx(float(cosines.arccos().mean()), abs=1e-6)
        table = (directions[0][end] @ directions[0][end].mT).clamp(-1, 1).arccos()
        pairs = table[*torch.triu_indices(4, 4, 1)]
        assert float(found[f"{field}_null"][0]) == pytest.approx(float(pairs.mean()), abs=1e-6)
    assert found.boundary.values.tolist() == ["".join(model.trace(ids).tokens[:-4]).strip() for ids in texts]
    assert found.token.values.tolist() == [2, 3, 4, 5]


def test_two_texts_may_change_places() -> None:
    one, other = (rs.boundary(double("llama"), order, iterations=3) for order in (TEXTS, TEXTS[::-1]))
    for field in ("input_angle", "final_angle", "input_angle_token", "final_angle_token"):
        assert np.allclose(one[field][1], other[field][1], atol=1e-12)
    for field in ("residual", "jacobian_norm", "jacobian_radius", "repeated_rotation_angle"):
        assert np.array_equal(one[field].values, other[field].values[::-1]), field


@torch.no_grad()
def planted(strength: float) -> Any:
    """One head, no MLP: every token looks at the first one alone, and takes it over whole, times `strength`.

    Axis 0 is in all tokens and asks; axis 1, which answers, is in the first tokens (ids 1, 2) alone.
    """
    model = bare(width=16)
    heads = model.view.layer_heads[0]
    for W in (heads.W_Q, heads.W_K, heads.W_V, heads.W_O):
        W.zero_()
    heads.W_Q[0, 0, 0] = heads.W_K[0, 1, 0] = 200.0
    heads.W_V[0].copy_(torch.eye(16))
    heads.W_O[0].copy_(strength * torch.eye(16))
    for part in model.network.stack.blocks[0].ffn.parameters():
        part.zero_()
    rows = random(5, 300, 16)
    rows[:, 0], rows[:, 1] = 3.0, 0.0
    rows[1:3, 1] = 9.0
    model.view.embed.copy_(rows)
    return model


def test_tokens_settle_where_the_planted_boundary_is() -> None:
    model = planted(1e4)
    found = rs.boundary(model, [[1, 7, 8, 9], [2, 7, 8, 9], [1, 30, 7, 8, 9]], applications=12, iterations=60)
    first = torch.nn.functional.normalize(model.view.embed[1:3].double(), dim=-1)
    apart = float((first[0] @ first[1]).detach().arccos())
    assert not found.input_angle.any()  # the first layer reads embeddings
    assert found.final_angle_token.values[1, 0] == pytest.approx(apart, abs=1e-3)
    assert float(found.final_angle[1, 0]) > 100 * float(
        found.final_angle_null[0]
    )  # one place for all tokens, another for each boundary
    assert float(found.final_angle[2, 0]) < 1e-3  # the same first token: the same place


def test_a_layer_that_does_not_look_does_not_know_its_boundary() -> None:
    model = planted(0.0)
    found = rs.boundary(model, [[1, 7, 8, 9], [2, 7, 8, 9]], iterations=4)
    for field in ("input_angle", "final_angle", "residual"):
        assert not found[field].any(), field
    assert found.jacobian_norm.values == pytest.approx(1)
    assert found.jacobian_radius.values == pytest.approx(1)


def test_of_one_text_two_other_orders_of_its_first_half_are_made() -> None:
    model, ids = double("llama"), [5, 11, 4, 8, 17, 3, *ENDING]
    asked: dict[str, Any] = {"layers": [1], "times": 2, "iterations": 2}
    found = rs.boundary(model, ids, **asked)
    assert found.sizes["text"] == 3
    assert found.equals(rs.boundary(model, torch.tensor(ids), **asked))
    assert found.equals(rs.boundary(model, [one.tolist() for one in with_reorderings(torch.tensor(ids), 0)], **asked))
    assert float(found.input_angle[1:].min()) > 0
    other = rs.boundary(model, ids, **asked, seed=1)
    assert not np.array_equal(found.input_angle, other.input_angle)


@given(ids=st.lists(st.integers(3, 9), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_other_orders_have_the_same_tokens_and_the_same_ends(ids: list[int], seed: int) -> None:
    half = max(3, len(ids) // 2)
    if len(set(ids[1 : min(half, len(ids) - 1)])) < 2:
        with pytest.raises(rs.RheoscopeError, match="no other order"):
            with_reorderings(torch.tensor(ids), seed)
        return
    own, *others = (one.tolist() for one in with_reorderings(torch.tensor(ids), seed))
    assert own == ids
    assert len(others) == 2
    for one in others:
        assert one != ids
        assert (one[0], one[half:]) == (ids[0], ids[half:])
        assert sorted(one) == sorted(ids)


@settings(max_examples=15)
@given(
    start=st.lists(st.integers(3, 39), max_size=3),
    end=st.lists(st.integers(3, 39), min_size=1, max_size=4),
    differ=st.lists(st.lists(st.integers(3, 39), max_size=3), min_size=2, max_size=3),
)
def test_shared_tokens_are_the_same_in_every_text(start: list[int], end: list[int], differ: list[list[int]]) -> None:
    texts = [[*start, *one, *end] for one in differ]
    places, before = find_shared_tokens([double("gpt2").trace(ids) for ids in texts])
    held_in = [[ids[at] for at in there.tolist()] for ids, there in zip(texts, places, strict=True)]
    assert all(one == held_in[0] for one in held_in)
    assert len(places[0]) >= min(len(start) + len(end), min(map(len, texts)))
    for ids, there in zip(texts, places, strict=True):
        assert there[before:].tolist() == list(range(len(ids) - len(there) + before, len(ids)))
    if all(ids == texts[0] for ids in texts):
        assert (before, len(places[0])) == (0, len(texts[0]))


def test_held_tokens_do_not_move_and_others_do() -> None:
    x, at = random(0, 5, 3), torch.tensor([1, 3])
    T = hold_others_fixed(lambda x: x.cumsum(0), x, at)
    inner = random(1, 2, 3)
    assert torch.allclose(T(inner), torch.stack([x[0] + inner[0], x[0] + inner[0] + x[2] + inner[1]]))


def test_massive_tokens_count_nowhere() -> None:
    model = default()
    texts = [f"{first} to the cabinet are on the table" for first in ("The keys", "A dog and the way")]
    plain, every = (
        rs.boundary(model, texts, layers=[3], applications=1, iterations=2, keep_massive=keep) for keep in (False, True)
    )
    assert plain.attrs["massive"] == [model.trace(text).massive_tokens() for text in texts]
    assert plain.input_angle_token.equals(every.input_angle_token)
    after = [at for at, there in zip(plain.token.values, plain.after_boundary.values, strict=True) if there]
    usual = [at for at in after if at not in plain.attrs["massive"][0]]
    assert float(plain.input_angle[1, 0]) == pytest.approx(
        float(plain.input_angle_token[1, 0].sel(token=usual).mean()), rel=1e-5
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"texts": [5, 6]},
            "the first half of this text of 2 tokens has no other order; type two texts that end alike",
        ),
        ({"texts": [5, 7, 7, 7, 7, 6]}, "has no other order; type"),
        (
            {"texts": ["The keys", "The dog"]},
            r"end in different tokens \(.*\), so nothing is shared .* type texts that end",
        ),
        ({"texts": ["The keys", "A keys"], "layers": [99]}, "no layer 99"),
        ({"texts": ["The keys", "A keys"], "layers": []}, r"got layers=\[\], applications=8"),
        (
            {"texts": ["The keys", "A keys"], "applications": 0},
            "applications must lie between 1 and 10,000, got 0; type applications=1",
        ),
        ({"texts": ["The keys", ""]}, "text"),
    ],
)
def test_bad_input_is_told_in_one_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=said) as error:
        rs.boundary(default(), **asked)
    assert "\n" not in str(error.value)


def test_a_block_whose_norms_follow_its_sums_is_refused() -> None:
    with pytest.raises(rs.RheoscopeError, match=r"layer 0 is no x \+ attention \+ MLP"):
        rs.boundary(double("bert"), TEXTS)
    assert traced("bert", F64) is not None

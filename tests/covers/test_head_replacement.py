"""Operations: a changed form or content in a running model equals dense twins; controls have the size and spectrum they claim."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import rheoscope as rs
from rheoscope.attention.definition import query_key_positions
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers import head_replacement
from rheoscope.covers.head_replacement import model_edits, plan_edits, score_norm
from rheoscope.covers.head_selection import select_heads
from rheoscope.covers.reversed_attention.analysis import attention_output_step
from rheoscope.space.bilinear_form import heads_form, operator_at_offset
from rheoscope.space.head import Heads, single_head_mechanism
from rheoscope.space.model import Rewrite
from tests.cases import LENGTH, distance, double, gap, random, text, theirs, traced
from tests.covers.test_replacements import DENSE, SOME, dense_M, turning
from tests.laws.every_analysis import ODD, SORTS
from tests.laws.every_family import side

F64 = torch.float64
N = 10
"""Tokens of a text under a change: more than any window is wide."""
SCORES = [
    "own_metric",
    "own_mahalanobis",
    "own_bilinear",
    "own_sigmoid",
    "own_entmax",
    "own_sink",
    "own_relu",
    "own_shaped",
    "own_sinkhorn",
]
"""Every other way from M to weights: forms that are no dot product, and what stands in for softmax."""
EDITED = [*SORTS, *ODD, "opt_post", "own_branch_post", *SCORES]
"""All that a model can be made of (tests/laws/every_analysis.py sees to it), with every way to weigh and both placements."""

# Slow twins


def changed_scores(heads: Heads, x: Tensor, M: str) -> Tensor:
    """What a replacement adds to the scores of every head, from dense matrices and one offset after another."""
    hat = heads.norm.normalise(x)
    cloud = hat if M.endswith("naive") else hat - hat.mean(0)
    _, a = side(heads, x, heads.W_Q, heads.b_Q, heads.q_norm)
    _, c = side(heads, x, heads.W_K, heads.b_K, heads.k_norm)
    found = x.new_zeros(heads.n_heads, len(x), len(x))
    for offset in range(1 - len(x), len(x)):
        s = cloud @ (DENSE[M](heads, offset) - dense_M(heads, offset)) @ cloud.mT
        found.diagonal(-offset, -2, -1).copy_(s.diagonal(-offset, -2, -1))
    return found * a * c.mT


def weights_after(trace: Any, layer: int, change: Tensor | None) -> Tensor:
    """Weights of every head with a change added to its scores, on the points of a trace."""
    found = []
    for head in range(trace.view.heads):
        mechanism = single_head_mechanism(trace.view.layer_heads[layer].mechanism, head)
        s = trace.scores(layer, head) + (0 if change is None else change[head])
        permitted = mechanism.mask(*query_key_positions(len(trace), len(trace)))
        found.append(mechanism.normaliser(s.masked_fill(~permitted, -torch.inf)[None, None])[0, 0])
    return torch.stack(found)


def written(trace: Any, layer: int, weights: Tensor, chosen: list[int], F: Tensor | None = None) -> Tensor:
    """What attention writes with those weights in the chosen heads, and with those F between centred tokens."""
    heads, x = trace.view.layer_heads[layer], trace.layer_input(layer)
    v = heads.qkv(x)[2][0].repeat_interleave(heads.n_heads // len(heads.W_V), 0)
    out = heads.outputs(x).clone()
    out[chosen] = (weights @ v)[chosen]
    total = (out @ heads.W_O).sum(0) + (0 if heads.b_O is None else heads.b_O)
    after = total if heads.output_norm is None else heads.output_norm.apply(total)
    if F is None:
        return after
    hat = heads.norm.normalise(x)
    moved = (weights @ ((hat - hat.mean(0)) @ (F - heads.F().dense())))[chosen].sum(0)
    if heads.output_norm is not None:
        moved = moved * (total.square().mean(-1, keepdim=True) + heads.output_norm.eps).rsqrt()
    return after + moved


def under(name: str, chosen: Any, M: str | None, F: str | None = None) -> Any:
    """The trace of a text under a change; every token counts for the mean, as the twins have it."""
    of = double(name)
    every = torch.ones(N, dtype=torch.bool)
    made = [
        head_replacement.replacement_edit(plan, Generator())
        for plan in plan_edits(of.view, select_heads(of.view, chosen), M, F)
    ]
    return of.trace(text(n=N), edit=model_edits(every, made))


def moved_by(trace: Any, layer: int) -> Tensor:
    """What attention wrote; a parallel block's MLP, which reads the same point, taken away."""
    step = attention_output_step(trace, layer)
    found = trace.points_at(step) - trace.layer_input(layer)
    if trace.steps[trace.mid_steps[layer]] in trace.unread_steps:
        found = found - trace.view.mlps[layer](trace.layer_input(layer))
    return found


def bar(name: str) -> float:
    """Float32 steps inside a float64 model stay: rotary tables, RMSNorm."""
    return 1e-9 if not turning(name) and name not in theirs.ISLANDS else 2e-5


@pytest.mark.parametrize(
    ("name", "M"),
    [(name, M) for M in DENSE for name in (EDITED if M == "symmetric" else SOME)],
)
@torch.no_grad()
def test_a_replaced_M_gives_the_scores_of_dense_forms_in_every_layer(name: str, M: str) -> None:
    if M == "positive" and turning(name):
        with pytest.raises(rs.RheoscopeError, match="under RoPE M is another form at every offset"):
            under(name, None, M)
        return
    trace = under(name, None, M)
    for layer, heads in enumerate(trace.view.layer_heads):
        weights = weights_after(trace, layer, changed_scores(heads, trace.layer_input(layer), M))
        wanted = written(trace, layer, weights, list(range(heads.n_heads)))
        assert distance(moved_by(trace, layer), wanted) <= bar(name)
        unchanged = written(trace, layer, weights_after(trace, layer, None), list(range(heads.n_heads)))
        if M != "at_zero" or turning(name):
            assert distance(wanted, unchanged) > 1e-4


@pytest.mark.parametrize(
    ("name", "F", "dense"),
    [*((name, "symmetric", None) for name in EDITED), *((name, "rank 3", 3) for name in SORTS)],
)
@torch.no_grad()
def test_a_replaced_F_gives_the_displacements_of_dense_maps(name: str, F: str, dense: int | None) -> None:
    trace = under(name, [(0, 1), (1, 2), (1, 3)], None, F)
    for layer, chosen in ((0, [1]), (1, [2, 3])):
        own = trace.view.layer_heads[layer].F().dense()
        if dense is None:
            new = (own + own.mT) / 2
        else:
            u, s, vh = torch.linalg.svd(own)
            new = u[..., :dense] * s[..., None, :dense] @ vh[..., :dense, :]
        weights = weights_after(trace, layer, None)
        wanted = written(trace, layer, weights, chosen, new)
        assert distance(moved_by(trace, layer), wanted) <= (2e-5 if name.startswith("gemma") else bar(name))
        assert distance(wanted, written(trace, layer, weights, chosen)) > 1e-4


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "neox", "opt_post", "bert", "own_metric"])
@torch.no_grad()
def test_M_and_F_together_and_only_the_chosen_heads(name: str) -> None:
    trace = under(name, [(1, 2)], "symmetric", "symmetric")
    heads, x = trace.view.layer_heads[1], trace.layer_input(1)
    assert torch.equal(x, double(name).trace(text(n=N)).layer_input(1))
    weights = weights_after(trace, 1, changed_scores(heads, x, "symmetric"))
    own = heads.F().dense()
    wanted = written(trace, 1, weights, [2], (own + own.mT) / 2)
    assert distance(moved_by(trace, 1), wanted) <= (2e-5 if name.startswith("gemma") else bar(name))


@torch.no_grad()
def test_symmetric_and_symmetric_scores_are_two_edits_under_RoPE_and_one_without() -> None:
    for name, alike in (("llama", False), ("gpt2", True), ("own_alibi", True)):
        one, other = (under(name, None, M).points for M in ("symmetric", "symmetric_scores"))
        assert (gap(one, other) < 1e-9) == alike


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
@torch.no_grad()
def test_layers_before_the_first_changed_one_are_bit_identical(name: str) -> None:
    trace, plain = (
        under(name, [(1, head) for head in range(4)], "symmetric", "symmetric"),
        double(name).trace(text(n=N)),
    )
    first = plain.input_steps[1]
    assert torch.equal(trace.points[: first + 1], plain.points[: first + 1])
    assert not torch.equal(trace.points[first + 1 :], plain.points[first + 1 :])


def test_an_identity_is_no_operation_at_all() -> None:
    """No edit is left: the model runs as if nobody had asked."""
    trace = traced("llama", F64)
    for M, F in (("identity", None), (None, "identity"), ("identity", "identity")):
        made = [
            head_replacement.replacement_edit(plan, Generator())
            for plan in plan_edits(trace.view, select_heads(trace.view, None), M, F)
        ]
        assert model_edits(trace.valid_mask(), made) == {}
    with pytest.raises(rs.RheoscopeError, match="nothing to change; type M='symmetric' or F='symmetric'"):
        plan_edits(trace.view, {0: [0]}, None, None)


@pytest.mark.parametrize("seed", range(5))
def test_reach_is_the_size_of_scores_without_what_is_constant_along_a_row(seed: int) -> None:
    q, k = random(seed, 3, 6, 4), random(seed + 1, 3, 6, 4)
    s = q @ k.mT
    slow = (s - s.mean(-1, keepdim=True)).flatten(1).norm(dim=-1)
    assert gap(score_norm(q, k), slow) <= 1e-9
    assert gap(score_norm(q, k + random(seed + 2, 3, 1, 4)), slow) <= 1e-9


# Controls


@pytest.mark.parametrize("M", ["symmetric", "at_zero", "skew", "rank 3"])
@pytest.mark.parametrize("name", ["llama_yarn", "gpt2", "gemma3", "own_bilinear"])
@torch.no_grad()
def test_controls_have_the_size_and_the_spectrum_of_the_edit_at_every_offset(name: str, M: str) -> None:
    view = double(name).view
    (plan,) = plan_edits(view, {1: [0, 1]}, M, None)
    form = heads_form(plan.heads)
    assert operator_at_offset(plan.heads, form, 3).dense() == pytest.approx(dense_M(plan.heads, 3).numpy(), abs=1e-12)
    edit, size, spectrum = (
        make(plan, Generator().manual_seed(1)).form
        for make in (
            head_replacement.replacement_edit,
            head_replacement.same_size_control,
            head_replacement.same_spectrum_control,
        )
    )
    if not edit:
        assert M == "at_zero"
        assert not turning(name)
        return
    for offset in (0, 2, 7):
        wanted, found = (torch.linalg.svdvals(operator_at_offset(plan.heads, x, offset).dense()) for x in (edit, size))
        assert gap(wanted, found) <= 1e-9
        new, turned = (
            torch.linalg.svdvals(operator_at_offset(plan.heads, x, offset).dense() + dense_M(plan.heads, offset))
            for x in (edit, spectrum)
        )
        assert gap(new, turned) <= 1e-9
        assert (
            gap(operator_at_offset(plan.heads, edit, 2).dense(), operator_at_offset(plan.heads, size, 2).dense()) > 1e-2
        )


@torch.no_grad()
def test_the_control_on_the_cloud_is_as_large_there_as_the_edit() -> None:
    """Seen from inside: the scores that are added, and the displacements, head by head."""
    of = double("llama")
    every = torch.ones(LENGTH, dtype=torch.bool)
    for M, F in (("symmetric", None), (None, "symmetric")):
        (plan,) = plan_edits(of.view, {0: [0, 1, 2, 3]}, M, F)
        sizes = []
        for make in (
            head_replacement.replacement_edit,
            head_replacement.same_cloud_size_control,
            head_replacement.same_size_control,
        ):
            edits = model_edits(every, [make(plan, Generator().manual_seed(2))])
            found: list[Tensor] = []

            def spy(*given: Any, change: Any = edits[0].edit, into: Any = found) -> Any:
                with looking(into):
                    return change(*given)

            of.run(text(), edit={0: Rewrite(spy)})
            q, k, v = found
            if M is not None:
                s = q[0, :, :, 8:] @ k[0, :, :, 8:].mT
                sizes.append((s - s.mean(-1, keepdim=True)).flatten(1).norm(dim=-1))
            else:
                content = make(plan, Generator().manual_seed(2)).content
                sizes.append((v[0, :, :, 8:] @ content.right).flatten(1).norm(dim=-1))
        assert gap(sizes[0], sizes[1]) <= 1e-9
        assert gap(sizes[0], sizes[2]) > 1e-2


@contextmanager
def looking(into: list[Tensor]) -> Iterator[None]:
    """While an edit runs, what it gives to attention."""
    own = Mechanism.attend

    def attend(self: Mechanism, q: Tensor, k: Tensor, v: Tensor, *more: Any, **named: Any) -> Tensor:
        into[:] = [q, k, v]
        return own(self, q, k, v, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mechanism, "attend", attend)
        yield


@torch.no_grad()
def test_controls_of_F_have_its_singular_values() -> None:
    (plan,) = plan_edits(double("llama").view, {0: [0]}, None, "symmetric")
    edit, size, spectrum = (
        make(plan, Generator().manual_seed(1)).content.dense()
        for make in (
            head_replacement.replacement_edit,
            head_replacement.same_size_control,
            head_replacement.same_spectrum_control,
        )
    )
    F = plan.heads.F().dense()
    assert gap(torch.linalg.svdvals(edit), torch.linalg.svdvals(size)) <= 1e-9
    assert gap(torch.linalg.svdvals(edit + F), torch.linalg.svdvals(spectrum + F)) <= 1e-9
    assert gap(edit, size) > 1e-2


@torch.no_grad()
def test_controls_of_an_edit_that_changes_nothing_change_nothing() -> None:
    """Planted: W_K = W_Q without RoPE is symmetric already, so that a random change as large as that edit is none."""

    def tie(network: Any) -> None:
        for block in rs.load(network).view.layer_heads:
            block.W_K.copy_(block.W_Q)

    tied = theirs.changed("gpt2", tie)
    trace = tied.trace(text())
    for make in (head_replacement.same_size_control, head_replacement.same_cloud_size_control):
        made = [
            make(plan, Generator().manual_seed(0))
            for plan in plan_edits(tied.view, select_heads(tied.view, None), "symmetric", None)
        ]
        assert gap(tied.trace(text(), edit=model_edits(trace.valid_mask(), made)).points, trace.points) <= 1e-9


@torch.no_grad()
def test_controls_of_one_seed_are_the_same_and_of_another_are_not() -> None:
    (plan,) = plan_edits(double("llama").view, {0: [0]}, "symmetric", "symmetric")
    one, same, other = (head_replacement.same_size_control(plan, Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(one.form[0].left, same.form[0].left)
    assert torch.equal(one.content.left, same.content.left)
    assert gap(one.form[0].left, other.form[0].left) > 1e-2

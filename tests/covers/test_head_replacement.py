"""Edits of M and F in a running model equal dense references; controls have the stated size and spectrum."""

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
"""The number of tokens of an edited text, larger than any sliding window."""
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
"""Mechanisms with scores other than dot products, or normalisers other than softmax."""
EDITED = [*SORTS, *ODD, "opt_post", "own_branch_post", *SCORES]
"""Models with every feature (see tests/laws/every_analysis.py), every normaliser and both norm placements."""
OTHERS = [name for name in SOME if name not in ("gpt2", "llama")]
REPLACED = [
    *((name, "symmetric") for name in EDITED),
    *(
        (name, M)
        for index, M in enumerate(M for M in DENSE if M != "symmetric")
        for name in ("gpt2", "llama", OTHERS[2 * index % 9], OTHERS[(2 * index + 1) % 9])
    ),
]
"""Every model with the symmetric M. Every other M without RoPE, with it, and in two other models in turn."""

# Dense references


def changed_scores(heads: Heads, x: Tensor, M: str) -> Tensor:
    """The change of the scores of every head by a replacement, from dense matrices at every offset."""
    x_hat = heads.norm.normalise(x)
    cloud = x_hat if M.endswith("naive") else x_hat - x_hat.mean(0)
    _, a = side(heads, x, heads.W_Q, heads.b_Q, heads.q_norm)
    _, c = side(heads, x, heads.W_K, heads.b_K, heads.k_norm)
    change = x.new_zeros(heads.n_heads, len(x), len(x))
    s = None
    for offset in range(1 - len(x), len(x)):
        if s is None or heads.mechanism.position.changes_tokens:  # otherwise all offsets have the same forms
            s = cloud @ (DENSE[M](heads, offset) - dense_M(heads, offset)) @ cloud.mT
        change.diagonal(-offset, -2, -1).copy_(s.diagonal(-offset, -2, -1))
    return change * a * c.mT


def weights_after(trace: Any, layer: int, change: Tensor | None) -> Tensor:
    """The weights of every head with a change added to its scores, on the points of a trace."""
    weights = []
    for head in range(trace.view.heads):
        mechanism = single_head_mechanism(trace.view.layer_heads[layer].mechanism, head)
        s = trace.scores(layer, head) + (0 if change is None else change[head])
        permitted = mechanism.mask(*query_key_positions(len(trace), len(trace)))
        weights.append(mechanism.normaliser(s.masked_fill(~permitted, -torch.inf)[None, None])[0, 0])
    return torch.stack(weights)


def expected_update(trace: Any, layer: int, weights: Tensor, chosen: list[int], F: Tensor | None = None) -> Tensor:
    """The update by attention with these weights in the chosen heads, and with these F on centred tokens."""
    heads, x = trace.view.layer_heads[layer], trace.layer_input(layer)
    v = heads.qkv(x)[2][0].repeat_interleave(heads.n_heads // len(heads.W_V), 0)
    out = heads.outputs(x).clone()
    out[chosen] = (weights @ v)[chosen]
    total = (out @ heads.W_O).sum(0) + (0 if heads.b_O is None else heads.b_O)
    after = total if heads.output_norm is None else heads.output_norm.apply(total)
    if F is None:
        return after
    x_hat = heads.norm.normalise(x)
    content_update = (weights @ ((x_hat - x_hat.mean(0)) @ (F - heads.F().dense())))[chosen].sum(0)
    if heads.output_norm is not None:
        content_update = content_update * (total.square().mean(-1, keepdim=True) + heads.output_norm.eps).rsqrt()
    return after + content_update


def edited_trace(name: str, chosen: Any, M: str | None, F: str | None = None) -> Any:
    """The trace of a text under an edit. All tokens enter the mean, as in the references."""
    model = double(name)
    is_included = torch.ones(N, dtype=torch.bool)
    edits = [
        head_replacement.replacement_edit(plan, Generator())
        for plan in plan_edits(model.view, select_heads(model.view, chosen), M, F)
    ]
    return model.trace(text(n=N), edit=model_edits(is_included, edits))


def attention_update(trace: Any, layer: int) -> Tensor:
    """The update by attention. In a parallel block, the update by the MLP is subtracted."""
    step = attention_output_step(trace, layer)
    update = trace.points_at(step) - trace.layer_input(layer)
    if trace.steps[trace.mid_steps[layer]] in trace.unread_steps:
        update = update - trace.view.mlps[layer](trace.layer_input(layer))
    return update


def tolerance(name: str) -> float:
    """Rotary tables and RMSNorm of a float64 model still compute in float32."""
    return 1e-9 if not turning(name) and name not in theirs.ISLANDS else 2e-5


@pytest.mark.parametrize(("name", "M"), REPLACED)
@torch.no_grad()
def test_a_replaced_M_gives_the_scores_of_dense_forms_in_every_layer(name: str, M: str) -> None:
    if M == "positive" and turning(name):
        with pytest.raises(rs.RheoscopeError, match="under RoPE M is another form at every offset"):
            edited_trace(name, None, M)
        return
    trace = edited_trace(name, None, M)
    for layer, heads in enumerate(trace.view.layer_heads):
        weights = weights_after(trace, layer, changed_scores(heads, trace.layer_input(layer), M))
        expected = expected_update(trace, layer, weights, list(range(heads.n_heads)))
        assert distance(attention_update(trace, layer), expected) <= tolerance(name)
        unchanged = expected_update(trace, layer, weights_after(trace, layer, None), list(range(heads.n_heads)))
        if M != "at_zero" or turning(name):
            assert distance(expected, unchanged) > 1e-4


@pytest.mark.parametrize(
    ("name", "F", "dense"),
    [*((name, "symmetric", None) for name in EDITED), *((name, "rank 3", 3) for name in SORTS)],
)
@torch.no_grad()
def test_a_replaced_F_gives_the_displacements_of_dense_maps(name: str, F: str, dense: int | None) -> None:
    trace = edited_trace(name, [(0, 1), (1, 2), (1, 3)], None, F)
    for layer, chosen in ((0, [1]), (1, [2, 3])):
        old_F = trace.view.layer_heads[layer].F().dense()
        if dense is None:
            new = (old_F + old_F.mT) / 2
        else:
            u, s, vh = torch.linalg.svd(old_F)
            new = u[..., :dense] * s[..., None, :dense] @ vh[..., :dense, :]
        weights = weights_after(trace, layer, None)
        expected = expected_update(trace, layer, weights, chosen, new)
        assert distance(attention_update(trace, layer), expected) <= (
            2e-5 if name.startswith("gemma") else tolerance(name)
        )
        assert distance(expected, expected_update(trace, layer, weights, chosen)) > 1e-4


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "neox", "opt_post", "bert", "own_metric"])
@torch.no_grad()
def test_M_and_F_can_be_replaced_together_in_chosen_heads(name: str) -> None:
    trace = edited_trace(name, [(1, 2)], "symmetric", "symmetric")
    heads, x = trace.view.layer_heads[1], trace.layer_input(1)
    assert torch.equal(x, double(name).trace(text(n=N)).layer_input(1))
    weights = weights_after(trace, 1, changed_scores(heads, x, "symmetric"))
    old_F = heads.F().dense()
    expected = expected_update(trace, 1, weights, [2], (old_F + old_F.mT) / 2)
    assert distance(attention_update(trace, 1), expected) <= (2e-5 if name.startswith("gemma") else tolerance(name))


@torch.no_grad()
def test_symmetric_and_symmetric_scores_are_two_edits_under_RoPE_and_one_without() -> None:
    for name, are_equal in (("llama", False), ("gpt2", True), ("own_alibi", True)):
        first, second = (edited_trace(name, None, M).points for M in ("symmetric", "symmetric_scores"))
        assert (gap(first, second) < 1e-9) == are_equal


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
@torch.no_grad()
def test_layers_before_the_first_changed_one_are_bit_identical(name: str) -> None:
    trace, clean_trace = (
        edited_trace(name, [(1, head) for head in range(4)], "symmetric", "symmetric"),
        double(name).trace(text(n=N)),
    )
    first_step = clean_trace.input_steps[1]
    assert torch.equal(trace.points[: first_step + 1], clean_trace.points[: first_step + 1])
    assert not torch.equal(trace.points[first_step + 1 :], clean_trace.points[first_step + 1 :])


def test_an_identity_replacement_needs_no_edit() -> None:
    trace = traced("llama", F64)
    for M, F in (("identity", None), (None, "identity"), ("identity", "identity")):
        edits = [
            head_replacement.replacement_edit(plan, Generator())
            for plan in plan_edits(trace.view, select_heads(trace.view, None), M, F)
        ]
        assert model_edits(trace.valid_mask(), edits) == {}
    with pytest.raises(
        rs.RheoscopeError, match="an edit needs a replacement of M or F, got neither; type M='symmetric'"
    ):
        plan_edits(trace.view, {0: [0]}, None, None)


@pytest.mark.parametrize("seed", range(5))
def test_the_score_norm_ignores_constants_along_a_row(seed: int) -> None:
    q, k = random(seed, 3, 6, 4), random(seed + 1, 3, 6, 4)
    s = q @ k.mT
    expected_norm = (s - s.mean(-1, keepdim=True)).flatten(1).norm(dim=-1)
    assert gap(score_norm(q, k), expected_norm) <= 1e-9
    assert gap(score_norm(q, k + random(seed + 2, 3, 1, 4)), expected_norm) <= 1e-9


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
        expected, spectrum_of_size = (
            torch.linalg.svdvals(operator_at_offset(plan.heads, x, offset).dense()) for x in (edit, size)
        )
        assert gap(expected, spectrum_of_size) <= 1e-9
        new, rotated = (
            torch.linalg.svdvals(operator_at_offset(plan.heads, x, offset).dense() + dense_M(plan.heads, offset))
            for x in (edit, spectrum)
        )
        assert gap(new, rotated) <= 1e-9
        assert (
            gap(operator_at_offset(plan.heads, edit, 2).dense(), operator_at_offset(plan.heads, size, 2).dense()) > 1e-2
        )


@torch.no_grad()
def test_the_cloud_control_has_the_size_of_the_edit_on_the_text() -> None:
    """The size is that of the added scores, or of the displacements, head by head."""
    model = double("llama")
    is_included = torch.ones(LENGTH, dtype=torch.bool)
    for M, F in (("symmetric", None), (None, "symmetric")):
        (plan,) = plan_edits(model.view, {0: [0, 1, 2, 3]}, M, F)
        sizes = []
        for make in (
            head_replacement.replacement_edit,
            head_replacement.same_cloud_size_control,
            head_replacement.same_size_control,
        ):
            edits = model_edits(is_included, [make(plan, Generator().manual_seed(2))])
            attended: list[Tensor] = []

            def record(*arguments: Any, edit: Any = edits[0].edit, attended: Any = attended) -> Any:
                with recorded_attention(attended):
                    return edit(*arguments)

            model.run(text(), edit={0: Rewrite(record)})
            q, k, v = attended
            if M is not None:
                s = q[0, :, :, 8:] @ k[0, :, :, 8:].mT
                sizes.append((s - s.mean(-1, keepdim=True)).flatten(1).norm(dim=-1))
            else:
                content = make(plan, Generator().manual_seed(2)).content
                sizes.append((v[0, :, :, 8:] @ content.right).flatten(1).norm(dim=-1))
        assert gap(sizes[0], sizes[1]) <= 1e-9
        assert gap(sizes[0], sizes[2]) > 1e-2


@contextmanager
def recorded_attention(attended: list[Tensor]) -> Iterator[None]:
    """Record the queries, keys and values that an edit passes to attention."""
    original_attend = Mechanism.attend

    def attend(self: Mechanism, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        attended[:] = [q, k, v]
        return original_attend(self, q, k, v, *args, **kwargs)

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
    """With W_K = W_Q and without RoPE, M is symmetric, so a random change of the same size is zero."""

    def tie(network: Any) -> None:
        for block in rs.load(network).view.layer_heads:
            block.W_K.copy_(block.W_Q)

    tied = theirs.changed("gpt2", tie)
    trace = tied.trace(text())
    for make in (head_replacement.same_size_control, head_replacement.same_cloud_size_control):
        edits = [
            make(plan, Generator().manual_seed(0))
            for plan in plan_edits(tied.view, select_heads(tied.view, None), "symmetric", None)
        ]
        assert gap(tied.trace(text(), edit=model_edits(trace.valid_mask(), edits)).points, trace.points) <= 1e-9


@torch.no_grad()
def test_the_seed_fixes_a_control() -> None:
    (plan,) = plan_edits(double("llama").view, {0: [0]}, "symmetric", "symmetric")
    first, same, second = (
        head_replacement.same_size_control(plan, Generator().manual_seed(seed)) for seed in (3, 3, 4)
    )
    assert torch.equal(first.form[0].left, same.form[0].left)
    assert torch.equal(first.content.left, same.content.left)
    assert gap(first.form[0].left, second.form[0].left) > 1e-2

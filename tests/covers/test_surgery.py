"""Surgery: another M or F while the model runs, against dense forms in every family; controls, intervals, refusals."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

import rheoscope as rs
from rheoscope.attention.mechanism import Mechanism, positions
from rheoscope.covers import operation
from rheoscope.covers.operation import chosen_heads, live, plans
from rheoscope.covers.reversed_attention import written_at
from rheoscope.covers.surgery import interval, kept_tokens, losses
from rheoscope.space.form import at_offset, columns, own_form, with_columns
from rheoscope.space.head import Heads, Turned, of_head
from tests.cases import CAUSAL, LENGTH, WITH_LOGITS, WITH_M, distance, double, gap, model, ours, text, theirs, traced
from tests.laws.every_analysis import MOVES, different, moved, same
from tests.laws.every_family import side

F64 = torch.float64
EDITED = [name for name in WITH_M if name in WITH_LOGITS]
TURNING = [name for name in EDITED if isinstance(double(name).view.blocks[0].mechanism.position, Turned)]
STILL = [name for name in EDITED if name not in TURNING]
GAUGED = ["gpt2", "llama", "qwen3", "gemma3", "neox", "own_biased"]
TEXT = "The keys to the cabinet are on the table, and the man who has them went out to the garden."

# Slow twins: dense matrices, one offset after another


def dense_M(heads: Heads, offset: int) -> Tensor:
    return heads.M()(offset).dense()


def transpose(A: Tensor) -> Tensor:
    return A.mT


def positive_part(M: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((M + M.mT) / 2)
    return vectors * values.clamp(min=0)[..., None, :] @ vectors.mT


def projected(heads: Heads, offset: int, rank: int) -> Tensor:
    u, _, vh = torch.linalg.svd(dense_M(heads, 0))
    u, v = u[..., :rank], vh[..., :rank, :].mT
    return u @ u.mT @ dense_M(heads, offset) @ v @ v.mT


DENSE: dict[str, Any] = {
    "symmetric": lambda heads, at: (dense_M(heads, at) + dense_M(heads, at).mT) / 2,
    "symmetric_naive": lambda heads, at: (dense_M(heads, at) + dense_M(heads, at).mT) / 2,
    "symmetric_scores": lambda heads, at: (dense_M(heads, at) + dense_M(heads, -at).mT) / 2,
    "skew": lambda heads, at: (dense_M(heads, at) - dense_M(heads, at).mT) / 2,
    "at_zero": lambda heads, at: dense_M(heads, 0),
    "positive": lambda heads, at: positive_part(dense_M(heads, at)),
    "rank 3": lambda heads, at: projected(heads, at, 3),
}


def changed_scores(heads: Heads, x: Tensor, M: str) -> Tensor:
    """What a replacement adds to the scores of every head, from dense matrices and one offset after another."""
    hat = heads.norm.hat(x)
    cloud = hat if M.endswith("naive") else hat - hat.mean(0)
    _, a = side(heads, x, heads.W_Q, heads.b_Q, heads.q_norm)
    _, c = side(heads, x, heads.W_K, heads.b_K, heads.k_norm)
    found = x.new_zeros(heads.count, len(x), len(x))
    for offset in range(1 - len(x), len(x)):
        s = cloud @ (DENSE[M](heads, offset) - dense_M(heads, offset)) @ cloud.mT
        found.diagonal(-offset, -2, -1).copy_(s.diagonal(-offset, -2, -1))
    return found * a * c.mT


def weights_after(trace: Any, layer: int, change: Tensor | None) -> Tensor:
    """Weights of every head with a change added to its scores, on the points of a trace."""
    found = []
    for head in range(trace.view.heads):
        mechanism = of_head(trace.view.blocks[layer].mechanism, head)
        s = trace.scores(layer, head) + (0 if change is None else change[head])
        permitted = mechanism.mask(*positions(len(trace), len(trace)))
        found.append(mechanism.normaliser(s.masked_fill(~permitted, -torch.inf)[None, None])[0, 0])
    return torch.stack(found)


def written(trace: Any, layer: int, weights: Tensor, chosen: list[int], F: Tensor | None = None) -> Tensor:
    """What attention writes with those weights in the chosen heads, and with those F between centred tokens."""
    heads, x = trace.view.blocks[layer], trace.read_by(layer)
    v = heads.read(x)[2][0].repeat_interleave(heads.count // len(heads.W_V), 0)
    out = heads.outputs(x).clone()
    out[chosen] = (weights @ v)[chosen]
    total = (out @ heads.W_O).sum(0) + (0 if heads.b_O is None else heads.b_O)
    after = total if heads.after is None else heads.after.own(total)
    if F is None:
        return after
    hat = heads.norm.hat(x)
    moved = (weights @ ((hat - hat.mean(0)) @ (F - heads.F().dense())))[chosen].sum(0)
    if heads.after is not None:
        moved = moved * (total.square().mean(-1, keepdim=True) + heads.after.eps).rsqrt()
    return after + moved


def under(name: str, chosen: Any, M: str | None, F: str | None = None) -> Any:
    """The trace of a text under a change; every token counts for the mean, as the twins have it."""
    of = double(name)
    plain = of.trace(text())
    every = torch.ones(LENGTH, dtype=torch.bool)
    made = [operation.edit(plan, Generator()) for plan in plans(of.view, chosen_heads(of.view, chosen), M, F)]
    edits, hooks = live(plain, every, made)
    return of.trace(text(), edit=edits, hooks=hooks)


def moved_by(trace: Any, layer: int) -> Tensor:
    """What attention wrote; a parallel block's MLP, which reads the same point, taken away."""
    step = written_at(trace, layer)
    found = trace.at(step) - trace.read_by(layer)
    if trace.steps[trace.middle[layer]] in trace.not_read:
        found = found - trace.view.mlps[layer](trace.read_by(layer))
    return found


def bar(name: str) -> float:
    """Float32 steps inside a float64 model stay: rotary tables, RMSNorm."""
    return 1e-9 if name in STILL and name not in theirs.ISLANDS else 2e-5


SOME = [
    "gpt2",
    "llama",
    "llama_yarn",
    "qwen3",
    "gemma3",
    "neox",
    "opt_post",
    "bert",
    "own",
    "own_metric",
    "own_bilinear",
]


@pytest.mark.parametrize(
    ("name", "M"),
    [(name, M) for M in DENSE for name in (EDITED if M in {"symmetric", "symmetric_scores", "positive"} else SOME)],
)
@torch.no_grad()
def test_a_replaced_M_gives_the_scores_of_dense_forms_in_every_layer(name: str, M: str) -> None:
    if M == "positive" and name in TURNING:
        with pytest.raises(rs.RheoscopeError, match="under RoPE M is another form at every offset"):
            under(name, None, M)
        return
    trace = under(name, None, M)
    for layer, heads in enumerate(trace.view.blocks):
        weights = weights_after(trace, layer, changed_scores(heads, trace.read_by(layer), M))
        wanted = written(trace, layer, weights, list(range(heads.count)))
        assert distance(moved_by(trace, layer), wanted) <= bar(name)
        unchanged = written(trace, layer, weights_after(trace, layer, None), list(range(heads.count)))
        if M != "at_zero" or name in TURNING:
            assert distance(wanted, unchanged) > 1e-4


@pytest.mark.parametrize(("F", "dense"), [("symmetric", None), ("rank 3", 3)])
@pytest.mark.parametrize("name", EDITED)
@torch.no_grad()
def test_a_replaced_F_gives_the_displacements_of_dense_maps(name: str, F: str, dense: int | None) -> None:
    trace = under(name, [(0, 1), (1, 2), (1, 3)], None, F)
    for layer, chosen in ((0, [1]), (1, [2, 3])):
        own = trace.view.blocks[layer].F().dense()
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
    heads, x = trace.view.blocks[1], trace.read_by(1)
    assert torch.equal(x, double(name).trace(text()).read_by(1))
    weights = weights_after(trace, 1, changed_scores(heads, x, "symmetric"))
    own = heads.F().dense()
    wanted = written(trace, 1, weights, [2], (own + own.mT) / 2)
    assert distance(moved_by(trace, 1), wanted) <= (2e-5 if name.startswith("gemma") else bar(name))


@pytest.mark.parametrize("name", EDITED)
def test_identity_changes_no_bit(name: str) -> None:
    after = rs.operated(model(name), text(), M="identity", F="identity")
    assert torch.equal(after.points, traced(name).points)
    if model(name).view.unembed is not None:
        assert torch.equal(after.logits, traced(name).logits)


@pytest.mark.parametrize("name", ["gpt2", "llama", "own"])
def test_the_model_is_as_before(name: str) -> None:
    before = [x.clone() for x in model(name).network.parameters()]
    rs.surgery(model(name), text(), M="symmetric", F="symmetric")
    assert all(torch.equal(a, b) for a, b in zip(before, model(name).network.parameters(), strict=True))
    assert torch.equal(model(name).run(text()), traced(name).logits)


@torch.no_grad()
def test_a_symmetric_head_is_not_changed_by_being_made_symmetric() -> None:
    """Planted: W_K = W_Q without RoPE gives M = Mᵀ; its skew part is nothing, so that the rest alone is left."""

    def tie(network: Any) -> None:
        for block in rs.load(network).view.blocks:
            block.W_K.copy_(block.W_Q)

    tied = theirs.changed("gpt2", tie)
    trace, plain = rs.operated(tied, text(), M="symmetric"), tied.trace(text())
    assert gap(trace.points, plain.points) <= 1e-10
    assert gap(rs.operated(tied, text(), M="skew").points, plain.points) > 1e-2


@torch.no_grad()
def test_symmetric_and_symmetric_scores_are_two_edits_under_RoPE_and_one_without() -> None:
    for name, alike in (("llama", False), ("gpt2", True), ("own_alibi", True)):
        one, other = (under(name, None, M).points for M in ("symmetric", "symmetric_scores"))
        assert (gap(one, other) < 1e-9) == alike


def test_a_change_inside_a_soft_cap_stays_inside() -> None:
    from rheoscope.attention.mechanism import reference
    from rheoscope.attention.score import Gram, SoftCap

    generator = Generator().manual_seed(0)
    q, k, v, a, b = (torch.randn(1, 2, 5, 4, generator=generator, dtype=F64) for _ in range(5))
    capped = Mechanism(SoftCap(Gram(scale=0.7), 2.0))
    mechanism, wide_q, wide_k = with_columns(capped, q, k, (a[0], b[0]))
    s = 2.0 * torch.tanh((0.7 * q @ k.mT + a @ b.mT) / 2.0)
    assert gap(reference(mechanism, wide_q, wide_k, v)[1], s.softmax(-1)) <= 1e-12


# Controls


@pytest.mark.parametrize("M", ["symmetric", "at_zero", "skew", "rank 3"])
@pytest.mark.parametrize("name", ["llama_yarn", "gpt2", "gemma3", "own_bilinear"])
@torch.no_grad()
def test_controls_have_the_size_and_the_spectrum_of_the_edit_at_every_offset(name: str, M: str) -> None:
    view = double(name).view
    (plan,) = plans(view, {1: [0, 1]}, M, None)
    form = own_form(plan.heads)
    assert at_offset(plan.heads, form, 3).dense() == pytest.approx(dense_M(plan.heads, 3).numpy(), abs=1e-12)
    edit, size, spectrum = (
        make(plan, Generator().manual_seed(1)).form
        for make in (operation.edit, operation.same_size, operation.same_spectrum)
    )
    if not edit:
        assert M == "at_zero"
        assert name in STILL
        return
    for offset in (0, 2, 7):
        wanted, found = (torch.linalg.svdvals(at_offset(plan.heads, x, offset).dense()) for x in (edit, size))
        assert gap(wanted, found) <= 1e-9
        new, turned = (
            torch.linalg.svdvals(at_offset(plan.heads, x, offset).dense() + dense_M(plan.heads, offset))
            for x in (edit, spectrum)
        )
        assert gap(new, turned) <= 1e-9
        assert gap(at_offset(plan.heads, edit, 2).dense(), at_offset(plan.heads, size, 2).dense()) > 1e-2


@torch.no_grad()
def test_the_control_on_the_cloud_is_as_large_there_as_the_edit() -> None:
    """Seen from inside: the scores that are added, and the displacements, head by head."""
    of, trace = double("llama"), traced("llama", F64)
    every = torch.ones(LENGTH, dtype=torch.bool)
    for M, F in (("symmetric", None), (None, "symmetric")):
        (plan,) = plans(of.view, {0: [0, 1, 2, 3]}, M, F)
        sizes = []
        for make in (operation.edit, operation.same_on_cloud, operation.same_size):
            edits, hooks = live(trace, every, [make(plan, Generator().manual_seed(2))])
            found: list[Tensor] = []

            def spy(q: Any, k: Any, v: Any, mechanism: Any, out: Any, change: Any = edits[0], into: Any = found) -> Any:
                with looking(into):
                    return change(q, k, v, mechanism, out)

            of.run(text(), edit={0: spy}, hooks=hooks)
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
    (plan,) = plans(double("llama").view, {0: [0]}, None, "symmetric")
    edit, size, spectrum = (
        make(plan, Generator().manual_seed(1)).content.dense()
        for make in (operation.edit, operation.same_size, operation.same_spectrum)
    )
    F = plan.heads.F().dense()
    assert gap(torch.linalg.svdvals(edit), torch.linalg.svdvals(size)) <= 1e-9
    assert gap(torch.linalg.svdvals(edit + F), torch.linalg.svdvals(spectrum + F)) <= 1e-9
    assert gap(edit, size) > 1e-2


@torch.no_grad()
def test_the_ablations_by_hand() -> None:
    of, trace = model("gpt2"), traced("gpt2")
    found = rs.surgery(of, text(), heads=[(1, 2)], M="symmetric")
    mean = of.view.blocks[1].outputs(trace.read_by(1))[2, kept_tokens(trace)].mean(0)
    edits = {
        "mean": lambda q, k, v, mechanism: mean.expand(1, 1, LENGTH, -1),
        "uniform": lambda q, k, v, mechanism: v.cumsum(-2) / torch.arange(1, LENGTH + 1)[:, None],
    }
    for name, edit in edits.items():
        wanted = float(losses(of.run(text(), edit={(1, 2): edit}), text()).mean())
        assert float(found.loss_ablated.sel(ablation=name)[0]) == pytest.approx(wanted, abs=1e-5)


# The Dataset


def test_losses_are_those_of_the_logits() -> None:
    of = model("llama")
    texts = [text(0), text(1, 7), text(2), text(3, 9), text(4)]
    found = rs.surgery(of, texts, heads=1, M="symmetric", against=rs.Against(draws=2))
    assert found.attrs["heads"] == "L1"
    assert found.tokens.values.tolist() == [LENGTH - 1, 6, LENGTH - 1, 8, LENGTH - 1]
    for at, ids in enumerate(texts):
        after = rs.operated(of, ids, heads=1, M="symmetric").logits.log_softmax(-1)
        before = of.run(ids).detach().log_softmax(-1)
        rows = torch.arange(len(ids) - 1)
        assert float(found.loss_before[at]) == pytest.approx(float(-before[rows, ids[1:]].mean()), abs=1e-5)
        assert float(found.loss_after[at]) == pytest.approx(float(-after[rows, ids[1:]].mean()), abs=1e-5)
        kl = (before.exp() * (before - after)).sum(-1).mean()
        assert float(found.kl[at]) == pytest.approx(float(kl), abs=1e-5)
    share = found.tokens / found.tokens.sum()
    assert found.excess.values == pytest.approx(float(found.cost[0]) - found.cost.values, abs=1e-9)
    assert bool((found.excess_low <= found.excess + 1e-9).all() & (found.excess <= found.excess_high + 1e-9).all())
    for name, loss in (("edit", found.loss_after), ("size", found.loss_control.sel(control="size"))):
        cost = float(((loss - found.loss_before) * share).sum())
        assert float(found.cost.sel(change=name)) == pytest.approx(cost, abs=1e-6)
        assert float(found.cost_low.sel(change=name)) <= cost + 1e-9
        assert float(found.cost_high.sel(change=name)) >= cost - 1e-9
    assert all("definition" in found[name].attrs for name in found.data_vars)


def test_a_long_text_is_cut_and_the_seed_decides() -> None:
    of = rs.load()
    one, same, other = (
        rs.surgery(of, rs.pieces(of, TEXT * 3, 16), heads=[(2, 1)], M="symmetric", against=rs.Against(seed=seed))
        for seed in (0, 0, 1)
    )
    assert one.sizes["text"] > 3
    assert one.equals(same)
    assert one.loss_after.equals(other.loss_after)
    assert not one.loss_control.equals(other.loss_control)
    assert "texts" in one.attrs["bootstrap"]
    whole = rs.surgery(of, TEXT * 8, heads=[(2, 1)], M="symmetric", against=rs.Against(("mean",)))
    assert "chunks" in whole.attrs["bootstrap"]
    assert "loss_control" not in whole
    assert np.isfinite(whole.cost_low.values).all()
    assert np.isnan(rs.surgery(of, TEXT, heads=[(2, 1)], M="symmetric", against=rs.Against(())).cost_low.values).all()


def test_the_interval_is_that_of_resampled_units() -> None:
    generator = Generator().manual_seed(3)
    costs = torch.randn(1, 4000, generator=generator, dtype=F64) + 1
    low, high, _ = interval(costs, [10] * 400, generator)
    assert float(high - low) == pytest.approx(2 * 1.96 / 4000**0.5, rel=0.15)
    assert float(low) < float(costs.mean()) < float(high)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"M": "square"}, "unknown replacement of M: 'square'; type one of identity, symmetric"),
        ({"F": "skew"}, "unknown replacement of F: 'skew'; type one of identity, symmetric"),
        ({"M": "rank"}, "unknown replacement of M: 'rank'"),
        ({"M": "rank 99"}, "the rank of M lies in 1 to 64 in this model, got 99; type M='rank 64'"),
        ({"F": "rank 0"}, "the rank of F lies in 1 to 64 in this model, got 0"),
        ({}, "nothing to change; type M='symmetric'"),
        ({"M": "symmetric", "heads": [(9, 0)]}, "there is no layer 9"),
        ({"M": "symmetric", "heads": [(0, 99)]}, "there is no head 99 in layer 0"),
        ({"M": "symmetric", "heads": 77}, "there is no layer 77"),
        ({"M": "symmetric", "heads": []}, "no head to change"),
        ({"M": "positive"}, "under RoPE M is another form at every offset"),
    ],
)
def test_bad_input_is_told_in_one_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=said) as error:
        rs.surgery(rs.load(), TEXT, **asked)
    assert "\n" not in str(error.value)


def bare_gpt2() -> Any:
    from transformers import GPT2Config, GPT2Model

    return rs.load(GPT2Model(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=40)))


def test_models_and_texts_without_a_next_token_are_refused() -> None:
    with pytest.raises(rs.RheoscopeError, match="reads both ways, so it predicts no next token"):
        rs.surgery(model("bert"), text(), M="symmetric")
    with pytest.raises(rs.RheoscopeError, match="has no unembedding, so it has no loss"):
        rs.surgery(bare_gpt2(), text(), M="symmetric")
    with pytest.raises(rs.RheoscopeError, match="a loss needs at least 2 tokens"):
        rs.surgery(model("gpt2"), [5], M="symmetric")
    with pytest.raises(rs.RheoscopeError, match="is no bilinear form of its tokens"):
        rs.surgery(model("own_cosine"), text(), M="symmetric")
    assert "own_cosine" in CAUSAL
    assert ours.CASES["own_cosine"].mechanism == "cosine"


def test_columns_reproduce_the_models_own_scores() -> None:
    """The form as it is, between the tokens as they are: bias-free scores of the model."""
    trace = traced("llama_linear", F64)
    heads, x = trace.view.blocks[1], trace.read_by(1)
    hat = heads.norm.hat(x)
    q, k = columns(heads, own_form(heads), hat, hat)
    for head in range(heads.count):
        assert gap(q[head] @ k[head].mT, trace.scores(1, head)) <= 1e-5


def asked(of: Any) -> Any:
    return rs.surgery(of, [different(), *(text(seed) for seed in range(2, 6))], M="symmetric", F="rank 3")


@pytest.mark.parametrize(
    ("move", "name"),
    [pytest.param(move, name, id=f"{what}-{name}") for what, move, names in MOVES for name in names if name in GAUGED],
)
def test_no_gauge_moves_any_number(move: Any, name: str) -> None:
    same(asked(moved(name, move)), asked(double(name)))

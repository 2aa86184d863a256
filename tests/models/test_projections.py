"""Every way that queries, keys and values come from tokens: one battery over the table, then the law that each part is there for."""

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import rheoscope as rs
from rheoscope.covers.head_replacement import OperatorEdit, model_edits
from rheoscope.covers.reversed_attention.analysis import head_output_gradients
from rheoscope.flow.energy.analysis import attention_displacement
from rheoscope.models.checkpoint import initial_network, load_network, save
from rheoscope.models.config import CHOICES, Config
from rheoscope.models.generate import generate
from rheoscope.models.projections import (
    PAIRS_PER_SKEW_PAIR,
    PROJECTIONS,
    Isometric,
    broadcast_to_texts,
    linear,
    orthonormal_rows,
)
from rheoscope.models.transformer import build
from rheoscope.shapes import RheoscopeError
from tests.models.runs import prose, run, small
from tests.pretrained.cases import VOCABULARY, gap, randomised, text

F64 = torch.float64
EVERY = list(PROJECTIONS)
TIED = ["tied", "tied_no_diagonal", "tied_positional"]
SKEW = ["symmetric_skew", "psd_skew"]
HEAD = 8


def config(projection: str, **more: Any) -> Config:
    shape = {"vocabulary": VOCABULARY, "width": 16, "depth": 2, "heads": 2, "context": 32, "hidden": 24}
    return Config(**shape | {"projection": projection} | more)


@cache
def network(projection: str, **more: Any) -> Any:
    """A tiny model of a part, nothing at its initial value, in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return randomised(build(config(projection, **more))).to(F64)


@cache
def model(projection: str, **more: Any) -> Any:
    return rs.load(network(projection, **more))


def test_every_part_has_its_name_in_a_config() -> None:
    assert CHOICES["projection"] == tuple(PROJECTIONS)


@pytest.mark.parametrize("projection", EVERY)
@pytest.mark.parametrize("more", [{}, {"bias": True, "norm": "layer"}], ids=["bare", "biased"])
@torch.no_grad()
def test_the_operators_are_what_the_module_does(projection: str, more: dict[str, Any]) -> None:
    """Scores from M's factors at every offset, displacements from F: by hand, against the running module."""
    trace = model(projection, **more).trace(text(0, 5))
    for layer, heads in enumerate(trace.view.layer_heads):
        x = trace.layer_input(layer)
        hat, scores = heads.norm.normalise(x), torch.stack([trace.scores(layer, head) for head in range(2)])
        assert gap(scores, scores_by_hand(heads, hat)) <= 1e-6
        module = network(projection, **more).stack.blocks[layer].attention
        gate = module.gate(heads.norm.apply(x)[None])
        every = torch.stack([trace.weights(layer, head) for head in range(2)]).to(F64)
        constant = 0 if heads.value_bias is None else (heads.value_bias[:, None] @ heads.W_O)
        moved = (every @ (hat @ heads.F().dense() + constant)) * (1 if gate is None else gate[0])
        assert gap(torch.stack([trace.displacement(layer, head) for head in range(2)]), moved) <= 1e-10
        added = trace.points[trace.mid_steps[layer]] - x
        assert gap(moved.sum(0) + (0 if heads.b_O is None else heads.b_O), added) <= 1e-10


def scores_by_hand(heads: Any, hat: Tensor) -> Tensor:
    """(x̂ D_g W_Q + …) R(i − j) (x̂ D_g W_K + …)ᵀ scale, pair by pair."""
    u = (hat if heads.norm.gain is None else hat * heads.norm.gain) + (
        0 if heads.norm.bias is None else heads.norm.bias
    )
    q, k = u @ heads.W_Q, u @ heads.W_K
    q, k = (y if b is None else y + b[:, None] for y, b in ((q, heads.b_Q), (k, heads.b_K)))
    n, position = len(hat), heads.mechanism.position
    turns = {offset: position.rotation_matrix(offset, HEAD, q) for offset in range(1 - n, n)}
    rows = [torch.stack([((q[:, i] @ turns[i - j]) * k[:, j]).sum(-1) for j in range(n)], -1) for i in range(n)]
    return torch.stack(rows, -2) * heads.scale


@pytest.mark.parametrize("projection", EVERY)
def test_gradients_reach_every_parameter(projection: str) -> None:
    made = network(projection)
    made.zero_grad()
    made(text(1, 9)[None]).square().sum().backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name


@pytest.mark.parametrize("projection", EVERY)
@torch.no_grad()
def test_a_decoder_stays_causal(projection: str) -> None:
    ids, other = text(0, 9)[None], text(0, 9)[None].clone()
    other[0, 6] = (other[0, 6] + 1) % VOCABULARY
    one, two = network(projection)(ids), network(projection)(other)
    assert torch.equal(one[:, :6], two[:, :6])
    assert not torch.equal(one[:, 6], two[:, 6])


@pytest.mark.parametrize("projection", EVERY)
def test_a_cache_changes_nothing(projection: str) -> None:
    ids = text(0, 5)[None]
    cached, plain = (generate(network(projection), ids, 6, temperature=0.0, cached=cached) for cached in (True, False))
    assert torch.equal(cached, plain)


@pytest.mark.parametrize("projection", EVERY)
@torch.no_grad()
def test_saved_and_opened_it_is_the_same(projection: str, tmp_path: Path) -> None:
    again, _ = load_network(save(network(projection), tmp_path), dtype="float64")
    assert again.config == network(projection).config
    assert torch.equal(again(text(0, 9)[None]), network(projection)(text(0, 9)[None]))


@pytest.mark.parametrize("projection", EVERY)
def test_a_seed_draws_the_same_for_every_part(projection: str) -> None:
    """What two parts share starts the same: the FFNs, the writers, and those rows of the reader that both have."""
    own, plain = (initial_network(config(name), 3) for name in (projection, "untied"))
    held = dict(plain.named_parameters())
    for name, parameter in own.named_parameters():
        if "attention.read" not in name and name in held:
            assert torch.equal(parameter, held[name]), name
    layout = own.stack.blocks[0].attention.projection.layout
    sizes = {"q": 16, "k": 16, "v": 16}
    of_all = dict(zip(sizes, plain.stack.blocks[1].attention.read.weight.split(16), strict=True))
    rows = own.stack.blocks[1].attention.read.weight.split([n * k for n, k in layout.values()])
    for name, part in zip(layout, rows, strict=True):
        assert torch.equal(part, of_all[name]) if name in sizes else not part.any()


@pytest.mark.parametrize("projection", EVERY)
def test_several_models_are_trained_as_one(projection: str) -> None:
    """Weights (models, out, in), the texts of all models one after another: the same queries, keys and values as each alone."""
    alone = [network(projection).stack.blocks[at].attention for at in (0, 1)]
    u, turn = torch.randn(4, 5, 16, dtype=F64), network(projection).stack.place.rotation(slice(0, 5))
    packed = copy.deepcopy(alone[0].projection)
    for (name, _), *both in zip(
        packed.named_parameters(), *(one.projection.parameters() for one in alone), strict=True
    ):
        setattr(packed, name, torch.nn.Parameter(torch.stack([p.detach() for p in both])))

    class Read(torch.nn.Module):
        weight, bias = torch.stack([one.read.weight.detach() for one in alone]), None

        def forward(self, u: Tensor) -> Tensor:
            return linear(u, self.weight, self.bias)

    rows = packed.read_rows(Read(), u)
    apart = [one.project(part, turn) for one, part in zip(alone, u.split(2), strict=True)]
    for found, *wanted in zip(packed.project_heads(rows, u, turn), *apart, strict=True):
        assert gap(found, torch.cat(wanted)) <= 1e-12


@pytest.mark.parametrize("projection", EVERY)
@torch.no_grad()
def test_an_encoder_and_half_precision_open(projection: str) -> None:
    """Opening proves the View against the running module."""
    rs.load(network(projection, form="encoder"))
    assert rs.load(copy.deepcopy(network(projection)), dtype="bfloat16").view.dtype is torch.bfloat16


def trained(projection: str, steps: int = 4, **more: Any) -> Any:
    """A model after some steps of AdamW."""
    return run_steps(small(**{"projection": projection, "accumulate": 1} | more), steps)


def run_steps(recipe: Any, steps: int) -> Any:
    from rheoscope.models.optimiser import make_optimisers

    torch.manual_seed(0)
    net = build(recipe.config).to(F64)
    made, task = make_optimisers(net, recipe), prose()
    for step in range(steps):
        x, y = task.batch(step, recipe)
        task.loss(net, (x, y)).backward()
        for one in made:
            one.step()
            one.zero_grad()
    return net


def forms(net: Any) -> list[Any]:
    return [block.M() for block in rs.load(copy.deepcopy(net).requires_grad_(False)).view.layer_heads]


@pytest.mark.parametrize(("projection", "optimiser"), [*((name, "adamw") for name in TIED), ("tied", "muon")])
def test_tied_is_symmetric_at_every_step(projection: str, optimiser: str) -> None:
    for steps in (1, 3):
        for M in forms(trained(projection, steps, optimiser=optimiser)):
            for offset in (0, 1, -5):
                assert gap(M.symmetry_at(offset), torch.ones(2)) <= 1e-6
            assert float(torch.linalg.eigvalsh(M.dense()).min()) >= -1e-10


def test_without_ties_it_is_not() -> None:
    assert all(float(M.symmetry().abs().max()) < 0.9 for M in forms(trained("untied", 3)))


@pytest.mark.parametrize("projection", SKEW)
def test_the_skew_part_has_its_rank(projection: str) -> None:
    for net in (network(projection), trained(projection, 3)):
        rank = net.stack.blocks[0].attention.projection.skew_rank
        assert rank == 2 * max(1, HEAD // 2 // PAIRS_PER_SKEW_PAIR) < HEAD
        for M in forms(net):
            dense = M.dense().detach()
            assert torch.linalg.matrix_rank(dense - dense.mT).tolist() == [rank] * 2
            symmetric = torch.linalg.eigvalsh(dense + dense.mT)
            assert torch.linalg.matrix_rank(dense + dense.mT).tolist() == [HEAD - rank] * 2
            assert bool((symmetric.amin(-1) < -1e-6).all()) == (projection == "symmetric_skew")


def test_the_symmetric_part_is_positive() -> None:
    for M in forms(trained("psd_skew", 3)):
        dense = M.dense().detach()
        assert float(torch.linalg.eigvalsh(dense + dense.mT).min()) >= -1e-10


@pytest.mark.parametrize("projection", SKEW)
def test_the_skew_part_is_skew_at_every_offset(projection: str) -> None:
    """J commutes with rotations: M(δ) − M(−δ)ᵀ keeps the rank, and M(δ) + M(−δ)ᵀ the rest."""
    for M in forms(network(projection)):
        forth, back = M(3).dense().detach(), M(-3).dense().detach().mT
        rank = network(projection).stack.blocks[0].attention.projection.skew_rank
        assert torch.linalg.matrix_rank(forth - back).tolist() == [rank] * 2
        assert torch.linalg.matrix_rank(forth + back).tolist() == [HEAD - rank] * 2


def test_isometric_stays_so() -> None:
    for steps in (0, 3):
        for block in rs.load(trained("isometric", steps)).view.layer_heads:
            for W in (block.W_Q, block.W_K):
                assert gap(W.mT @ W, torch.eye(HEAD, dtype=F64).expand(2, -1, -1)) <= 1e-10
            assert gap(block.W_V.mT @ block.W_V, torch.eye(HEAD, dtype=F64).expand(2, -1, -1)) > 0.1


@given(seed=st.integers(0, 2**32 - 1), lead=st.lists(st.integers(1, 3), max_size=2), k=st.integers(1, 4))
def test_an_isometry_spans_what_was_given(seed: int, lead: list[int], k: int) -> None:
    V = torch.randn(*lead, k, 6, dtype=F64, generator=torch.Generator().manual_seed(seed))
    W = orthonormal_rows(V)
    assert gap(W @ W.mT, torch.eye(k, dtype=F64).expand(*lead, k, k)) <= 1e-6
    assert gap(V @ W.mT @ W, V) <= 1e-6
    assert gap(orthonormal_rows(3.7 * V), W) <= 1e-6


def test_the_gradient_of_an_isometry_is_that_of_its_formula() -> None:
    V = torch.randn(2, 3, 4, 6, dtype=F64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    g = torch.randn(2, 3, 4, 6, dtype=F64, generator=torch.Generator().manual_seed(2))
    plain = torch.linalg.solve_triangular(torch.linalg.cholesky(V @ V.mT), V, upper=False)
    assert gap(orthonormal_rows(V), plain) <= 1e-12
    own, exact = (torch.autograd.grad(W, V, g)[0] for W in (orthonormal_rows(V), plain))
    assert gap(own, exact) <= 1e-12


def test_isometric_values_are_free() -> None:
    part, W = Isometric(config("isometric")), torch.randn(48, 16)
    assert torch.equal(part.weight(W)[32:], W[32:])


def test_queries_are_the_tokens_own_coordinates() -> None:
    u = torch.randn(2, 5, 16, dtype=F64)
    q, _, _ = network("identity_queries").stack.blocks[0].attention.project(u)
    assert torch.equal(q.transpose(1, 2).flatten(2), u)
    assert torch.equal(model("identity_queries").view.layer_heads[0].W_Q.mT.flatten(0, 1), torch.eye(16, dtype=F64))


def test_keys_are_values() -> None:
    u = torch.randn(2, 5, 16, dtype=F64)
    q, k, v = network("shared_kv").stack.blocks[0].attention.project(u)
    assert torch.equal(k, v)
    assert not torch.equal(q, k)


@pytest.mark.parametrize("projection", ["untied_no_diagonal", "tied_no_diagonal"])
def test_without_diagonal_a_token_sees_all_others_and_the_first_itself(projection: str) -> None:
    weights = torch.stack([model(projection).trace(text(0, 6)).weights(1, head) for head in (0, 1)])
    itself = weights.diagonal(dim1=-2, dim2=-1)
    assert itself[:, 0].tolist() == [1.0, 1.0]
    assert not itself[:, 1:].any()
    assert bool((weights.sum(-1) - 1).abs().max() < 1e-6)
    assert bool((weights > 0)[:, *torch.tril_indices(6, 6, -1)].all())


def test_positions_are_not_exchangeable() -> None:
    """Tied scores are symmetric under rotations; with a and b they are not, though M is."""
    for projection, same in (("tied", True), ("tied_positional", False)):
        S = model(projection).trace(text(0, 6)).scores(0, 1).detach()
        assert (gap(S, S.mT) <= 1e-6) == same
    fresh = initial_network(config("tied_positional"), 1)(text(0, 6)[None])
    assert torch.equal(fresh, initial_network(config("tied"), 1)(text(0, 6)[None]))  # it starts tied


def test_gates_start_half_open_and_may_close() -> None:
    fresh = initial_network(config("gated"), 1)
    assert fresh.stack.blocks[0].attention.gate(torch.randn(1, 3, 16)).eq(0.5).all()
    shut = copy.deepcopy(network("gated", bias=True))
    with torch.no_grad():
        shut.stack.blocks[0].attention.read.bias[-2] = -1e3
    trace = rs.load(shut).trace(text(0, 6))
    assert not trace.displacement(0, 0).any()
    assert trace.displacement(0, 1).any()


@pytest.mark.parametrize("heads", [2, 3, 8])
def test_rows_with_a_gate_begin_where_a_gpu_reads_them(heads: int) -> None:
    """Sixteen bytes of half precision are eight numbers; what is read is what the weights say."""
    attention = network("gated", heads=heads, width=8 * heads, head_width=8, bias=True).stack.blocks[0].attention
    u = torch.randn(2, 5, 8 * heads, dtype=F64)
    q, k, v = attention.project(u)
    assert not any(one % 8 for x in (q, k, v) for one in (*x.stride()[:-1], x.storage_offset()))
    *read, opened = attention.read(u).split([8 * heads] * 3 + [heads], dim=-1)
    for found, rows in zip((q, k, v), read, strict=True):
        torch.testing.assert_close(found.transpose(1, 2).flatten(2), rows)
    torch.testing.assert_close(attention.gate(u)[..., 0], opened.sigmoid().mT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"projection": "tied", "kv_heads": 1}, r"queries that are keys: .*; type kv_heads=2"),
        ({"projection": "tied_positional", "position": "learned"}, r"got position=learned; type position=rotary"),
        ({"projection": "psd_skew", "head_width": 2}, r"got head_width=2; type an even head_width of 4"),
        ({"projection": "identity_queries", "head_width": 4}, r"16 coordinates .* 2 heads of 4; type head_width=8"),
        ({"projection": "shared_kv", "value_width": 4}, r"value_width=4 and head_width=8; type value_width=8"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RheoscopeError, match=message) as said:
        build(config(**changes))
    assert "\n" not in str(said.value)


def test_groups_of_heads_fit_where_queries_are_free() -> None:
    for projection in ("isometric", "identity_queries", "shared_kv", "gated"):
        rs.load(randomised(build(config(projection, kv_heads=1, depth=1))))


def test_the_parts_train(tmp_path: Path) -> None:
    """As `rheoscope train --set projection=gated`: trained, resumed and opened like any other."""
    run(tmp_path, small(projection="gated", steps=4))
    assert rs.load(tmp_path).network.config.projection == "gated"


def test_numbers_of_heads_stand_beside_their_texts() -> None:
    x = torch.arange(12.0).view(2, 3, 2)
    assert torch.equal(broadcast_to_texts(x[0], 4), x[:1, :, None])
    assert torch.equal(broadcast_to_texts(x, 4)[[0, 1]], x[[0, 0]][:, :, None])
    assert torch.equal(broadcast_to_texts(x, 4)[[2, 3]], x[[1, 1]][:, :, None])


def test_defaults_leave_what_a_model_is_as_it_was() -> None:
    assert replace(config("untied"), start="symmetric").function_key() == config("untied").function_key()
    assert "projection" not in config("untied").function_key()
    assert config("tied").function_key() != config("untied").function_key()


def test_gated_heads_are_gated_wherever_they_are_recomputed() -> None:
    """Maps of layers, another mechanism, gradients and another F: each against the running model."""
    of, ids = model("gated"), text(0, 7)
    trace = of.trace(ids)
    rs.fixed_point(of, trace, applications=1, iterations=1)  # refuses a map that is not the layer's own
    heads, x = trace.view.layer_heads[1], trace.layer_input(1)
    own = trace.points[trace.mid_steps[1]] - x
    assert gap(attention_displacement(heads, heads.mechanism, x, *heads.qkv(x))[0], own) <= 1e-10
    assert gap(heads.attention_update(x), own) <= 1e-10
    assert gap(heads.factored_displacements(x).total(), own) <= 1e-10
    outputs, pulled = heads.outputs(x).detach().requires_grad_(), torch.randn_like(own)
    (heads.apply_gate(outputs, x) @ heads.W_O).sum(0).backward(pulled)
    assert gap(head_output_gradients(heads, x, pulled), outputs.grad) <= 1e-10


@torch.no_grad()
def test_another_F_of_a_gated_head_is_gated() -> None:
    """F + F of one head, while the model runs, is the model with twice its W_O."""
    of, ids = model("gated"), text(0, 7)
    heads = of.view.layer_heads[1]
    twice = OperatorEdit(1, heads, [0], content=heads.F(), centred_content=False)
    found = of.trace(ids, edit=model_edits(torch.ones(1, 7, dtype=torch.bool), [twice]))
    doubled = copy.deepcopy(network("gated"))
    doubled.stack.blocks[1].attention.write.weight[:, :HEAD] *= 2
    assert gap(found.points[-1], rs.load(doubled).trace(ids).points[-1]) <= 1e-10

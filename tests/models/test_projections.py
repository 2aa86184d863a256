"""Projections: one battery for all of them, then the law of each."""

import copy
import math
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import rheoscope as rs
from rheoscope.covers.head_replacement import OperatorEdit, model_edits
from rheoscope.covers.reversed_attention.analysis import head_output_gradients
from rheoscope.flow.energy.ledger import attention_displacement
from rheoscope.models.checkpoint import initial_network, load_network, save
from rheoscope.models.config import CHOICES, Config
from rheoscope.models.generate import generate
from rheoscope.models.orthonormal_rows import orthonormal_rows
from rheoscope.models.penalty import asymmetry
from rheoscope.models.projection import broadcast_to_texts, linear
from rheoscope.models.projections import PROJECTIONS, WITHOUT_M
from rheoscope.models.recipes import emf
from rheoscope.models.tied_projections import PAIRS_PER_SKEW_PAIR
from rheoscope.models.transformer import build
from rheoscope.shapes import RheoscopeError
from tests.models.runs import prose, run, small
from tests.pretrained.cases import VOCABULARY, gap, randomised, text

F64 = torch.float64
EVERY = list(PROJECTIONS)
LINEAR = [name for name in EVERY if name not in WITHOUT_M]
TIED = ["tied", "tied_positional", "identity", "bandwidth"]
SKEW = ["symmetric_skew", "psd_skew"]
HEAD = 8


def config(projection: str, **more: Any) -> Config:
    shape = {"vocabulary": VOCABULARY, "width": 16, "depth": 2, "heads": 2, "context": 32, "hidden": 24}
    return Config(**shape | {"projection": projection} | more)


@cache
def network(projection: str, **more: Any) -> Any:
    """A tiny model with a projection, random parameters and float64."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return randomised(build(config(projection, **more))).to(F64)


@cache
def model(projection: str, **more: Any) -> Any:
    return rs.load(network(projection, **more))


def test_every_projection_is_a_choice_of_the_config() -> None:
    assert CHOICES["projection"] == tuple(PROJECTIONS)


@pytest.mark.parametrize("projection", LINEAR)
@pytest.mark.parametrize("more", [{}, {"bias": True, "norm": "layer"}], ids=["bare", "biased"])
@torch.no_grad()
def test_scores_and_displacements_follow_from_M_and_F(projection: str, more: dict[str, Any]) -> None:
    """Scores from the factors of M at every offset and displacements from F, against the running module."""
    trace = model(projection, **more).trace(text(0, 5))
    for layer, heads in enumerate(trace.view.layer_heads):
        x = trace.layer_input(layer)
        hat, scores = heads.norm.normalise(x), torch.stack([trace.scores(layer, head) for head in range(2)])
        assert gap(scores, scores_by_hand(heads, hat)) <= 1e-6
        module = network(projection, **more).stack.blocks[layer].attention
        gate = module.gate(heads.norm.apply(x)[None])
        weights = torch.stack([trace.weights(layer, head) for head in range(2)]).to(F64)
        constant = 0 if heads.value_bias is None else (heads.value_bias[:, None] @ heads.W_O)
        displacements = (weights @ (hat @ heads.F().dense() + constant)) * (1 if gate is None else gate[0])
        assert gap(torch.stack([trace.displacement(layer, head) for head in range(2)]), displacements) <= 1e-10
        expected_update = trace.points[trace.mid_steps[layer]] - x
        assert gap(displacements.sum(0) + (0 if heads.b_O is None else heads.b_O), expected_update) <= 1e-10


def scores_by_hand(heads: Any, hat: Tensor) -> Tensor:
    """(x̂ D_g W_Q + …) R(i − j) (x̂ D_g W_K + …)ᵀ scale, for one pair of tokens at a time."""
    u = (hat if heads.norm.gain is None else hat * heads.norm.gain) + (
        0 if heads.norm.bias is None else heads.norm.bias
    )
    q, k = u @ heads.W_Q, u @ heads.W_K
    q, k = (y if b is None else y + b[:, None] for y, b in ((q, heads.b_Q), (k, heads.b_K)))
    n, position = len(hat), heads.mechanism.position
    rotations = {offset: position.rotation_matrix(offset, q.shape[-1], q) for offset in range(1 - n, n)}
    rows = [torch.stack([((q[:, i] @ rotations[i - j]) * k[:, j]).sum(-1) for j in range(n)], -1) for i in range(n)]
    return torch.stack(rows, -2) * heads.scale


@pytest.mark.parametrize("projection", EVERY)
def test_gradients_reach_every_parameter(projection: str) -> None:
    module = network(projection)
    module.zero_grad()
    module(text(1, 9)[None]).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name


@pytest.mark.parametrize("projection", EVERY)
@torch.no_grad()
def test_a_decoder_stays_causal(projection: str) -> None:
    ids, changed_ids = text(0, 9)[None], text(0, 9)[None].clone()
    changed_ids[0, 6] = (changed_ids[0, 6] + 1) % VOCABULARY
    logits, changed_logits = network(projection)(ids), network(projection)(changed_ids)
    assert torch.equal(logits[:, :6], changed_logits[:, :6])
    assert not torch.equal(logits[:, 6], changed_logits[:, 6])


@pytest.mark.parametrize("projection", EVERY)
def test_a_cache_changes_nothing(projection: str) -> None:
    ids = text(0, 5)[None]
    cached, plain = (generate(network(projection), ids, 6, temperature=0.0, cached=cached) for cached in (True, False))
    assert torch.equal(cached, plain)


@pytest.mark.parametrize("projection", EVERY)
@torch.no_grad()
def test_a_saved_model_has_the_same_logits(projection: str, tmp_path: Path) -> None:
    reloaded, _ = load_network(save(network(projection), tmp_path), dtype="float64")
    assert reloaded.config == network(projection).config
    assert torch.equal(reloaded(text(0, 9)[None]), network(projection)(text(0, 9)[None]))


@pytest.mark.parametrize("projection", EVERY)
def test_a_seed_gives_all_projections_the_same_shared_weights(projection: str) -> None:
    """Two projections share the FFNs, the output projections, and the rows of the input projection that both have."""
    shape = {name: getattr(config(projection), name) for name in ("kv_heads", "head_width")}
    gradient, plain = (initial_network(config(name, **shape), 3) for name in (projection, "untied"))
    plain_parameters = dict(plain.named_parameters())
    for name, parameter in gradient.named_parameters():
        if "attention.read" not in name and name in plain_parameters:
            assert torch.equal(parameter, plain_parameters[name]), name
    layout, plain_layout = (net.stack.blocks[0].attention.projection.layout for net in (gradient, plain))
    sizes = {name: n * k for name, (n, k) in plain_layout.items()}
    plain_rows = plain.stack.blocks[1].attention.read.weight.split(list(sizes.values()))
    rows_by_name = dict(zip(sizes, plain_rows, strict=True))
    rows = gradient.stack.blocks[1].attention.read.weight.split([n * k for n, k in layout.values()])
    for name, part in zip(layout, rows, strict=True):
        assert torch.equal(part, rows_by_name[name]) if name in sizes else not part.any()


@pytest.mark.parametrize("projection", LINEAR)
def test_packed_models_equal_separate_ones(projection: str) -> None:
    """Weights (models, out, in) with stacked texts give the same queries, keys and values as each model alone."""
    separate = [network(projection).stack.blocks[layer].attention for layer in (0, 1)]
    u, rotation = torch.randn(4, 5, 16, dtype=F64), network(projection).stack.place.rotation(slice(0, 5))
    packed = copy.deepcopy(separate[0].projection)
    for (name, _), *parameters in zip(
        packed.named_parameters(), *(attention.projection.parameters() for attention in separate), strict=True
    ):
        setattr(packed, name, torch.nn.Parameter(torch.stack([p.detach() for p in parameters])))

    class Read(torch.nn.Module):
        weight, bias = torch.stack([attention.read.weight.detach() for attention in separate]), None

        def forward(self, u: Tensor) -> Tensor:
            return linear(u, self.weight, self.bias)

    rows = packed.read_rows(Read(), u)
    expected = [attention.project(part, rotation) for attention, part in zip(separate, u.split(2), strict=True)]
    for result, *parts in zip(packed.project_heads(rows, u, rotation), *expected, strict=True):
        assert gap(result, torch.cat(parts)) <= 1e-12


@pytest.mark.parametrize("projection", LINEAR)
@torch.no_grad()
def test_encoders_and_half_precision_models_are_certified(projection: str) -> None:
    """Loading certifies the View against the running module."""
    encoder = rs.load(network(projection, form="encoder"))
    assert encoder.view.facts["certificate"].closure_error <= 1e-9
    assert rs.load(copy.deepcopy(network(projection)), dtype="bfloat16").view.dtype is torch.bfloat16


def trained(projection: str, steps: int = 4, **more: Any) -> Any:
    """A model after a few steps of its optimiser."""
    return run_steps(small(**{"projection": projection, "accumulate": 1} | more), steps)


def run_steps(recipe: Any, steps: int) -> Any:
    from rheoscope.models.optimiser import make_optimisers

    torch.manual_seed(0)
    net = build(recipe.config).to(F64)
    optimisers, task = make_optimisers(net, recipe), prose()
    for step in range(steps):
        x, y = task.batch(step, recipe)
        task.loss(net, (x, y)).backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
    return net


def forms(net: Any) -> list[Any]:
    return [block.M() for block in rs.load(copy.deepcopy(net).requires_grad_(False)).view.layer_heads]


@pytest.mark.parametrize(("projection", "optimiser"), [*((name, "adamw") for name in TIED), ("tied", "muon")])
def test_tied_heads_are_symmetric_at_every_step(projection: str, optimiser: str) -> None:
    for steps in (1, 3):
        for M in forms(trained(projection, steps, optimiser=optimiser)):
            for offset in (0, 1, -5):
                assert gap(M.symmetry_at(offset), torch.ones(2)) <= 1e-6
            assert float(torch.linalg.eigvalsh(M.dense()).min()) >= -1e-10


def test_untied_heads_are_not_symmetric() -> None:
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


@pytest.mark.parametrize("planes", range(HEAD // 2 + 1))
@torch.no_grad()
def test_skew_planes_are_a_dial_from_symmetric_to_skew(planes: int) -> None:
    """M(δ) = Σ_p W_p R(δ) (a_p I + b_p J) W_pᵀ, written out plane by plane, with a skew part of rank 2r at every offset."""
    net = network("skew_planes", skew_planes=planes)
    for block, M in zip(net.stack.blocks, forms(net), strict=True):
        attention, half = block.attention, HEAD // 2
        gain, scale = block.norm_attention.weight[:, None], HEAD**-0.5
        W = [gain * rows.mT for rows in attention.read.weight[:16].unflatten(0, (2, HEAD))]
        a = attention.projection.signs.unflatten(0, (2, half))
        b = torch.zeros(2, half, dtype=F64)
        if planes:
            b[:, half - planes :] = attention.projection.turns.unflatten(0, (2, planes))
        for offset in (0, 3, -4):
            expected = torch.zeros(2, 16, 16, dtype=F64)
            for head in range(2):
                for p in range(half):
                    plane, angle = W[head][:, [p, p + half]], offset * 10_000.0 ** (-p / half)
                    cos, sin = math.cos(angle), math.sin(angle)
                    rotation = torch.tensor([[cos, sin], [-sin, cos]], dtype=F64)
                    factor = torch.tensor([[a[head, p], b[head, p]], [-b[head, p], a[head, p]]], dtype=F64)
                    expected[head] += scale * plane @ rotation @ factor.mT @ plane.mT
            assert gap(M(offset).dense(), expected) <= 1e-6
            skew = M(offset).dense() - M(-offset).dense().mT
            assert torch.linalg.matrix_rank(skew, atol=1e-6).tolist() == [2 * planes] * 2
            assert torch.linalg.matrix_rank(M(offset).dense() + M(-offset).dense().mT, atol=1e-6).tolist() == [HEAD] * 2


def test_skew_planes_are_at_most_half_of_the_head_width() -> None:
    with pytest.raises(
        RheoscopeError, match="at most half of it as skew_planes, got head_width=8 and skew_planes=5; type"
    ) as e:
        build(config("skew_planes", skew_planes=5))
    assert "\n" not in str(e.value)


@torch.no_grad()
def test_bandwidth_with_a_metric_is_kernel_regression_on_the_token() -> None:
    """Gaussian Kernel Attention: o_i = Σ_j κ(x_i, x_j) x_j / Σ_j κ(x_i, x_j) for every slice of the token."""
    kernel = config("bandwidth", values="shared", mechanism="metric", options={"sigma": 1.5}, position="none")
    net = randomised(build(kernel)).to(F64)
    attention, u = net.stack.blocks[0].attention, torch.randn(1, 6, 16, dtype=F64)
    factors, heads = attention.projection.log_scale.exp(), []
    for head, x in enumerate(u[0].unflatten(1, (2, HEAD)).unbind(1)):
        rows = [
            sum(
                math.exp(-0.5 * float((factors[head] / 1.5 * (x[i] - x[j])).square().sum())) * x[j]
                for j in range(i + 1)
            )
            / sum(math.exp(-0.5 * float((factors[head] / 1.5 * (x[i] - x[j])).square().sum())) for j in range(i + 1))
            for i in range(6)
        ]
        heads.append(factors[head] * torch.stack(rows))
    assert gap(attention(u)[0], torch.cat(heads, -1) @ attention.write.weight.T) <= 1e-10


@torch.no_grad()
def test_nonlinear_queries_add_a_small_network_and_have_no_M() -> None:
    net, u = network("nonlinear_queries"), torch.randn(2, 5, 16, dtype=F64)
    projection = net.stack.blocks[0].attention.projection
    q, _, _ = net.stack.blocks[0].attention.project(u)
    hidden = u @ projection.narrow.weight.T
    gelu = 0.5 * hidden * (1 + torch.tanh((2 / math.pi) ** 0.5 * (hidden + 0.044715 * hidden**3)))
    assert gap(q.transpose(1, 2).flatten(2), u + gelu @ projection.widen.weight.T) <= 1e-12
    assert sum(p.numel() for p in projection.parameters()) == 16 * 16
    for refused in (lambda: rs.load(copy.deepcopy(net)), lambda: asymmetry(net)):
        with pytest.raises(
            RheoscopeError, match="projection=nonlinear_queries has queries that are not linear"
        ) as error:
            refused()
        assert "\n" not in str(error.value)


def test_the_symmetric_part_of_psd_skew_is_positive_semi_definite() -> None:
    for M in forms(trained("psd_skew", 3)):
        dense = M.dense().detach()
        assert float(torch.linalg.eigvalsh(dense + dense.mT).min()) >= -1e-10


@pytest.mark.parametrize("projection", SKEW)
def test_the_skew_part_is_skew_at_every_offset(projection: str) -> None:
    """J commutes with rotations, so M(δ) − M(−δ)ᵀ keeps the skew rank and M(δ) + M(−δ)ᵀ the rest."""
    for M in forms(network(projection)):
        forward, backward = M(3).dense().detach(), M(-3).dense().detach().mT
        rank = network(projection).stack.blocks[0].attention.projection.skew_rank
        assert torch.linalg.matrix_rank(forward - backward).tolist() == [rank] * 2
        assert torch.linalg.matrix_rank(forward + backward).tolist() == [HEAD - rank] * 2


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
@pytest.mark.parametrize("projection", ["isometric", "isometric_tied"])
def test_isometric_projections_stay_orthonormal_in_training(projection: str, optimiser: str) -> None:
    for block in rs.load(trained(projection, 2, optimiser=optimiser)).view.layer_heads:
        for W in (block.W_Q, block.W_K):
            assert gap(W.mT @ W, torch.eye(HEAD, dtype=F64).expand(2, -1, -1)) <= 1e-10
        assert gap(block.W_V.mT @ block.W_V, torch.eye(HEAD, dtype=F64).expand(2, -1, -1)) > 0.1


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), lead=st.lists(st.integers(1, 3), max_size=2), k=st.integers(1, 4))
def test_orthonormal_rows_keep_the_span(seed: int, lead: list[int], k: int) -> None:
    V = torch.randn(*lead, k, 6, dtype=F64, generator=torch.Generator().manual_seed(seed))
    W = orthonormal_rows(V)
    assert gap(W @ W.mT, torch.eye(k, dtype=F64).expand(*lead, k, k)) <= 1e-6
    assert gap(V @ W.mT @ W, V) <= 1e-6
    assert gap(orthonormal_rows(3.7 * V), W) <= 1e-6


def test_the_gradient_of_orthonormal_rows_equals_autograd() -> None:
    V = torch.randn(2, 3, 4, 6, dtype=F64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    g = torch.randn(2, 3, 4, 6, dtype=F64, generator=torch.Generator().manual_seed(2))
    plain = torch.linalg.solve_triangular(torch.linalg.cholesky(V @ V.mT), V, upper=False)
    assert gap(orthonormal_rows(V), plain) <= 1e-12
    gradient, expected_gradient = (torch.autograd.grad(W, V, g)[0] for W in (orthonormal_rows(V), plain))
    assert gap(gradient, expected_gradient) <= 1e-12


@pytest.mark.parametrize("projection", EVERY)
def test_only_rows_that_are_named_isometric_change(projection: str) -> None:
    """Every row of an untied layer, with isometric values where the projection has values of its own."""
    values = "free" if projection == "full" else "isometric"
    part = PROJECTIONS[projection](config(projection, values=values))
    sizes = [count * width for count, width in part.layout.values()]
    W = torch.randn(sum(sizes), 16, dtype=F64)
    for name, trained, effective in zip(part.layout, W.split(sizes), part.weight(W).split(sizes), strict=True):
        heads = effective.unflatten(0, part.layout[name])
        is_orthonormal = gap(heads @ heads.mT, torch.eye(heads.shape[1], dtype=F64).expand(len(heads), -1, -1)) <= 1e-10
        assert is_orthonormal == ((name == "v" and values == "isometric") or projection.startswith("isometric"))
        assert is_orthonormal != torch.equal(trained, effective)


def test_identity_divides_the_coordinates_of_a_token_among_the_heads() -> None:
    """M_h = P_h R(δ) P_hᵀ · scale: the concatenated queries are the token, and so are the keys."""
    u = torch.randn(2, 5, 16, dtype=F64)
    q, k, _ = network("identity").stack.blocks[0].attention.project(u)
    assert torch.equal(q, k)
    assert torch.equal(q.transpose(1, 2).flatten(2), u)
    selections = torch.eye(16, dtype=F64).unflatten(1, (2, HEAD)).transpose(0, 1)
    assert torch.equal(model("identity").view.layer_heads[0].W_Q, selections)
    assert torch.equal(model("identity").view.layer_heads[0].W_K, selections)


def test_identity_queries_are_the_coordinates_of_the_token() -> None:
    u = torch.randn(2, 5, 16, dtype=F64)
    q, _, _ = network("identity_queries").stack.blocks[0].attention.project(u)
    assert torch.equal(q.transpose(1, 2).flatten(2), u)
    assert torch.equal(model("identity_queries").view.layer_heads[0].W_Q.mT.flatten(0, 1), torch.eye(16, dtype=F64))


def test_full_operators_are_the_trained_parameters(tmp_path: Path) -> None:
    """Law: M and F of the View equal the parameters of the EMF recipe bit for bit, after training and reloading."""
    net = run_steps(small(**asdict(emf().with_changes(width=16, heads=2).config), accumulate=1), 2).float()
    view = rs.load(save(net, tmp_path)).view
    for block, heads in zip(net.stack.blocks, view.layer_heads, strict=True):
        assert torch.equal(heads.M().dense(), block.attention.read.weight.unflatten(0, (2, 16)).mT)
        assert torch.equal(heads.F().dense(), block.attention.write.weight.T.unflatten(0, (2, 16)))
    assert torch.linalg.matrix_rank(view.head(0, 0).M.dense()) == 16


def test_full_needs_the_shape_of_the_tokens() -> None:
    with pytest.raises(RheoscopeError, match="projection=full uses the 16 coordinates of a token as its key and value"):
        build(config("full", kv_heads=2))


def test_shared_kv_uses_keys_as_values() -> None:
    u = torch.randn(2, 5, 16, dtype=F64)
    q, k, v = network("untied", values="shared").stack.blocks[0].attention.project(u)
    assert torch.equal(k, v)
    assert not torch.equal(q, k)


@pytest.mark.parametrize("projection", ["untied", "identity"])
def test_without_a_diagonal_only_the_first_token_attends_to_itself(projection: str) -> None:
    loaded = model(projection, diagonal=False)
    weights = torch.stack([loaded.trace(text(0, 6)).weights(1, head) for head in (0, 1)])
    diagonal = weights.diagonal(dim1=-2, dim2=-1)
    assert diagonal[:, 0].tolist() == [1.0, 1.0]
    assert not diagonal[:, 1:].any()
    assert bool((weights.sum(-1) - 1).abs().max() < 1e-6)
    assert bool((weights > 0)[:, *torch.tril_indices(6, 6, -1)].all())


def test_tied_positional_scores_are_not_symmetric() -> None:
    """Tied scores are symmetric under rotations. With a and b they are not, although M is."""
    for projection, is_symmetric in (("tied", True), ("tied_positional", False)):
        S = model(projection).trace(text(0, 6)).scores(0, 1).detach()
        assert (gap(S, S.mT) <= 1e-6) == is_symmetric
    fresh = initial_network(config("tied_positional"), 1)(text(0, 6)[None])
    assert torch.equal(fresh, initial_network(config("tied"), 1)(text(0, 6)[None]))  # training starts from tied weights


def test_gates_start_half_open_and_may_close() -> None:
    fresh = initial_network(config("gated"), 1)
    assert fresh.stack.blocks[0].attention.gate(torch.randn(1, 3, 16)).eq(0.5).all()
    closed = copy.deepcopy(network("gated", bias=True))
    with torch.no_grad():
        closed.stack.blocks[0].attention.read.bias[-2] = -1e3
    trace = rs.load(closed).trace(text(0, 6))
    assert not trace.displacement(0, 0).any()
    assert trace.displacement(0, 1).any()


@pytest.mark.parametrize("heads", [2, 3, 8])
def test_rows_with_a_gate_are_aligned(heads: int) -> None:
    """Sixteen bytes are eight half-precision numbers. The padded rows equal those of the weights."""
    attention = network("gated", heads=heads, width=8 * heads, head_width=8, bias=True).stack.blocks[0].attention
    u = torch.randn(2, 5, 8 * heads, dtype=F64)
    q, k, v = attention.project(u)
    assert not any(offset % 8 for x in (q, k, v) for offset in (*x.stride()[:-1], x.storage_offset()))
    *expected, gates = attention.read(u).split([8 * heads] * 3 + [heads], dim=-1)
    for x, rows in zip((q, k, v), expected, strict=True):
        torch.testing.assert_close(x.transpose(1, 2).flatten(2), rows)
    torch.testing.assert_close(attention.gate(u)[..., 0], gates.sigmoid().mT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"projection": "tied", "kv_heads": 1}, r"uses queries as keys .* heads=2 and kv_heads=1; type kv_heads=2"),
        ({"projection": "tied_positional", "position": "learned"}, r"got position=learned; type position='rotary'"),
        ({"projection": "psd_skew", "head_width": 2}, r"an even head_width of at least 4, got 2; type head_width=4"),
        ({"projection": "identity_queries", "head_width": 4}, r"16 coordinates .* 2 heads, .*=4; type head_width=8"),
        ({"values": "shared", "value_width": 4}, r"value_width=4 and head_width=8; type value_width=8"),
    ],
)
def test_configs_that_do_not_suit_a_projection_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RheoscopeError, match=message) as error:
        build(config(**{"projection": "untied"} | changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("values", ["free", "isometric", "shared"])
@pytest.mark.parametrize("projection", ["isometric", "identity_queries", "gated"])
def test_projections_with_free_queries_support_grouped_heads(projection: str, values: str) -> None:
    loaded = rs.load(randomised(build(config(projection, kv_heads=1, depth=1, values=values)).to(F64)))
    (heads,) = loaded.view.layer_heads
    assert (len(heads.W_Q), len(heads.W_K), len(heads.W_V)) == (2, 1, 1)
    assert loaded.view.facts["certificate"].closure_error <= 1e-9


def test_a_run_with_another_projection_trains_and_opens(tmp_path: Path) -> None:
    """As in `rheoscope train --set projection=gated`."""
    run(tmp_path, small(projection="gated", steps=4))
    network = rs.load(tmp_path).network
    assert network.config.projection == "gated"
    gate_rows = network.stack.blocks[0].attention.read.weight[-2:]
    assert bool(gate_rows.any())  # the gates start at 0 and have been trained


def test_head_constants_broadcast_to_the_texts_of_their_model() -> None:
    x = torch.arange(12.0).view(2, 3, 2)
    assert torch.equal(broadcast_to_texts(x[0], 4), x[:1, :, None])
    assert torch.equal(broadcast_to_texts(x, 4)[[0, 1]], x[[0, 0]][:, :, None])
    assert torch.equal(broadcast_to_texts(x, 4)[[2, 3]], x[[1, 1]][:, :, None])


def test_the_function_key_omits_the_default_projection() -> None:
    assert replace(config("untied"), start="symmetric").function_key() == config("untied").function_key()
    assert "projection" not in config("untied").function_key()
    assert config("tied").function_key() != config("untied").function_key()


def test_recomputed_heads_include_their_gate() -> None:
    """Layer maps, other mechanisms, gradients and another F, each against the running model."""
    loaded, ids = model("gated"), text(0, 7)
    trace = loaded.trace(ids)
    rs.fixed_point(loaded, trace, applications=1, iterations=1)  # raises if its map is not that of the layer
    heads, x = trace.view.layer_heads[1], trace.layer_input(1)
    gradient = trace.points[trace.mid_steps[1]] - x
    assert gap(attention_displacement(heads, heads.mechanism, x, *heads.qkv(x))[0], gradient) <= 1e-10
    assert gap(heads.attention_update(x), gradient) <= 1e-10
    assert gap(heads.factored_displacements(x).total(), gradient) <= 1e-10
    outputs, pullback = heads.outputs(x).detach().requires_grad_(), torch.randn_like(gradient)
    (heads.apply_gate(outputs, x) @ heads.W_O).sum(0).backward(pullback)
    assert gap(head_output_gradients(heads, x, pullback), outputs.grad) <= 1e-10


@torch.no_grad()
def test_an_edit_of_F_is_gated() -> None:
    """Adding F to a head during a run equals the model with twice its W_O."""
    loaded, ids = model("gated"), text(0, 7)
    heads = loaded.view.layer_heads[1]
    twice = OperatorEdit(1, heads, [0], content=heads.F(), centred_content=False)
    edited = loaded.trace(ids, edit=model_edits(torch.ones(1, 7, dtype=torch.bool), [twice]))
    doubled = copy.deepcopy(network("gated"))
    doubled.stack.blocks[1].attention.write.weight[:, :HEAD] *= 2
    assert gap(edited.points[-1], rs.load(doubled).trace(ids).points[-1]) <= 1e-10

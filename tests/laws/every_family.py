"""One battery for every model: what the View recomputes is what Hugging Face, or our own module, computes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.attention.definition import query_key_positions
from rheoscope.pretrained.families import FAMILIES
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import ModelRotary, Norm
from rheoscope.space.trace import Trace
from tests.cases import (
    BIDIRECTIONAL,
    CAUSAL,
    DOT,
    EVERY,
    KINDS,
    LENGTH,
    PADDED,
    PARALLEL,
    POST_NORM,
    ROTARY,
    SOFTMAX,
    WITH_LOGITS,
    WITH_M,
    distance,
    double,
    eager,
    gap,
    model,
    network,
    ours,
    random,
    seen,
    stream,
    text,
    theirs,
    traced,
    untouched,
)
from tests.place import PLACE
from tests.pretrained.cases import CASES, ISLANDS, changed

F32, F64 = torch.float32, torch.float64
CLEAN = [name for name in theirs.EVERY if name not in ISLANDS]
every = pytest.mark.parametrize("name", EVERY)


def in_both(names: list[str]) -> Any:
    """All in float64; in float32, whose rounding is the same whatever the angles of a rotary are, one of each kind."""
    cases = [(name, dtype) for dtype in (F64, F32) for name in names if dtype is F64 or name in KINDS]
    return pytest.mark.parametrize(("name", "dtype"), cases)


def bar(name: str, dtype: torch.dtype, single: float) -> float:
    """What recomputation from the operators alone may be off by: islands of float32 stay in a float64 model."""
    if dtype is F32:
        return single
    rotary = name in ours.CASES and ours.CASES[name].position == "rotary"  # tables of float32
    return 1e-5 if name in ISLANDS or rotary else 1e-10


def layers(name: str) -> range:
    return range(model(name).view.layers)


def heads(name: str) -> range:
    return range(model(name).view.heads)


def test_every_family_has_a_case() -> None:
    assert {network(name).config.model_type for name in theirs.EVERY} == set(FAMILIES)


def test_the_cases_are_hard() -> None:
    """Attention neither uniform nor hard, gains far from 1, biases far from 0, windows shorter than the text."""
    for name in EVERY:
        trace = traced(name)
        top = torch.stack([trace.weights(at, 0)[-1].max() for at in layers(name)])
        assert 1.2 / LENGTH < top.max() < 0.9999 or name not in SOFTMAX, name
        for x in network(name).parameters():
            assert x.std() > 0.1, name
    windows = [name for name in theirs.EVERY if bool((seen(name)[1][0].weights[:, -1, :2] == 0).all())]
    assert windows == ["mistral", "qwen2", "gemma3", "gemma3_capped", "phi3"]


# Bar 1: the model's own numbers


@pytest.mark.parametrize("name", WITH_LOGITS)
def test_logits_are_those_of_the_untouched_model(name: str) -> None:
    wanted = untouched(name, text())
    assert torch.equal(traced(name).logits, wanted)
    assert torch.equal(model(name).run(text()), wanted)


@every
def test_points_do_not_depend_on_asking_for_logits(name: str) -> None:
    plain = model(name).trace(text())
    assert plain.logits is None
    assert torch.equal(plain.points, traced(name).points)


@every
def test_points_are_the_hidden_states_of_the_model(name: str) -> None:
    """The network's own list: the embedding, then the stream after each layer."""
    trace, states = traced(name), stream(name, text())
    points = [trace.points_at("embed"), *(trace.points_at(f"L{at}.resid_post") for at in layers(name))]
    assert len(states) >= model(name).view.layers
    for mine, own in zip(points, states, strict=False):
        assert torch.equal(mine, own[0])


@every
def test_weights_are_those_of_the_models_eager_attention(name: str) -> None:
    trace, own = eager(name, text())
    for at, wanted in enumerate(own):
        found = torch.stack([trace.weights(at, head) for head in heads(name)])
        assert gap(found, wanted) <= 1e-6


@pytest.mark.parametrize("dtype", [F32, F64])
@every
def test_scores_and_weights_are_those_of_the_models_queries_and_keys(name: str, dtype: torch.dtype) -> None:
    trace, own = seen(name, dtype)
    for at, layer in enumerate(own):
        scores = torch.stack([trace.scores(at, head) for head in heads(name)])
        weights = torch.stack([trace.weights(at, head) for head in heads(name)])
        assert gap(weights, layer.weights) <= (1e-6 if dtype is F32 else 1e-12)
        assert gap(scores, layer.scores) <= (1e-5 if dtype is F32 else 1e-11)
        assert bool((weights[:, ~layer.permitted] == 0).all())
        assert bool((weights[:, layer.permitted] > 0).all()) or name not in SOFTMAX


@pytest.mark.parametrize("dtype", [F32, F64])
@every
def test_displacements_close_the_stream(name: str, dtype: torch.dtype) -> None:
    """Gemma's norm after attention takes a float32 step, so its float64 model closes to float32 only."""
    trace = traced(name, dtype)
    within = 1e-6 if dtype is F32 or name.startswith("gemma") else 1e-10
    for at in layers(name):
        moved = trace.points[trace.mid_steps[at]] - trace.points[trace.input_steps[at]]
        assert distance(trace.displacements(at).sum(0) + trace.bias(at), moved) <= within
        assert torch.equal(trace.displacement(at, 1), trace.displacements(at)[1])


@pytest.mark.parametrize("dtype", [F32, F64])
@every
def test_mlps_close_the_other_half(name: str, dtype: torch.dtype) -> None:
    trace = traced(name, dtype)
    for at in layers(name):
        middle = trace.points_at(f"L{at}.resid_mid")
        after = trace.points_at(f"L{at}.mlp_sum" if name in POST_NORM else f"L{at}.resid_post")
        read = trace.layer_input(at) if name in PARALLEL else middle
        with torch.no_grad():
            own = trace.view.mlps[at](read)
        assert distance(after - middle, own) <= (1e-6 if dtype is F32 else 1e-12)


@every
def test_steps_are_labelled_in_the_order_of_the_stream(name: str) -> None:
    trace = traced(name)
    halves = ["attn_sum", "resid_mid", "mlp_sum", "resid_post"] if name in POST_NORM else ["resid_mid", "resid_post"]
    assert tuple(map(str, trace.steps)) == ("embed", *(f"L{at}.{half}" for at in layers(name) for half in halves))
    assert trace.points.shape == (len(trace.steps), LENGTH, model(name).view.width)
    assert set(map(str, trace.unread_steps)) == (
        {f"L{at}.resid_mid" for at in layers(name)} if name in PARALLEL else set()
    )
    for at in layers(name):
        read = "embed" if at == 0 else f"L{at - 1}.resid_post"
        assert torch.equal(trace.layer_input(at), trace.points_at(read))
        assert str(trace.steps[trace.mid_steps[at]]) == f"L{at}.{halves[0]}"


@pytest.mark.parametrize("name", CAUSAL)
def test_the_last_point_reads_out_as_the_logits(name: str) -> None:
    trace = seen(name, F64)[0]
    view = trace.view
    with torch.no_grad():
        logits = view.final_norm.apply(trace.points[-1]) @ view.unembed
        logits = logits if view.unembed_bias is None else logits + view.unembed_bias
    cap = view.logit_cap
    assert distance(logits if cap is None else cap * torch.tanh(logits / cap), trace.logits) <= 1e-10
    assert (cap is not None) == (name == "gemma3_capped")


@pytest.mark.parametrize(
    "name", [name for name in [*CAUSAL, *sorted(ours.BIDIRECTIONAL)] if not name.startswith("gemma")]
)
def test_embed_is_where_tokens_start(name: str) -> None:
    """Up to what depends on the position alone. (Gemma multiplies the rows of its table by sqrt(d).)"""
    one, other = (traced(name, F64, seed) for seed in (0, 1))
    rows = double(name).view.token_embeddings
    assert gap(one.points_at("embed") - other.points_at("embed"), rows(one.ids) - rows(other.ids)) <= 1e-12


# Padding


def scale(x: Tensor) -> float:
    """On a GPU batches add in another order than one text: what float32 rounds a sum by is a multiple of the largest number."""
    return max(1.0, float(x.abs().max())) if x.is_cuda else 1.0


@pytest.mark.parametrize("name", PADDED)
def test_a_padded_batch_gives_each_text_its_own_points(name: str) -> None:
    texts = [text(1, 7), text(2, LENGTH), text(3, 1), text(4, 12)]
    asked = name in WITH_LOGITS
    batch = model(name).trace(texts, logits=asked)
    assert [len(trace) for trace in batch] == [7, LENGTH, 1, 12]
    for seed, (ids, together) in enumerate(zip(texts, batch, strict=True), 1):
        alone = traced(name, seed=seed, n=len(ids))
        assert together.points.shape == alone.points.shape
        assert together.ids.tolist() == ids.tolist()
        assert gap(together.points, alone.points) <= 2e-5 * scale(alone.points)
        assert gap(together.weights(1, 2), alone.weights(1, 2)) <= 1e-5
        assert gap(together.displacements(1), alone.displacements(1)) <= 1e-5 * scale(alone.points)
        if asked:
            assert gap(together.logits, alone.logits) <= 1e-4


@pytest.mark.parametrize("name", PADDED)
def test_a_neighbour_in_the_batch_changes_nothing(name: str) -> None:
    one, other = (model(name).trace([text(1, 7), text(seed, LENGTH)])[0] for seed in (2, 3))
    assert torch.equal(one.points, other.points)


# The operators alone: M(delta) and F on x̂


def hat_bias(norm: Norm, W: Tensor, b: Tensor | None) -> Tensor:
    """What a projection gives to x̂ = 0: the norm's bias through the weights, and its own bias."""
    through = W.new_zeros(len(W), W.shape[-1]) if norm.bias is None else norm.bias @ W
    return through if b is None else through + b


def side(block: Heads, x: Tensor, W: Tensor, b: Tensor | None, norm: Norm | None) -> tuple[Tensor, Tensor]:
    """The bias of queries or keys (h, k) with the gain of a QK-norm, and the scalar (h, n, 1) that the norm divides by."""
    count = block.n_heads
    W = W.repeat_interleave(count // len(W), 0)
    b = None if b is None else b.repeat_interleave(count // len(b), 0)
    beta = hat_bias(block.norm, W, b)
    if norm is None:
        return beta, x.new_ones(count, len(x), 1)
    bare = block.norm.normalise(x) @ block.norm.fold(W) + beta[:, None]
    return beta * norm.gain, (bare.square().mean(-1, keepdim=True) + norm.eps).rsqrt()


def analytic_scores(block: Heads, x: Tensor) -> Tensor:
    """s_ij = a_i c_j (x̂_i M(i-j) x̂_j^T + terms of the biases), one offset i - j after the other."""
    hat, n = block.norm.normalise(x), len(x)
    M = block.M()
    beta_q, a = side(block, x, block.W_Q, block.b_Q, block.q_norm)
    beta_k, c = side(block, x, block.W_K, block.b_K, block.k_norm)
    found = x.new_zeros(block.n_heads, n, n)
    position, width = block.mechanism.position, block.W_Q.shape[-1]
    query_side = hat @ block.norm.fold(gained(block.W_Q, block.q_norm))
    key_side = hat @ block.norm.fold(gained(block.W_K, block.k_norm))
    key_side = key_side.repeat_interleave(block.n_heads // len(block.W_K), 0)
    for offset in range(1 - n, n):
        turn = torch.eye(width, dtype=x.dtype, device=x.device)
        if isinstance(position, ModelRotary):
            turn = position.rotation_matrix(offset, width, x)
        s = M(offset).bilinear_form(hat, hat)
        s = s + block.scale * (
            query_side @ turn @ beta_k[..., None]
            + (key_side @ (beta_q[:, None] @ turn).mT).mT
            + beta_q[:, None] @ turn @ beta_k[..., None]
        )
        found.diagonal(-offset, -2, -1).copy_(s.diagonal(-offset, -2, -1))
    return found * a * c.mT


def gained(W: Tensor, norm: Norm | None) -> Tensor:
    return W if norm is None else W * norm.gain


@in_both(DOT)
@torch.no_grad()
def test_M_reproduces_the_models_scores_at_every_offset(name: str, dtype: torch.dtype) -> None:
    trace, own = seen(name, dtype)
    for at, layer in enumerate(own):
        found = analytic_scores(trace.view.layer_heads[at], trace.layer_input(at))
        bias = trace.view.layer_heads[at].mechanism.position.bias(*query_key_positions(LENGTH, LENGTH, found.device))
        found = found if bias is None else found + bias
        assert gap(found, layer.scores) <= bar(name, dtype, 1e-4)


@in_both(EVERY)
@torch.no_grad()
def test_F_reproduces_the_displacements(name: str, dtype: torch.dtype) -> None:
    """Delta_h(x_i) = c_i sum_j alpha_ij (x̂_j F_h + bias terms), c_i the gate of a head or the scale of the norm after attention, if any."""
    trace, own = seen(name, dtype)
    for at, layer in enumerate(own):
        block, x = trace.view.layer_heads[at], trace.layer_input(at)
        repeat = block.n_heads // len(block.W_V)
        beta = hat_bias(block.norm, block.W_V, block.b_V).repeat_interleave(repeat, 0)[:, None]
        gain = torch.ones((), device=x.device) if block.output_norm is None else block.output_norm.gain
        moved = layer.weights @ (block.F().apply(block.norm.normalise(x)) + beta @ (block.W_O * gain))
        if block.output_norm is not None:
            written = (layer.weights @ layer.v @ block.W_O).sum(0) + (0 if block.b_O is None else block.b_O)
            moved = moved * (written.square().mean(-1, keepdim=True) + block.output_norm.eps).rsqrt()
        moved = block.apply_gate(moved, x)
        assert distance(moved, trace.displacements(at)) <= bar(name, dtype, 1e-5)


@pytest.mark.parametrize("name", WITH_M)
def test_M_at_offset_0_is_M(name: str) -> None:
    for block in double(name).view.layer_heads:
        assert gap(block.M()(0).dense(), block.M().dense()) <= 1e-12
        assert gap(block.M(raw=True)(0).dense(), block.M(raw=True).dense()) <= 1e-12


@every
@torch.no_grad()
def test_norms_are_what_they_say(name: str) -> None:
    """own(x) = x̂ gain + bias, and a matrix that reads the norm is fold(W) on x̂."""
    view = double(name).view
    norms = [view.final_norm, *(block.norm for block in view.layer_heads)]
    for block in view.layer_heads:
        norms += [norm for norm in (block.q_norm, block.k_norm, block.output_norm) if norm is not None]
    for norm in norms:
        width = view.width if norm.gain is None else len(norm.gain)
        x, W = 3 * random(1, 5, width) + 1, random(2, width, 4)
        bias = torch.zeros((), device=PLACE) if norm.bias is None else norm.bias
        assert gap(norm.normalise(x) * (1 if norm.gain is None else norm.gain) + bias, norm.apply(x)) <= 1e-5
        assert (
            gap(
                norm.normalise(x) @ norm.fold(W) + bias @ W
                if norm.bias is not None
                else norm.normalise(x) @ norm.fold(W),
                norm.apply(x) @ W,
            )
            <= 1e-4
        )


# Position and causality


@pytest.mark.parametrize("name", ISLANDS)
@torch.no_grad()
def test_only_the_offset_of_positions_matters(name: str) -> None:
    """Law 3: shifted position ids leave scores, weights and logits as they are."""
    ids, shift = text(), 11
    of = double(name)
    shifted = of.network(
        input_ids=ids[None], position_ids=torch.arange(LENGTH, device=ids.device)[None] + shift
    ).logits[0]
    assert distance(shifted, seen(name, F64)[0].logits) <= 1e-5
    trace = traced(name, F64)
    for at, block in enumerate(of.view.layer_heads):
        q, k, _ = block.qkv(trace.layer_input(at))
        k = k.repeat_interleave(block.n_heads // k.shape[1], 1)
        here, there = (
            block.mechanism.position.encode(q, torch.arange(LENGTH, device=q.device) + by)
            @ block.mechanism.position.encode(k, torch.arange(LENGTH, device=k.device) + by).mT
            for by in (0, shift)
        )
        assert gap(here, there) <= 1e-5 * float(here.abs().max())


def per_token(trace: Trace) -> dict[str, Tensor]:
    """Every per-token result of a Trace, with the token as the first axis."""
    view = trace.view
    results = {"points": trace.points.transpose(0, 1)}
    for at in range(view.layers):
        results[f"displacements {at}"] = trace.displacements(at).transpose(0, 1)
        results[f"bias {at}"] = trace.bias(at)
        for head in range(view.heads):
            results[f"weights {at}.{head}"] = trace.weights(at, head)
            results[f"scores {at}.{head}"] = trace.scores(at, head).tril()
    return results


@every
def test_the_past_does_not_see_the_future(name: str) -> None:
    """Law 5: editing token t leaves every result before t bit-identical; in both directions everything moves."""
    at, after = 9, text()
    after[at] = (after[at] - 2) % 37 + 3
    before = model(name).trace(text())  # as the other, without asking for logits
    one, other = per_token(before), per_token(model(name).trace(after))
    for what in one:
        if name not in BIDIRECTIONAL:
            assert torch.equal(one[what][:at], other[what][:at]), what
    assert not torch.equal(one["points"][at:], other["points"][at:])
    if name in BIDIRECTIONAL:
        assert not torch.equal(one["points"][:at], other["points"][:at])


# Grouped heads


def tie(net: Any) -> None:
    """W_Q := W_K of the head's own group, and one gain for both QK-norms."""
    for layer in net.model.layers:
        attn = layer.self_attn
        if hasattr(attn, "qkv_proj"):
            width, count, groups = attn.head_dim, net.config.num_attention_heads, net.config.num_key_value_heads
            rows = attn.qkv_proj.weight.unflatten(0, (-1, width))
            rows[:count] = rows[count : count + groups].repeat_interleave(count // groups, 0)
        else:
            repeat = attn.q_proj.out_features // attn.k_proj.out_features
            keys = attn.k_proj.weight.unflatten(0, (-1, attn.head_dim))
            attn.q_proj.weight.copy_(keys.repeat_interleave(repeat, 0).flatten(0, 1))
        if hasattr(attn, "q_norm"):
            attn.q_norm.weight.copy_(attn.k_norm.weight)


@pytest.mark.parametrize("name", ["llama", "llama_yarn", "mistral", "qwen2", "qwen3", "gemma3", "phi3", "phi3_partial"])
def test_grouped_heads_meet_their_own_keys(name: str) -> None:
    """Bar 3: queries tied to the keys of their group are symmetric at every offset; wrongly paired ones are not."""
    tied = changed(name, tie)
    for block in tied.view.layer_heads:
        assert len(block.W_K) == 2
        assert block.n_heads == 4
        assert gap(block.M().symmetry(), torch.ones(4)) <= 1e-12
        for offset in (-20, -3, -1, 1, 2, 8, 63):
            assert gap(block.M().symmetry_at(offset), torch.ones(4)) <= 1e-12
        wrong = replace(block, W_K=block.W_K.flip(0))
        assert float(wrong.M().symmetry().detach().abs().max()) < 0.6
    found = rs.operators(tied.view)
    for field in ("symmetry", "symmetry_at_offset"):
        assert float(abs(found[field] - 1).max()) <= 1e-12
    untied = rs.operators(double(name).view)
    assert float(abs(untied.symmetry).max()) < 0.6


def test_the_battery_covers_every_case() -> None:
    assert set(CLEAN) | set(ISLANDS) == set(CASES)
    assert [
        name for name in EVERY if isinstance(model(name).view.layer_heads[0].mechanism.position, ModelRotary)
    ] == ROTARY

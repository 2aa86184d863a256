"""Tests of every model: the View computes the numbers of Hugging Face, or of our own module."""

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
from tests.pretrained.cases import CASES, ISLANDS, changed, once

F32, F64 = torch.float32, torch.float64
CLEAN = [name for name in theirs.EVERY if name not in ISLANDS]
WINDOWED = {"mistral", "qwen2", "gemma3", "gemma3_capped", "phi3"}
"""Models whose windows are shorter than the text."""
every = pytest.mark.parametrize("name", EVERY)


def in_both_dtypes(names: list[str]) -> Any:
    """All models in float64, and one of each kind in float32, whose rounding does not depend on the rotary angles."""
    cases = [(name, dtype) for dtype in (F64, F32) for name in names if dtype is F64 or name in KINDS]
    return pytest.mark.parametrize(("name", "dtype"), cases)


def tolerance(name: str, dtype: torch.dtype, single: float) -> float:
    """The error allowed for a recomputation from the operators. Some float64 models compute parts in float32 (ISLANDS)."""
    if dtype is F32:
        return single
    rotary = name in ours.CASES and ours.CASES[name].position == "rotary"  # float32 tables
    return 1e-5 if name in ISLANDS or rotary else 1e-10


def layers(name: str) -> range:
    return range(model(name).view.layers)


def heads(name: str) -> range:
    return range(model(name).view.heads)


@once
def traced_without_logits(name: str) -> Trace:
    return model(name).trace(text())


def test_every_family_has_a_case() -> None:
    assert {network(name).config.model_type for name in theirs.EVERY} == set(FAMILIES)
    assert set(theirs.EVERY) >= WINDOWED


@every
def test_a_case_is_not_degenerate(name: str) -> None:
    """Attention is neither uniform nor one-hot, parameters vary, and windows are shorter than the text."""
    trace = traced(name)
    top = torch.stack([trace.weights(layer, 0)[-1].max() for layer in layers(name)])
    assert 1.2 / LENGTH < top.max() < 0.9999 or name not in SOFTMAX
    for x in network(name).parameters():
        assert x.std() > 0.1
    if name in theirs.EVERY:
        assert bool((seen(name)[1][0].weights[:, -1, :2] == 0).all()) == (name in WINDOWED)


# The numbers of the model itself


@pytest.mark.parametrize("name", WITH_LOGITS)
def test_logits_equal_those_of_the_original_network(name: str) -> None:
    expected = untouched(name, text())
    assert torch.equal(traced(name).logits, expected)
    assert torch.equal(model(name).run(text()), expected)


@every
def test_points_do_not_depend_on_whether_logits_are_computed(name: str) -> None:
    plain = traced_without_logits(name)
    assert plain.logits is None
    assert torch.equal(plain.points, traced(name).points)


@every
def test_points_are_the_hidden_states_of_the_model(name: str) -> None:
    """The network returns the embedding, then the stream after each layer."""
    trace, states = traced(name), stream(name, text())
    points = [trace.points_at("embed"), *(trace.points_at(f"L{layer}.resid_post") for layer in layers(name))]
    assert len(states) >= model(name).view.layers
    for mine, own in zip(points, states, strict=False):
        assert torch.equal(mine, own[0])


@every
def test_weights_equal_the_eager_attention_of_the_model(name: str) -> None:
    trace, own = eager(name, text())
    for layer, expected in enumerate(own):
        weights = torch.stack([trace.weights(layer, head) for head in heads(name)])
        assert gap(weights, expected) <= 1e-6


@in_both_dtypes(EVERY)
def test_scores_and_weights_equal_those_from_the_queries_and_keys_of_the_model(name: str, dtype: torch.dtype) -> None:
    trace, own = seen(name, dtype)
    for layer, expected in enumerate(own):
        scores = torch.stack([trace.scores(layer, head) for head in heads(name)])
        weights = torch.stack([trace.weights(layer, head) for head in heads(name)])
        assert gap(weights, expected.weights) <= (1e-6 if dtype is F32 else 1e-12)
        assert gap(scores, expected.scores) <= (1e-5 if dtype is F32 else 1e-11)
        assert bool((weights[:, ~expected.permitted] == 0).all())
        assert bool((weights[:, expected.permitted] > 0).all()) or name not in SOFTMAX


@in_both_dtypes(EVERY)
def test_displacements_and_bias_sum_to_the_change_of_the_stream(name: str, dtype: torch.dtype) -> None:
    """Gemma's norm after attention computes in float32, so its float64 model is only as accurate as float32."""
    trace = traced(name, dtype)
    bound = 1e-6 if dtype is F32 or name.startswith("gemma") else 1e-10
    for layer in layers(name):
        change = trace.points[trace.mid_steps[layer]] - trace.points[trace.input_steps[layer]]
        assert distance(trace.displacements(layer).sum(0) + trace.bias(layer), change) <= bound
        assert torch.equal(trace.displacement(layer, 1), trace.displacements(layer)[1])


@in_both_dtypes(EVERY)
def test_mlps_account_for_the_rest_of_the_stream(name: str, dtype: torch.dtype) -> None:
    trace = traced(name, dtype)
    for layer in layers(name):
        middle = trace.points_at(f"L{layer}.resid_mid")
        after = trace.points_at(f"L{layer}.mlp_sum" if name in POST_NORM else f"L{layer}.resid_post")
        read = trace.layer_input(layer) if name in PARALLEL else middle
        with torch.no_grad():
            own = trace.view.mlps[layer](read)
        assert distance(after - middle, own) <= (1e-6 if dtype is F32 else 1e-12)


@every
def test_steps_are_labelled_in_the_order_of_the_stream(name: str) -> None:
    trace = traced(name)
    halves = ["attn_sum", "resid_mid", "mlp_sum", "resid_post"] if name in POST_NORM else ["resid_mid", "resid_post"]
    assert tuple(map(str, trace.steps)) == ("embed", *(f"L{layer}.{half}" for layer in layers(name) for half in halves))
    assert trace.points.shape == (len(trace.steps), LENGTH, model(name).view.width)
    assert set(map(str, trace.unread_steps)) == (
        {f"L{layer}.resid_mid" for layer in layers(name)} if name in PARALLEL else set()
    )
    for layer in layers(name):
        read = "embed" if layer == 0 else f"L{layer - 1}.resid_post"
        assert torch.equal(trace.layer_input(layer), trace.points_at(read))
        assert str(trace.steps[trace.mid_steps[layer]]) == f"L{layer}.{halves[0]}"


@pytest.mark.parametrize("name", CAUSAL)
def test_the_unembedding_of_the_last_point_gives_the_logits(name: str) -> None:
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
def test_the_embed_step_equals_the_token_embeddings(name: str) -> None:
    """Up to a part that depends on the position only. Gemma is left out, because it multiplies its table by sqrt(d)."""
    first, second = (traced(name, F64, seed) for seed in (0, 1))
    rows = double(name).view.token_embeddings
    assert gap(first.points_at("embed") - second.points_at("embed"), rows(first.ids) - rows(second.ids)) <= 1e-12


# Padding


def largest_or_1(x: Tensor) -> float:
    """The factor of the tolerance on a GPU. A batch is summed in another order there, with errors relative to the largest number."""
    return max(1.0, float(x.abs().max())) if x.is_cuda else 1.0


@pytest.mark.parametrize("name", PADDED)
def test_a_text_in_a_padded_batch_has_the_points_of_the_text_alone(name: str) -> None:
    seeds_and_lengths = [(1, 7), (0, LENGTH), (3, 1)]
    texts = [text(seed, n) for seed, n in seeds_and_lengths]
    has_logits = name in WITH_LOGITS
    batch = model(name).trace(texts, logits=has_logits)
    assert [len(trace) for trace in batch] == [7, LENGTH, 1]
    for (seed, n), ids, in_batch in zip(seeds_and_lengths, texts, batch, strict=True):
        alone = traced(name, seed=seed, n=n)
        assert in_batch.points.shape == alone.points.shape
        assert in_batch.ids.tolist() == ids.tolist()
        assert gap(in_batch.points, alone.points) <= 2e-5 * largest_or_1(alone.points)
        assert gap(in_batch.weights(1, 2), alone.weights(1, 2)) <= 1e-5
        assert gap(in_batch.displacements(1), alone.displacements(1)) <= 1e-5 * largest_or_1(alone.points)
        if has_logits:
            assert gap(in_batch.logits, alone.logits) <= 1e-4


@pytest.mark.parametrize("name", PADDED)
def test_points_do_not_depend_on_the_other_texts_of_a_batch(name: str) -> None:
    first, second = (model(name).trace([text(1, 7), text(seed, LENGTH)])[0] for seed in (2, 3))
    assert torch.equal(first.points, second.points)


# Recomputation from the operators M(delta) and F on x̂


def hat_bias(norm: Norm, W: Tensor, b: Tensor | None) -> Tensor:
    """The projection of x̂ = 0: the bias of the norm times the weights, plus the bias of the projection."""
    through = W.new_zeros(len(W), W.shape[-1]) if norm.bias is None else norm.bias @ W
    return through if b is None else through + b


def side(block: Heads, x: Tensor, W: Tensor, b: Tensor | None, norm: Norm | None) -> tuple[Tensor, Tensor]:
    """The bias of queries or keys (h, k) times the gain of the QK-norm, and the factor of the norm (h, n, 1)."""
    count = block.n_heads
    W = W.repeat_interleave(count // len(W), 0)
    b = None if b is None else b.repeat_interleave(count // len(b), 0)
    beta = hat_bias(block.norm, W, b)
    if norm is None:
        return beta, x.new_ones(count, len(x), 1)
    bare = block.norm.normalise(x) @ block.norm.fold(W) + beta[:, None]
    return beta * norm.gain, (bare.square().mean(-1, keepdim=True) + norm.eps).rsqrt()


def scores_from_M(block: Heads, x: Tensor) -> Tensor:
    """s_ij = a_i c_j (x̂_i M(i-j) x̂_j^T + bias terms), computed offset by offset (i - j)."""
    hat, n = block.norm.normalise(x), len(x)
    M = block.M()
    beta_q, a = side(block, x, block.W_Q, block.b_Q, block.q_norm)
    beta_k, c = side(block, x, block.W_K, block.b_K, block.k_norm)
    scores = x.new_zeros(block.n_heads, n, n)
    position, width = block.mechanism.position, block.W_Q.shape[-1]
    query_side = hat @ block.norm.fold(with_gain(block.W_Q, block.q_norm))
    key_side = hat @ block.norm.fold(with_gain(block.W_K, block.k_norm))
    key_side = key_side.repeat_interleave(block.n_heads // len(block.W_K), 0)
    for offset in range(1 - n, n):
        rotation = torch.eye(width, dtype=x.dtype, device=x.device)
        if isinstance(position, ModelRotary):
            rotation = position.rotation_matrix(offset, width, x)
        s = M(offset).bilinear_form(hat, hat)
        s = s + block.scale * (
            query_side @ rotation @ beta_k[..., None]
            + (key_side @ (beta_q[:, None] @ rotation).mT).mT
            + beta_q[:, None] @ rotation @ beta_k[..., None]
        )
        scores.diagonal(-offset, -2, -1).copy_(s.diagonal(-offset, -2, -1))
    return scores * a * c.mT


def with_gain(W: Tensor, norm: Norm | None) -> Tensor:
    return W if norm is None else W * norm.gain


@in_both_dtypes(DOT)
@torch.no_grad()
def test_M_reproduces_the_scores_of_the_model_at_every_offset(name: str, dtype: torch.dtype) -> None:
    """The first ten tokens have all offsets from -9 to 9, and a score depends on its two tokens only."""
    (trace, own), n = seen(name, dtype), 10
    for layer, expected in enumerate(own):
        scores = scores_from_M(trace.view.layer_heads[layer], trace.layer_input(layer)[:n])
        bias = trace.view.layer_heads[layer].mechanism.position.bias(*query_key_positions(n, n, scores.device))
        scores = scores if bias is None else scores + bias
        assert gap(scores, expected.scores[:, :n, :n]) <= tolerance(name, dtype, 1e-4)


@in_both_dtypes(EVERY)
@torch.no_grad()
def test_F_reproduces_the_displacements(name: str, dtype: torch.dtype) -> None:
    """Delta_h(x_i) = c_i sum_j alpha_ij (x̂_j F_h + bias terms).

    c_i is the gate of a head or the factor of the norm after attention; without either it is 1.
    """
    trace, own = seen(name, dtype)
    for layer, expected in enumerate(own):
        block, x = trace.view.layer_heads[layer], trace.layer_input(layer)
        repeat = block.n_heads // len(block.W_V)
        beta = hat_bias(block.norm, block.W_V, block.b_V).repeat_interleave(repeat, 0)[:, None]
        gain = torch.ones((), device=x.device) if block.output_norm is None else block.output_norm.gain
        displacements = expected.weights @ (block.F().apply(block.norm.normalise(x)) + beta @ (block.W_O * gain))
        if block.output_norm is not None:
            written = (expected.weights @ expected.v @ block.W_O).sum(0) + (0 if block.b_O is None else block.b_O)
            displacements = displacements * (written.square().mean(-1, keepdim=True) + block.output_norm.eps).rsqrt()
        displacements = block.apply_gate(displacements, x)
        assert distance(displacements, trace.displacements(layer)) <= tolerance(name, dtype, 1e-5)


@pytest.mark.parametrize("name", WITH_M)
def test_M_at_offset_0_is_M(name: str) -> None:
    for block in double(name).view.layer_heads:
        assert gap(block.M()(0).dense(), block.M().dense()) <= 1e-12
        assert gap(block.M(raw=True)(0).dense(), block.M(raw=True).dense()) <= 1e-12


@every
@torch.no_grad()
def test_a_norm_equals_its_gain_and_bias_on_normalised_points(name: str) -> None:
    """apply(x) = x̂ gain + bias, and apply(x) W = x̂ fold(W) + bias W."""
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
def test_shifting_all_positions_changes_nothing(name: str) -> None:
    """Law 3: only differences of positions affect the scores and the logits."""
    ids, shift = text(), 11
    loaded = double(name)
    shifted_logits = loaded.network(
        input_ids=ids[None], position_ids=torch.arange(LENGTH, device=ids.device)[None] + shift
    ).logits[0]
    assert distance(shifted_logits, seen(name, F64)[0].logits) <= 1e-5
    trace = traced(name, F64)
    for layer, block in enumerate(loaded.view.layer_heads):
        q, k, _ = block.qkv(trace.layer_input(layer))
        k = k.repeat_interleave(block.n_heads // k.shape[1], 1)
        scores, shifted_scores = (
            block.mechanism.position.encode(q, torch.arange(LENGTH, device=q.device) + start)
            @ block.mechanism.position.encode(k, torch.arange(LENGTH, device=k.device) + start).mT
            for start in (0, shift)
        )
        assert gap(scores, shifted_scores) <= 1e-5 * float(scores.abs().max())


def per_token(trace: Trace) -> dict[str, Tensor]:
    """Every per-token result of a Trace, with the token as the first axis; maps of the first and the last head."""
    view = trace.view
    results = {"points": trace.points.transpose(0, 1)}
    for layer in range(view.layers):
        results[f"displacements {layer}"] = trace.displacements(layer).transpose(0, 1)
        results[f"bias {layer}"] = trace.bias(layer)
        for head in (0, view.heads - 1):
            results[f"weights {layer}.{head}"] = trace.weights(layer, head)
            results[f"scores {layer}.{head}"] = trace.scores(layer, head).tril()
    return results


@every
def test_results_before_an_edited_token_are_unchanged(name: str) -> None:
    """Law 5: results before the edited token are bit-identical. In a bidirectional model they change."""
    token, edited_ids = 9, text()
    edited_ids[token] = (edited_ids[token] - 2) % 37 + 3
    original, edited = per_token(traced_without_logits(name)), per_token(model(name).trace(edited_ids))
    for field in original:
        if name not in BIDIRECTIONAL:
            assert torch.equal(original[field][:token], edited[field][:token]), field
    assert not torch.equal(original["points"][token:], edited["points"][token:])
    if name in BIDIRECTIONAL:
        assert not torch.equal(original["points"][:token], edited["points"][:token])


# Grouped heads


def tie(net: Any) -> None:
    """Set W_Q to W_K of the head's group, and give both QK-norms one gain."""
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
def test_grouped_heads_are_paired_with_the_keys_of_their_group(name: str) -> None:
    """M is symmetric at every offset if W_Q equals W_K of the group. It is not if the pairing is wrong."""
    tied = changed(name, tie)
    for block in tied.view.layer_heads:
        assert len(block.W_K) == 2
        assert block.n_heads == 4
        assert gap(block.M().symmetry(), torch.ones(4)) <= 1e-12
        for offset in (-20, -3, -1, 1, 2, 8, 63):
            assert gap(block.M().symmetry_at(offset), torch.ones(4)) <= 1e-12
        wrong = replace(block, W_K=block.W_K.flip(0))
        assert float(wrong.M().symmetry().detach().abs().max()) < 0.6
    result = rs.operators(tied.view, draws=1)
    for field in ("symmetry", "symmetry_at_offset"):
        assert float(abs(result[field] - 1).max()) <= 1e-12
    untied = rs.operators(double(name).view, draws=1)
    assert float(abs(untied.symmetry).max()) < 0.6


def test_every_case_is_covered() -> None:
    assert set(CLEAN) | set(ISLANDS) == set(CASES)
    assert [
        name for name in EVERY if isinstance(model(name).view.layer_heads[0].mechanism.position, ModelRotary)
    ] == ROTARY

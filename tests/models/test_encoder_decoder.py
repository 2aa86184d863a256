"""Encoder-decoders as two linked Traces: cross attention against the module's own, step by step."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.models.certificate import certify
from rheoscope.models.checkpoint import save
from rheoscope.models.trained_model import NativeTranslator
from rheoscope.models.transformer import Translator
from rheoscope.models.vocabulary import SPECIALS, character_tokenizer, train_bpe
from rheoscope.running.encoder_decoder import EncoderDecoder, LinkedTraces
from rheoscope.shapes import RheoscopeError
from rheoscope.space.cross_attention import CrossHeads
from rheoscope.space.model import Model
from rheoscope.space.model_parts import Norm
from rheoscope.space.trace import Trace
from tests.attention.cases import without_jaxtyping_checks
from tests.models.cases import model as single
from tests.models.cases import tiny
from tests.pretrained.cases import distance, gap, hooks_left, once, randomised, text

F32, F64 = torch.float32, torch.float64
S, T = 9, 6


def encoder_decoder(**more: Any) -> Any:
    return tiny(form="encoder-decoder", **more)


CASES = {
    "layer": encoder_decoder(norm="layer", position="learned", bias=True, ffn="gelu", kv_heads=2, tied=False),
    "rotary": encoder_decoder(kv_heads=2, head_width=12),
    "post": encoder_decoder(
        placement="post", norm="layer", position="sinusoidal", bias=True, ffn="relu", kv_heads=2, scaled_embedding=True
    ),
    "branch": encoder_decoder(branch=0.4, position="alibi", bias=True, kv_heads=1),
    "branch_post": encoder_decoder(branch=0.6, position="buckets", placement="post", kv_heads=2),
    "bare": encoder_decoder(norm="none", position="none", ffn="gelu"),
    "metric": encoder_decoder(mechanism="metric", options={"sigma": 2.0}, position="learned", kv_heads=2),
    "sink": encoder_decoder(mechanism="softmax_sink", kv_heads=2),
    "additive": encoder_decoder(mechanism="additive", options={"hidden": 6}, value_width=5),
}
SOFTMAX = ["layer", "rotary", "post", "branch", "branch_post", "bare"]
"""Scaled dot products and softmax, which a test can write out by hand."""
POST = ["post", "branch_post"]
every_case = pytest.mark.parametrize("name", list(CASES))
both_dtypes = pytest.mark.parametrize("dtype", [F32, F64])


def build_case(name: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return randomised(Translator(CASES[name]))


@once
def model(name: str, dtype: torch.dtype = F32) -> Any:
    return rs.load(build_case(name).to(dtype))


def pair(seed: int = 0, s: int = S, t: int = T) -> tuple[Tensor, Tensor]:
    return text(seed, s), text(seed + 50, t)


@once
def traced(name: str, dtype: torch.dtype = F32, seed: int = 0) -> Any:
    return model(name, dtype).trace(pair(seed), logits=True)


@once
@torch.no_grad()
def recorded_cross(name: str, dtype: torch.dtype = F32) -> Any:
    """The inputs and outputs of cross attention of every layer, in a module that Rheoscope never saw."""
    net, calls = build_case(name).to(dtype), []
    for block in net.decoder.blocks:
        block.cross.register_forward_hook(lambda module, args, out: calls.append((module, args[0][0], args[1][0], out)))
    net(*(ids[None] for ids in pair()))
    return calls


@cache
def by_hand(cross: Any, u: Tensor, memory: Tensor, head: int) -> tuple[Tensor, Tensor]:
    """Weights (t, s) and displacement (t, d) of one head in float64, one pair of tokens at a time."""
    cross, u, memory = copy.deepcopy(cross).double(), u.double(), memory.double()
    k, size = cross.head_width, cross.heads // cross.kv_heads
    head_columns, group_columns = slice(head * k, (head + 1) * k), slice(head // size * k, (head // size + 1) * k)
    keys, values = cross.read(memory).split(cross.kv_heads * k, -1)
    queries = [cross.ask(x)[head_columns] for x in u]
    scores = torch.stack([torch.stack([q @ y[group_columns] / k**0.5 for y in keys]) for q in queries])
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return weights, weights @ values[:, group_columns] @ cross.write.weight[:, head_columns].T


# The two Traces


@every_case
def test_logits_are_those_of_the_untouched_module(name: str) -> None:
    source, target = pair()
    with torch.no_grad():
        expected = build_case(name)(source[None], target[None])[0]
        assert torch.equal(model(name).run((source, target)), expected)
    assert torch.equal(traced(name).target.logits, expected)
    assert torch.equal(model(name).trace((source, target)).target.points, traced(name).target.points)
    assert traced(name).source.logits is None
    assert not hooks_left(model(name).network)


@every_case
def test_steps_are_labelled_in_the_order_of_the_stream(name: str) -> None:
    step_names = ["resid_mid", "resid_cross", "resid_post"]
    if name in POST:
        step_names = ["attn_sum", "resid_mid", "cross_sum", "resid_cross", "mlp_sum", "resid_post"]
    linked = traced(name)
    assert tuple(map(str, linked.target.steps)) == (
        "embed",
        *(f"L{layer_index}.{partial_logits}" for layer_index in range(2) for partial_logits in step_names),
    )
    assert tuple(map(str, linked.source.steps)) == (
        "embed",
        *(
            f"L{layer_index}.{partial_logits}"
            for layer_index in range(2)
            for partial_logits in step_names
            if "cross" not in partial_logits
        ),
    )
    assert linked.target.points.shape == (len(linked.target.steps), T, 32)
    assert linked.source.points.shape == (len(linked.source.steps), S, 32)
    for trace in (linked.source, linked.target):
        assert torch.equal(trace.layer_input(1), trace.points_at("L0.resid_post"))
        assert str(trace.steps[trace.mid_steps[1]]) == f"L1.{step_names[0]}"


@every_case
@torch.no_grad()
def test_the_last_points_give_the_memory_and_the_logits(name: str) -> None:
    """The last point of the source gives the memory, and the last point of the target gives the logits."""
    linked, view = traced(name, F64), model(name, F64).view
    memory = model(name, F64).encoder.final_norm.apply(linked.source.points[-1])
    assert gap(memory, recorded_cross(name, F64)[0][2]) <= 1e-12
    assert distance(view.final_norm.apply(linked.target.points[-1]) @ view.unembed, linked.target.logits) <= 1e-10
    assert torch.equal(linked.target.memory, linked.source.points[-1])


@both_dtypes
@every_case
def test_every_half_step_closes(name: str, dtype: torch.dtype) -> None:
    tolerance = 1e-6 if dtype is F32 else 1e-10
    linked = traced(name, dtype)
    for trace in (linked.source, linked.target):
        for layer_index in range(2):
            displacement = trace.points[trace.mid_steps[layer_index]] - trace.layer_input(layer_index)
            assert (
                distance(trace.displacements(layer_index).sum(0) + trace.bias(layer_index), displacement) <= tolerance
            )
    trace = linked.target
    for layer_index in range(2):
        before, after, last = (
            trace.points_at(f"L{layer_index}.{step}") for step in ("resid_mid", "resid_cross", "resid_post")
        )
        if name in POST:
            after, last = trace.points_at(f"L{layer_index}.cross_sum"), trace.points_at(f"L{layer_index}.mlp_sum")
        assert (
            distance(trace.cross_displacements(layer_index).sum(0) + trace.cross_bias(layer_index), after - before)
            <= tolerance
        )
        with torch.no_grad():
            mlp_input = trace.points_at(f"L{layer_index}.resid_cross")
            assert distance(last - mlp_input, trace.view.mlps[layer_index](mlp_input)) <= tolerance


@both_dtypes
@pytest.mark.parametrize("name", SOFTMAX)
@torch.no_grad()
def test_cross_attention_equals_the_computation_by_hand(name: str, dtype: torch.dtype) -> None:
    trace, tolerance = traced(name, dtype).target, 1e-6 if dtype is F32 else 1e-12
    for layer_index, (cross, u, memory, _) in enumerate(recorded_cross(name, dtype)):
        displacement = trace.cross_displacements(layer_index)
        for head in range(4):
            weights, expected = by_hand(cross, u, memory, head)
            assert trace.cross_weights(layer_index, head).shape == (T, S)
            size = max(
                1.0, float(trace.cross_scores(layer_index, head).abs().max()) / 8
            )  # rounding errors scale with the scores
            assert gap(trace.cross_weights(layer_index, head), weights) <= tolerance * size
            assert distance(displacement[head], CASES[name].branch * expected) <= 10 * tolerance
        bias = torch.zeros(T, 32) if cross.write.bias is None else cross.write.bias.expand(T, -1)
        assert gap(trace.cross_bias(layer_index), CASES[name].branch * bias) <= tolerance


def centred(s: Tensor) -> Tensor:
    return s - s.mean(-1, keepdim=True) - s.mean(-2, keepdim=True) + s.mean((-2, -1), keepdim=True)


@pytest.mark.parametrize("name", [name for name in CASES if name != "additive"])
@torch.no_grad()
def test_M_gives_the_cross_scores_up_to_terms_of_one_token(name: str) -> None:
    """Double centring removes terms that depend only on the target token or only on the source token."""
    trace = traced(name, F64).target
    for layer_index, (cross, u, memory, _) in enumerate(recorded_cross(name, F64)):
        x, cross_heads_of_layer = trace.points_at(f"L{layer_index}.resid_mid"), trace.view.cross_heads[layer_index]
        form = cross_heads_of_layer.M().bilinear_form(
            cross_heads_of_layer.target_heads.norm.normalise(x),
            cross_heads_of_layer.source_norm.normalise(trace.memory),
        )
        scores = torch.stack([trace.cross_scores(layer_index, head) for head in range(4)])
        assert gap(centred(form), centred(scores)) <= 1e-10 * float(scores.abs().max())
        if name in SOFTMAX:
            for head in range(4):
                assert gap(scores[head].softmax(-1), by_hand(cross, u, memory, head)[0]) <= 1e-12


@every_case
@torch.no_grad()
def test_F_gives_the_cross_displacements(name: str) -> None:
    trace = traced(name, F64).target
    for layer_index in range(2):
        cross_heads_of_layer, heads = (
            trace.view.cross_heads[layer_index],
            trace.view.cross_heads[layer_index].source_heads,
        )
        beta = torch.zeros(len(heads.W_V), heads.W_V.shape[-1], dtype=F64) if heads.b_V is None else heads.b_V
        beta = beta if heads.norm.bias is None else beta + heads.norm.bias @ heads.W_V
        values = cross_heads_of_layer.F().apply(cross_heads_of_layer.source_norm.normalise(trace.memory))
        values = values + beta.repeat_interleave(4 // len(beta), 0)[:, None] @ heads.W_O
        weights = torch.stack([trace.cross_weights(layer_index, head) for head in range(4)])
        assert distance(weights @ values, trace.cross_displacements(layer_index)) <= 1e-10


def test_tied_groups_are_symmetric_and_others_are_not() -> None:
    net = build_case("rotary").to(F64)
    with torch.no_grad():
        for block in net.decoder.blocks:
            block.norm_cross.weight.copy_(net.encoder.norm.weight)
            keys = block.cross.read.weight.unflatten(0, (-1, 12))[:2]
            block.cross.ask.weight.copy_(keys.repeat_interleave(2, 0).flatten(0, 1))
    for cross_heads_of_layer in rs.load(net).view.cross_heads:
        assert gap(cross_heads_of_layer.M().symmetry(), torch.ones(4)) <= 1e-12
        second = replace(
            cross_heads_of_layer,
            target_heads=replace(cross_heads_of_layer.target_heads, W_K=cross_heads_of_layer.target_heads.W_K.flip(0)),
        )
        assert float(second.M().symmetry().detach().abs().max()) < 0.6


def test_a_score_that_is_not_a_bilinear_form_has_no_M() -> None:
    with pytest.raises(RheoscopeError, match="is not a bilinear form of its tokens, so it has no M"):
        model("additive").view.cross_heads[0].M()
    assert model("additive").view.cross_heads[0].F()[1].shape == (32, 32)


@pytest.mark.parametrize("name", ["layer", "rotary", "branch_post", "metric", "additive"])
def test_half_precision_is_certified(name: str) -> None:
    loaded = rs.load(build_case(name), dtype="bfloat16")
    linked = loaded.trace(pair())
    assert linked.target.points.dtype is linked.source.points.dtype is F32
    assert linked.target.cross_weights(1, 2).dtype is linked.target.cross_scores(1, 2).dtype is F32


# Padding


@every_case
def test_a_padded_batch_gives_each_pair_its_own_points(name: str) -> None:
    pairs = [pair(1, 4, 6), pair(2, 9, 1), pair(3, 1, 11)]
    batch = model(name).trace(pairs, logits=True)
    for first, second in zip(batch, model(name).trace(pairs), strict=True):  # the same points without logits
        assert torch.equal(first.target.points, second.target.points)
    for together, (source, target) in zip(batch, pairs, strict=True):
        alone = model(name).trace((source, target), logits=True)
        assert torch.equal(together.source.ids, source)
        assert torch.equal(together.target.ids, target)
        assert gap(together.source.points, alone.source.points) <= 5e-5
        assert gap(together.target.points, alone.target.points) <= 5e-5
        assert gap(together.target.logits, alone.target.logits) <= 2e-6 * float(alone.target.logits.abs().max())
        assert gap(together.target.cross_weights(1, 2), alone.target.cross_weights(1, 2)) <= 1e-5


@every_case
def test_a_neighbour_in_the_batch_changes_nothing(name: str) -> None:
    first, second = (model(name).trace([pair(1, 4, 3), pair(seed)])[0] for seed in (2, 3))
    assert torch.equal(first.source.points, second.source.points)
    assert torch.equal(first.target.points, second.target.points)


# The certificate


def wrong_model(name: str, fault: Callable[[CrossHeads], CrossHeads]) -> Any:
    loaded = model(name)
    cross_heads_of_layer = loaded.view.cross_heads
    return replace(
        loaded, view=replace(loaded.view, cross_heads=(cross_heads_of_layer[0], fault(cross_heads_of_layer[1])))
    )


def change_target_heads(**changes: Callable[[Any], Any]) -> Callable[[CrossHeads], CrossHeads]:
    """A crossing with changed fields of its target heads."""
    return lambda c: replace(
        c, target_heads=replace(c.target_heads, **{key: f(c.target_heads) for key, f in changes.items()})
    )


FAULTS: list[tuple[str, str, Callable[[CrossHeads], CrossHeads]]] = [
    ("the target's norm for the memory", "layer", lambda c: replace(c, source_norm=c.target_heads.norm)),
    ("no norm for the memory", "layer", lambda c: replace(c, source_norm=Norm())),
    ("no bias of the memory's norm", "layer", lambda c: replace(c, source_norm=replace(c.source_norm, bias=None))),
    (
        "a norm where there is none",
        "post",
        lambda c: replace(c, source_norm=model("layer").view.cross_heads[0].source_norm),
    ),
    ("no norm for the target", "rotary", change_target_heads(norm=lambda h: Norm())),
    (
        "the memory's norm for the target",
        "rotary",
        lambda c: replace(c, target_heads=replace(c.target_heads, norm=c.source_norm)),
    ),
    ("another group of keys", "rotary", change_target_heads(W_K=lambda h: h.W_K.flip(0))),
    ("another group of values", "rotary", change_target_heads(W_V=lambda h: h.W_V.flip(0))),
    ("heads of W_O in another order", "rotary", change_target_heads(W_O=lambda h: h.W_O.flip(0))),
    ("keys for values", "rotary", change_target_heads(W_K=lambda h: h.W_V, W_V=lambda h: h.W_K)),
    ("no bias of the output", "post", change_target_heads(b_O=lambda h: None)),
    ("no bias of queries", "layer", change_target_heads(b_Q=lambda h: None)),
    ("no bias of values", "post", change_target_heads(b_V=lambda h: None)),
    ("branch not folded", "branch", change_target_heads(W_O=lambda h: h.W_O / 0.4)),
    ("a causal mask", "rotary", change_target_heads(mechanism=lambda h: h.mechanism.with_mask("causal"))),
    ("the decoder's own heads", "rotary", lambda c: replace(c, target_heads=model("rotary").view.layer_heads[1])),
]


@pytest.mark.parametrize(("name", "fault"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_a_wrong_description_is_refused(name: str, fault: Callable[[CrossHeads], CrossHeads]) -> None:
    with pytest.raises(
        RheoscopeError, match=r"encoder-decoder does not reproduce this model: .*; please report the config"
    ):
        certify(wrong_model(name, fault))


@pytest.mark.parametrize("side", ["view", "encoder"])
def test_wrong_self_attention_on_either_side_is_refused(side: str) -> None:
    loaded = model("layer")
    view = getattr(loaded, side)
    fault = replace(
        view, layer_heads=(view.layer_heads[0], replace(view.layer_heads[1], W_O=view.layer_heads[1].W_O.flip(0)))
    )
    with pytest.raises(RheoscopeError, match="does not reproduce this model"):
        certify(replace(loaded, **{side: fault}))


@both_dtypes
@every_case
def test_a_right_description_passes(name: str, dtype: torch.dtype) -> None:
    loaded = model(name, dtype)
    result = loaded.view.facts["certificate"]
    assert result is loaded.encoder.facts["certificate"]
    assert max(result.error_values) <= (1e-5 if dtype is F32 else 1e-9)
    assert result.n_tokens == 8


# Running


@every_case
def test_hooks_see_the_points_of_both_sides(name: str) -> None:
    linked, result = traced(name), {}

    def record_points(label: str) -> Any:
        def hook(x: Tensor) -> Tensor:
            result[label] = x[0].detach().clone()
            return x

        return hook

    labels = [*map(str, linked.target.steps), *(f"source.{step}" for step in linked.source.steps)]
    with torch.no_grad():  # as in the traced run, since gradients may select another kernel
        logits = model(name).run(pair(), hooks={label: record_points(label) for label in labels})
    assert torch.equal(logits, linked.target.logits)
    for label in labels:
        trace = linked.source if label.startswith("source.") else linked.target
        assert gap(result[label], trace.points_at(label.removeprefix("source."))) <= 1e-5


@every_case
def test_points_of_another_pair_give_its_logits(name: str) -> None:
    own_pair, other_pair = traced(name, F64), traced(name, F64, 1)

    def replace_points(trace: Any, step: str) -> Any:
        return lambda x: trace.points_at(step)[None]

    for hooks in (
        {"L1.resid_post": replace_points(other_pair.target, "L1.resid_post")},
        {"L1.resid_cross": replace_points(other_pair.target, "L1.resid_cross")},
        {
            "L1.resid_mid": replace_points(other_pair.target, "L1.resid_mid"),
            "source.embed": replace_points(other_pair.source, "embed"),
        },
        {
            "embed": replace_points(other_pair.target, "embed"),
            "source.L1.resid_mid": replace_points(other_pair.source, "L1.resid_mid"),
        },
    ):
        assert distance(model(name, F64).run(pair(), hooks=hooks), other_pair.target.logits) <= 1e-10
    partial_logits = model(name, F64).run(
        pair(), hooks={"L1.resid_mid": replace_points(other_pair.target, "L1.resid_mid")}
    )
    assert distance(partial_logits, other_pair.target.logits) > 1e-3
    assert distance(partial_logits, own_pair.target.logits) > 1e-3


@every_case
def test_an_edit_changes_that_head_of_the_decoder(name: str) -> None:
    ablated = copy.deepcopy(build_case(name))
    width = CASES[name].value_width
    with torch.no_grad():
        ablated.decoder.blocks[1].attention.write.weight[:, 2 * width : 3 * width] = 0
        expected = ablated(*(ids[None] for ids in pair()))[0]
        result = model(name).run(
            pair(), edit={(1, 2): lambda q, k, v, mechanism: torch.zeros_like(mechanism.attend(q, k, v))}
        )
        assert torch.equal(model(name).run(pair()), traced(name).target.logits)
    assert distance(result, expected) <= 1e-5


def test_gradients_reach_the_source() -> None:
    delta = torch.zeros(1, S, 32, requires_grad=True)
    logits = model("layer").run(pair(), hooks={"source.embed": lambda x: x + delta})
    assert float(torch.autograd.grad(logits.sum(), delta)[0].norm()) > 0


@pytest.mark.parametrize("label", ["L2.resid_mid", "source.L0.resid_cross", "source.L9.resid_mid"])
def test_a_step_that_is_not_there_is_refused(label: str) -> None:
    first = "source.embed, source.L0.resid_mid" if label.startswith("source") else "embed, L0.resid_mid, L0.resid_cross"
    with pytest.raises(RheoscopeError, match=f"there is no step {label!r}; expected one of {first}"):
        model("layer").run(pair(), hooks={label: lambda x: x})


# Texts


@once
def with_tokenizer() -> Any:
    return rs.load(build_case("layer"), tokenizer=character_tokenizer(["abcdefgh ijkl"], SPECIALS))


def test_strings_are_framed_as_in_training() -> None:
    linked = with_tokenizer().trace(("bad gag ", "lid"), logits=True)
    assert linked.source.tokens == [*"bad gag", "<|end|>"]
    assert linked.target.tokens == ["<|start|>", *"lid"]
    assert linked.source.ids[-1] == 2
    assert linked.target.ids[0] == 1
    assert (linked.source.text, linked.target.text) == ("bad gag ", "lid")
    from_ids = with_tokenizer().trace((linked.source.ids.tolist(), linked.target.ids), logits=True)
    assert torch.equal(from_ids.target.logits, linked.target.logits)
    assert from_ids.target.text == ""
    assert [len(first.source) for first in with_tokenizer().trace([("bad", "lid"), ("gag", [1])])] == [4, 4]


def test_the_tokenizer_of_a_prepared_corpus_serves() -> None:
    tokenizer = train_bpe(["a dog ein Hund"] * 5, 262, SPECIALS)
    net = randomised(Translator(tiny(form="encoder-decoder", vocabulary=262)))
    ids = rs.load(net, tokenizer=tokenizer).pair_ids(("a dog", "ein Hund"))
    assert tokenizer.decode(ids[0].tolist(), skip_special_tokens=False) == "a dog<|end|>"
    assert tokenizer.decode(ids[1].tolist(), skip_special_tokens=False) == "<|start|>ein Hund"


@pytest.mark.parametrize("value", ["bad gag", ["bad", "gag"], ("bad",), ("a", "b", "c"), [1, 2, 3], [], torch.ones(3)])
def test_anything_but_a_pair_is_refused_in_one_line(value: Any) -> None:
    for call in (with_tokenizer().trace, with_tokenizer().run):
        with (
            without_jaxtyping_checks(),
            pytest.raises(
                RheoscopeError,
                match=r"expects a pair \(source, target\), got .*; type model.trace\(\(source, target\)\)",
            ),
        ):
            call(value)


@pytest.mark.parametrize(
    ("pair", "pattern"),
    [
        (("", "a"), "the text has no tokens, expected at least one"),
        (([3], []), "the text has no tokens, expected at least one"),
        (("ähem", "a"), "the tokenizer cannot encode this text"),
        (([40], [1]), "token ids must lie between 0 and 39, got 40 to 40"),
        (([3] * 65, [1]), "the text has 65 tokens, but the model reads at most 64; use a shorter text"),
        (([3], "a" * 64), "the text has 65 tokens, but the model reads at most 64; use a shorter text"),
        (([3.5], [1]), "a text must be a string or a list of token ids"),
    ],
)
def test_texts_are_checked_on_both_sides(pair: Any, pattern: str) -> None:
    with without_jaxtyping_checks(), pytest.raises(RheoscopeError, match=pattern):
        with_tokenizer().trace(pair)


def test_a_tokenizer_without_a_start_is_refused() -> None:
    with pytest.raises(RheoscopeError, match=r"the tokenizer has no <\|end\|> with id 2; pass token ids"):
        rs.load(build_case("layer"), tokenizer=character_tokenizer(["abc"], ["<|endoftext|>"])).trace(("a", "b"))
    with pytest.raises(RheoscopeError, match=r"this model has no tokenizer, expected a tokenizer\.json"):
        model("layer").trace(("a", "b"))


# Files


def test_a_directory_opens_as_the_module_does(tmp_path: Path) -> None:
    loaded = rs.load(save(build_case("layer"), tmp_path, tokenizer=character_tokenizer(["abc"], SPECIALS)))
    assert isinstance(loaded, NativeTranslator)
    assert isinstance(loaded, Model)
    assert torch.equal(loaded.trace(pair(), logits=True).target.logits, traced("layer").target.logits)
    assert loaded.trace(("ab", "c")).target.cross_weights(0, 0).shape == (2, 3)
    assert distance(rs.load(tmp_path, untrained=True).run(pair()), traced("layer").target.logits) > 0.1


def test_a_saved_pair_opens_with_its_own_model_alone(tmp_path: Path) -> None:
    linked, loaded = traced("layer"), model("layer")
    reopened = LinkedTraces.open(linked.save(tmp_path), loaded)
    for side in ("source", "target"):
        first, second = getattr(reopened, side), getattr(linked, side)
        assert torch.equal(first.points, second.points)
        assert (first.steps, first.tokens, first.input_steps, first.mid_steps) == (
            second.steps,
            second.tokens,
            second.input_steps,
            second.mid_steps,
        )
    assert torch.equal(reopened.target.cross_weights(1, 2), linked.target.cross_weights(1, 2))
    assert torch.equal(reopened.target.logits, linked.target.logits)
    with pytest.raises(RheoscopeError, match="this Trace comes from weights"):
        LinkedTraces.open(tmp_path, model("rotary"))
    for side, view in (("source", loaded.view), ("target", loaded.encoder)):  # the other side of the same model
        with pytest.raises(RheoscopeError, match="this Trace comes from weights"):
            Trace.open(tmp_path / side, view)


def test_a_trace_without_a_source_has_no_cross_attention() -> None:
    trace = single("own").trace([1, 2, 3])
    for call in (trace.cross_weights, trace.cross_scores):
        with pytest.raises(RheoscopeError, match="this View has no cross-attention, expected the decoder"):
            call(0, 1)
    with pytest.raises(RheoscopeError, match="this View has no cross-attention, expected the decoder"):
        traced("layer").source.cross_displacements(0)
    with pytest.raises(
        RheoscopeError,
        match=r"this Trace has no source, expected the target of a pair; type model.trace\(\(source, target\)\).target",
    ):
        replace(traced("layer").target, memory=None).cross_bias(0)
    with pytest.raises(RheoscopeError, match="there is no head 4 in layer 1"):
        traced("layer").target.cross_weights(1, 4)


# Analyses of a decoder


@pytest.mark.parametrize("name", ["layer", "rotary", "branch_post", "metric"])
def test_analyses_take_the_decoder_and_its_trace(name: str) -> None:
    loaded: EncoderDecoder = model(name)
    target = traced(name).target
    assert bool(rs.operators(loaded.view).symmetry.notnull().all())
    assert bool(rs.operators(loaded.encoder).symmetry.notnull().all())
    lens = rs.readout(target)
    assert list(lens.point.values) == list(map(str, target.steps))
    assert int(lens.attrs["target"]) == int(target.logits[-1].argmax())
    if name != "metric":
        assert bool(rs.scores(target).centred.notnull().all())


def test_points_under_an_edit_are_those_of_the_run() -> None:
    """Edits act on heads of the decoder and points of both sides, and are undone on exit."""
    name = "layer"
    loaded = model(name)
    changes: dict[str, Any] = {
        "edit": {1: lambda q, k, v, mechanism, out: out * 0},
        "hooks": {"source.L0.resid_post": lambda x: x + 0.5, "L0.resid_post": lambda x: x - 0.5},
    }
    linked = loaded.trace(pair(), logits=True, **changes)
    assert torch.equal(linked.target.logits, loaded.run(pair(), **changes))
    assert torch.equal(linked.source.points_at("L0.resid_post"), traced(name).source.points_at("L0.resid_post") + 0.5)
    assert torch.equal(loaded.trace(pair()).target.points, traced(name).target.points)
    with pytest.raises(rs.RheoscopeError, match="surgery supports models that read one text, got an encoder-decoder"):
        rs.surgery(loaded, pair(), M="symmetric")

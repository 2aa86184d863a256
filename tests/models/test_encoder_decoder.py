"""Encoder-decoders as two linked Traces: cross attention against the module's own, step by step and number by number."""

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
from rheoscope.models.sentence_pairs import SPECIALS
from rheoscope.models.trained_model import NativeTranslator
from rheoscope.models.transformer import Translator
from rheoscope.models.vocabulary import character_tokenizer, train_bpe
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


def both(**more: Any) -> Any:
    return tiny(form="encoder-decoder", **more)


CASES = {
    "layer": both(norm="layer", position="learned", bias=True, ffn="gelu", kv_heads=2, tied=False),
    "rotary": both(kv_heads=2, head_width=12),
    "post": both(
        placement="post", norm="layer", position="sinusoidal", bias=True, ffn="relu", kv_heads=2, scaled_embedding=True
    ),
    "branch": both(branch=0.4, position="alibi", bias=True, kv_heads=1),
    "branch_post": both(branch=0.6, position="buckets", placement="post", kv_heads=2),
    "bare": both(norm="none", position="none", ffn="gelu"),
    "metric": both(mechanism="metric", options={"sigma": 2.0}, position="learned", kv_heads=2),
    "sink": both(mechanism="softmax_sink", kv_heads=2),
    "additive": both(mechanism="additive", options={"hidden": 6}, value_width=5),
}
SOFTMAX = ["layer", "rotary", "post", "branch", "branch_post", "bare"]
"""Scaled dot products and softmax, which a test can write out by hand."""
POST = ["post", "branch_post"]
every = pytest.mark.parametrize("name", list(CASES))
precisely = pytest.mark.parametrize("dtype", [F32, F64])


def made(name: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return randomised(Translator(CASES[name]))


@once
def model(name: str, dtype: torch.dtype = F32) -> Any:
    return rs.load(made(name).to(dtype))


def pair(seed: int = 0, s: int = S, t: int = T) -> tuple[Tensor, Tensor]:
    return text(seed, s), text(seed + 50, t)


@once
def traced(name: str, dtype: torch.dtype = F32, seed: int = 0) -> Any:
    return model(name, dtype).trace(pair(seed), logits=True)


@once
@torch.no_grad()
def given(name: str, dtype: torch.dtype = F32) -> Any:
    """What the cross attention of every layer is given and gives, in a module that Rheoscope never saw."""
    net, calls = made(name).to(dtype), []
    for block in net.decoder.blocks:
        block.cross.register_forward_hook(lambda module, args, out: calls.append((module, args[0][0], args[1][0], out)))
    net(*(ids[None] for ids in pair()))
    return calls


@cache
def by_hand(cross: Any, u: Tensor, memory: Tensor, head: int) -> tuple[Tensor, Tensor]:
    """Weights (t, s) and displacement (t, d) of one head in float64, one pair of tokens after the other."""
    cross, u, memory = copy.deepcopy(cross).double(), u.double(), memory.double()
    k, size = cross.head_width, cross.heads // cross.kv_heads
    mine, group = slice(head * k, (head + 1) * k), slice(head // size * k, (head // size + 1) * k)
    keys, values = cross.read(memory).split(cross.kv_heads * k, -1)
    asked = [cross.ask(x)[mine] for x in u]
    scores = torch.stack([torch.stack([q @ y[group] / k**0.5 for y in keys]) for q in asked])
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return weights, weights @ values[:, group] @ cross.write.weight[:, mine].T


# The two Traces


@every
def test_logits_are_those_of_the_untouched_module(name: str) -> None:
    source, target = pair()
    with torch.no_grad():
        own = made(name)(source[None], target[None])[0]
        assert torch.equal(model(name).run((source, target)), own)
    assert torch.equal(traced(name).target.logits, own)
    assert torch.equal(model(name).trace((source, target)).target.points, traced(name).target.points)
    assert traced(name).source.logits is None
    assert not hooks_left(model(name).network)


@every
def test_steps_are_labelled_in_the_order_of_the_stream(name: str) -> None:
    halves = ["resid_mid", "resid_cross", "resid_post"]
    if name in POST:
        halves = ["attn_sum", "resid_mid", "cross_sum", "resid_cross", "mlp_sum", "resid_post"]
    linked = traced(name)
    assert tuple(map(str, linked.target.steps)) == ("embed", *(f"L{at}.{half}" for at in range(2) for half in halves))
    assert tuple(map(str, linked.source.steps)) == (
        "embed",
        *(f"L{at}.{half}" for at in range(2) for half in halves if "cross" not in half),
    )
    assert linked.target.points.shape == (len(linked.target.steps), T, 32)
    assert linked.source.points.shape == (len(linked.source.steps), S, 32)
    for trace in (linked.source, linked.target):
        assert torch.equal(trace.layer_input(1), trace.points_at("L0.resid_post"))
        assert str(trace.steps[trace.mid_steps[1]]) == f"L1.{halves[0]}"


@every
@torch.no_grad()
def test_points_are_what_the_modules_make_of_them(name: str) -> None:
    """Block by block: the source to the memory, and the last point of the target to the logits."""
    linked, view = traced(name, F64), model(name, F64).view
    memory = model(name, F64).encoder.final_norm.apply(linked.source.points[-1])
    assert gap(memory, given(name, F64)[0][2]) <= 1e-12
    assert distance(view.final_norm.apply(linked.target.points[-1]) @ view.unembed, linked.target.logits) <= 1e-10
    assert torch.equal(linked.target.memory, linked.source.points[-1])


@precisely
@every
def test_every_half_step_closes(name: str, dtype: torch.dtype) -> None:
    within = 1e-6 if dtype is F32 else 1e-10
    linked = traced(name, dtype)
    for trace in (linked.source, linked.target):
        for at in range(2):
            moved = trace.points[trace.mid_steps[at]] - trace.layer_input(at)
            assert distance(trace.displacements(at).sum(0) + trace.bias(at), moved) <= within
    trace = linked.target
    for at in range(2):
        before, after, last = (trace.points_at(f"L{at}.{step}") for step in ("resid_mid", "resid_cross", "resid_post"))
        if name in POST:
            after, last = trace.points_at(f"L{at}.cross_sum"), trace.points_at(f"L{at}.mlp_sum")
        assert distance(trace.cross_displacements(at).sum(0) + trace.cross_bias(at), after - before) <= within
        with torch.no_grad():
            read = trace.points_at(f"L{at}.resid_cross")
            assert distance(last - read, trace.view.mlps[at](read)) <= within


@precisely
@pytest.mark.parametrize("name", SOFTMAX)
@torch.no_grad()
def test_cross_attention_is_what_a_hand_computes(name: str, dtype: torch.dtype) -> None:
    trace, within = traced(name, dtype).target, 1e-6 if dtype is F32 else 1e-12
    for at, (cross, u, memory, _) in enumerate(given(name, dtype)):
        moved = trace.cross_displacements(at)
        for head in range(4):
            weights, displacement = by_hand(cross, u, memory, head)
            assert trace.cross_weights(at, head).shape == (T, S)
            size = max(1.0, float(trace.cross_scores(at, head).abs().max()) / 8)  # a score rounds in proportion
            assert gap(trace.cross_weights(at, head), weights) <= within * size
            assert distance(moved[head], CASES[name].branch * displacement) <= 10 * within
        bias = torch.zeros(T, 32) if cross.write.bias is None else cross.write.bias.expand(T, -1)
        assert gap(trace.cross_bias(at), CASES[name].branch * bias) <= within


def centred(s: Tensor) -> Tensor:
    return s - s.mean(-1, keepdim=True) - s.mean(-2, keepdim=True) + s.mean((-2, -1), keepdim=True)


@pytest.mark.parametrize("name", [name for name in CASES if name != "additive"])
@torch.no_grad()
def test_M_is_the_form_between_target_and_source(name: str) -> None:
    """Up to terms of the target token alone and of the source token alone, which double centring removes."""
    trace = traced(name, F64).target
    for at, (cross, u, memory, _) in enumerate(given(name, F64)):
        x, crossing = trace.points_at(f"L{at}.resid_mid"), trace.view.cross_heads[at]
        form = crossing.M().bilinear_form(
            crossing.target_heads.norm.normalise(x), crossing.source_norm.normalise(trace.memory)
        )
        scores = torch.stack([trace.cross_scores(at, head) for head in range(4)])
        assert gap(centred(form), centred(scores)) <= 1e-10 * float(scores.abs().max())
        if name in SOFTMAX:
            for head in range(4):
                assert gap(scores[head].softmax(-1), by_hand(cross, u, memory, head)[0]) <= 1e-12


@every
@torch.no_grad()
def test_F_is_what_the_source_puts_into_the_target(name: str) -> None:
    trace = traced(name, F64).target
    for at in range(2):
        crossing, heads = trace.view.cross_heads[at], trace.view.cross_heads[at].source_heads
        beta = torch.zeros(len(heads.W_V), heads.W_V.shape[-1], dtype=F64) if heads.b_V is None else heads.b_V
        beta = beta if heads.norm.bias is None else beta + heads.norm.bias @ heads.W_V
        values = crossing.F().apply(crossing.source_norm.normalise(trace.memory))
        values = values + beta.repeat_interleave(4 // len(beta), 0)[:, None] @ heads.W_O
        weights = torch.stack([trace.cross_weights(at, head) for head in range(4)])
        assert distance(weights @ values, trace.cross_displacements(at)) <= 1e-10


def test_tied_groups_are_symmetric_and_others_are_not() -> None:
    net = made("rotary").to(F64)
    with torch.no_grad():
        for block in net.decoder.blocks:
            block.norm_cross.weight.copy_(net.encoder.norm.weight)
            keys = block.cross.read.weight.unflatten(0, (-1, 12))[:2]
            block.cross.ask.weight.copy_(keys.repeat_interleave(2, 0).flatten(0, 1))
    for crossing in rs.load(net).view.cross_heads:
        assert gap(crossing.M().symmetry(), torch.ones(4)) <= 1e-12
        other = replace(crossing, target_heads=replace(crossing.target_heads, W_K=crossing.target_heads.W_K.flip(0)))
        assert float(other.M().symmetry().detach().abs().max()) < 0.6


def test_a_score_that_is_no_form_has_no_M() -> None:
    with pytest.raises(RheoscopeError, match="is not a bilinear form of its tokens, so it has no M"):
        model("additive").view.cross_heads[0].M()
    assert model("additive").view.cross_heads[0].F()[1].shape == (32, 32)


@pytest.mark.parametrize("name", ["layer", "rotary", "branch_post", "metric", "additive"])
def test_half_precision_is_certified(name: str) -> None:
    of = rs.load(made(name), dtype="bfloat16")
    linked = of.trace(pair())
    assert linked.target.points.dtype is linked.source.points.dtype is F32
    assert linked.target.cross_weights(1, 2).dtype is linked.target.cross_scores(1, 2).dtype is F32


# Padding


@every
def test_a_padded_batch_gives_each_pair_its_own_points(name: str) -> None:
    pairs = [pair(1, 4, 6), pair(2, 9, 1), pair(3, 1, 11)]
    batch = model(name).trace(pairs, logits=True)
    for one, other in zip(batch, model(name).trace(pairs), strict=True):  # the same without logits
        assert torch.equal(one.target.points, other.target.points)
    for together, (source, target) in zip(batch, pairs, strict=True):
        alone = model(name).trace((source, target), logits=True)
        assert torch.equal(together.source.ids, source)
        assert torch.equal(together.target.ids, target)
        assert gap(together.source.points, alone.source.points) <= 5e-5
        assert gap(together.target.points, alone.target.points) <= 5e-5
        assert gap(together.target.logits, alone.target.logits) <= 2e-6 * float(alone.target.logits.abs().max())
        assert gap(together.target.cross_weights(1, 2), alone.target.cross_weights(1, 2)) <= 1e-5


@every
def test_a_neighbour_in_the_batch_changes_nothing(name: str) -> None:
    one, other = (model(name).trace([pair(1, 4, 3), pair(seed)])[0] for seed in (2, 3))
    assert torch.equal(one.source.points, other.source.points)
    assert torch.equal(one.target.points, other.target.points)


# The certificate


def broken(name: str, wrong: Callable[[CrossHeads], CrossHeads]) -> Any:
    of = model(name)
    crossing = of.view.cross_heads
    return replace(of, view=replace(of.view, cross_heads=(crossing[0], wrong(crossing[1]))))


def asking(**changes: Callable[[Any], Any]) -> Callable[[CrossHeads], CrossHeads]:
    """The crossing with fields of its heads changed."""
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
    ("no norm for the target", "rotary", asking(norm=lambda h: Norm())),
    (
        "the memory's norm for the target",
        "rotary",
        lambda c: replace(c, target_heads=replace(c.target_heads, norm=c.source_norm)),
    ),
    ("another group of keys", "rotary", asking(W_K=lambda h: h.W_K.flip(0))),
    ("another group of values", "rotary", asking(W_V=lambda h: h.W_V.flip(0))),
    ("heads of W_O in another order", "rotary", asking(W_O=lambda h: h.W_O.flip(0))),
    ("keys for values", "rotary", asking(W_K=lambda h: h.W_V, W_V=lambda h: h.W_K)),
    ("no bias of the output", "post", asking(b_O=lambda h: None)),
    ("no bias of queries", "layer", asking(b_Q=lambda h: None)),
    ("no bias of values", "post", asking(b_V=lambda h: None)),
    ("branch not folded", "branch", asking(W_O=lambda h: h.W_O / 0.4)),
    ("a causal mask", "rotary", asking(mechanism=lambda h: h.mechanism.with_mask("causal"))),
    ("the decoder's own heads", "rotary", lambda c: replace(c, target_heads=model("rotary").view.layer_heads[1])),
]


@pytest.mark.parametrize(("name", "wrong"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_a_wrong_description_is_refused(name: str, wrong: Callable[[CrossHeads], CrossHeads]) -> None:
    with pytest.raises(
        RheoscopeError, match=r"encoder-decoder does not reproduce this model: .*; please report the config"
    ):
        certify(broken(name, wrong))


@pytest.mark.parametrize("side", ["view", "encoder"])
def test_wrong_self_attention_on_either_side_is_refused(side: str) -> None:
    of = model("layer")
    view = getattr(of, side)
    wrong = replace(
        view, layer_heads=(view.layer_heads[0], replace(view.layer_heads[1], W_O=view.layer_heads[1].W_O.flip(0)))
    )
    with pytest.raises(RheoscopeError, match="does not reproduce this model"):
        certify(replace(of, **{side: wrong}))


@precisely
@every
def test_a_right_description_passes(name: str, dtype: torch.dtype) -> None:
    of = model(name, dtype)
    found = of.view.facts["certificate"]
    assert found is of.encoder.facts["certificate"]
    assert max(found.error_values) <= (1e-5 if dtype is F32 else 1e-9)
    assert found.n_tokens == 8


# Running


@every
def test_hooks_see_the_points_of_both_sides(name: str) -> None:
    linked, found = traced(name), {}

    def look(label: str) -> Any:
        def hook(x: Tensor) -> Tensor:
            found[label] = x[0].detach().clone()
            return x

        return hook

    labels = [*map(str, linked.target.steps), *(f"source.{step}" for step in linked.source.steps)]
    with torch.no_grad():  # as the traced run: gradients may choose another kernel
        logits = model(name).run(pair(), hooks={label: look(label) for label in labels})
    assert torch.equal(logits, linked.target.logits)
    for label in labels:
        trace = linked.source if label.startswith("source.") else linked.target
        assert gap(found[label], trace.points_at(label.removeprefix("source."))) <= 1e-5


@every
def test_points_of_another_pair_give_its_logits(name: str) -> None:
    here, there = traced(name, F64), traced(name, F64, 1)

    def put(trace: Any, step: str) -> Any:
        return lambda x: trace.points_at(step)[None]

    for hooks in (
        {"L1.resid_post": put(there.target, "L1.resid_post")},
        {"L1.resid_cross": put(there.target, "L1.resid_cross")},
        {"L1.resid_mid": put(there.target, "L1.resid_mid"), "source.embed": put(there.source, "embed")},
        {"embed": put(there.target, "embed"), "source.L1.resid_mid": put(there.source, "L1.resid_mid")},
    ):
        assert distance(model(name, F64).run(pair(), hooks=hooks), there.target.logits) <= 1e-10
    half = model(name, F64).run(pair(), hooks={"L1.resid_mid": put(there.target, "L1.resid_mid")})
    assert distance(half, there.target.logits) > 1e-3
    assert distance(half, here.target.logits) > 1e-3


@every
def test_an_edit_of_a_head_is_that_head_of_the_decoder(name: str) -> None:
    cut = copy.deepcopy(made(name))
    width = CASES[name].value_width
    with torch.no_grad():
        cut.decoder.blocks[1].attention.write.weight[:, 2 * width : 3 * width] = 0
        wanted = cut(*(ids[None] for ids in pair()))[0]
        found = model(name).run(
            pair(), edit={(1, 2): lambda q, k, v, mechanism: torch.zeros_like(mechanism.attend(q, k, v))}
        )
        assert torch.equal(model(name).run(pair()), traced(name).target.logits)
    assert distance(found, wanted) <= 1e-5


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
def spoken() -> Any:
    return rs.load(made("layer"), tokenizer=character_tokenizer(["abcdefgh ijkl"], SPECIALS))


def test_strings_are_framed_as_in_training() -> None:
    linked = spoken().trace(("bad gag ", "lid"), logits=True)
    assert linked.source.tokens == [*"bad gag", "<|end|>"]
    assert linked.target.tokens == ["<|start|>", *"lid"]
    assert linked.source.ids[-1] == 2
    assert linked.target.ids[0] == 1
    assert (linked.source.text, linked.target.text) == ("bad gag ", "lid")
    again = spoken().trace((linked.source.ids.tolist(), linked.target.ids), logits=True)
    assert torch.equal(again.target.logits, linked.target.logits)
    assert again.target.text == ""
    assert [len(one.source) for one in spoken().trace([("bad", "lid"), ("gag", [1])])] == [4, 4]


def test_the_tokenizer_of_a_prepared_corpus_serves() -> None:
    tokenizer = train_bpe(["a dog ein Hund"] * 5, 262, SPECIALS)
    net = randomised(Translator(tiny(form="encoder-decoder", vocabulary=262)))
    ids = rs.load(net, tokenizer=tokenizer).pair_ids(("a dog", "ein Hund"))
    assert tokenizer.decode(ids[0].tolist(), skip_special_tokens=False) == "a dog<|end|>"
    assert tokenizer.decode(ids[1].tolist(), skip_special_tokens=False) == "<|start|>ein Hund"


@pytest.mark.parametrize("given", ["bad gag", ["bad", "gag"], ("bad",), ("a", "b", "c"), [1, 2, 3], [], torch.ones(3)])
def test_what_is_no_pair_is_refused_in_one_line(given: Any) -> None:
    for ask in (spoken().trace, spoken().run):
        with (
            without_jaxtyping_checks(),
            pytest.raises(
                RheoscopeError,
                match=r"expects a pair \(source, target\), got .*; type model.trace\(\(source, target\)\)",
            ),
        ):
            ask(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("", "a"), "the text has no tokens, expected at least one"),
        (([3], []), "the text has no tokens, expected at least one"),
        (("ähem", "a"), "the tokenizer cannot read this text"),
        (([40], [1]), "token ids must lie between 0 and 39, got 40 to 40"),
        (([3] * 65, [1]), "the text has 65 tokens, but the model reads at most 64; use a shorter text"),
        (([3], "a" * 64), "the text has 65 tokens, but the model reads at most 64; use a shorter text"),
        (([3.5], [1]), "a text must be a string or a list of token ids"),
    ],
)
def test_texts_are_looked_at_on_both_sides(given: Any, said: str) -> None:
    with without_jaxtyping_checks(), pytest.raises(RheoscopeError, match=said):
        spoken().trace(given)


def test_a_tokenizer_without_a_start_is_refused() -> None:
    with pytest.raises(RheoscopeError, match=r"this tokenizer has no <\|end\|> with id 2; type token ids"):
        rs.load(made("layer"), tokenizer=character_tokenizer(["abc"], ["<|endoftext|>"])).trace(("a", "b"))
    with pytest.raises(RheoscopeError, match=r"this model has no tokenizer, expected a tokenizer\.json"):
        model("layer").trace(("a", "b"))


# Files


def test_a_directory_opens_as_the_module_does(tmp_path: Path) -> None:
    of = rs.load(save(made("layer"), tmp_path, tokenizer=character_tokenizer(["abc"], SPECIALS)))
    assert isinstance(of, NativeTranslator)
    assert isinstance(of, Model)
    assert torch.equal(of.trace(pair(), logits=True).target.logits, traced("layer").target.logits)
    assert of.trace(("ab", "c")).target.cross_weights(0, 0).shape == (2, 3)
    assert distance(rs.load(tmp_path, untrained=True).run(pair()), traced("layer").target.logits) > 0.1


def test_a_saved_pair_opens_with_its_own_model_alone(tmp_path: Path) -> None:
    linked, of = traced("layer"), model("layer")
    again = LinkedTraces.open(linked.save(tmp_path), of)
    for side in ("source", "target"):
        one, other = getattr(again, side), getattr(linked, side)
        assert torch.equal(one.points, other.points)
        assert (one.steps, one.tokens, one.input_steps, one.mid_steps) == (
            other.steps,
            other.tokens,
            other.input_steps,
            other.mid_steps,
        )
    assert torch.equal(again.target.cross_weights(1, 2), linked.target.cross_weights(1, 2))
    assert torch.equal(again.target.logits, linked.target.logits)
    with pytest.raises(RheoscopeError, match="this Trace comes from weights"):
        LinkedTraces.open(tmp_path, model("rotary"))
    for side, view in (("source", of.view), ("target", of.encoder)):  # the other half of the same model
        with pytest.raises(RheoscopeError, match="this Trace comes from weights"):
            Trace.open(tmp_path / side, view)


def test_what_has_no_source_has_no_cross_attention() -> None:
    trace = single("own").trace([1, 2, 3])
    for ask in (trace.cross_weights, trace.cross_scores):
        with pytest.raises(RheoscopeError, match="this View has no cross-attention, expected the decoder"):
            ask(0, 1)
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
    of: EncoderDecoder = model(name)
    target = traced(name).target
    assert bool(rs.operators(of.view).symmetry.notnull().all())
    assert bool(rs.operators(of.encoder).symmetry.notnull().all())
    lens = rs.readout(target)
    assert list(lens.point.values) == list(map(str, target.steps))
    assert int(lens.attrs["target"]) == int(target.logits[-1].argmax())
    if name != "metric":
        assert bool(rs.scores(target).centred.notnull().all())


def test_points_under_an_edit_are_those_of_the_run() -> None:
    """Heads of the decoder and points of both sides; everything is undone on exit."""
    name = "layer"
    of = model(name)
    changes: dict[str, Any] = {
        "edit": {1: lambda q, k, v, mechanism, out: out * 0},
        "hooks": {"source.L0.resid_post": lambda x: x + 0.5, "L0.resid_post": lambda x: x - 0.5},
    }
    linked = of.trace(pair(), logits=True, **changes)
    assert torch.equal(linked.target.logits, of.run(pair(), **changes))
    assert torch.equal(linked.source.points_at("L0.resid_post"), traced(name).source.points_at("L0.resid_post") + 0.5)
    assert torch.equal(of.trace(pair()).target.points, traced(name).target.points)
    with pytest.raises(rs.RheoscopeError, match="surgery supports models that read one text, got an encoder-decoder"):
        rs.surgery(of, pair(), M="symmetric")

"""Our own models seen as operators: what M and F are for every mechanism, edits, texts, and what is refused."""

import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.attention.mask import Mask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import ALiBi, Position
from rheoscope.attention.score import Gram
from rheoscope.models.config import Config
from rheoscope.models.seeing import Trained, certify
from rheoscope.models.transformer import Transformer
from rheoscope.models.vocabulary import characters
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads, Norm, Turned
from tests.attention.cases import as_users_run
from tests.models.cases import (
    CASES,
    DOT,
    EVERY,
    NO_FORM,
    UNMASKED,
    WITH_M,
    changed,
    model,
    network,
    saved,
    seen,
    tiny,
    traced,
)
from tests.pretrained.cases import gap, hooks_left, randomised, text

F64 = torch.float64


def centred(s: Tensor) -> Tensor:
    """Without the terms of the query alone and of the key alone."""
    return s - s.mean(-1, keepdim=True) - s.mean(-2, keepdim=True) + s.mean((-2, -1), keepdim=True)


# M and F


@pytest.mark.parametrize("name", [name for name in WITH_M if CASES[name].position != "rotary"])
@torch.no_grad()
def test_M_is_the_form_of_the_scores(name: str) -> None:
    """Up to terms of the query alone and of the key alone, which double centring removes (biases, −|k|² of a metric)."""
    trace, own = seen(name, F64)
    for at, layer in enumerate(own):
        block, x = trace.view.blocks[at], trace.read_by(at)
        n = torch.arange(len(x))
        bias = block.mechanism.position.bias(n, n)
        hat = block.norm.hat(x)
        own_form = centred(layer.scores if bias is None else layer.scores - bias)
        assert gap(centred(block.M().form(hat, hat)), own_form) <= 1e-10 * max(1.0, float(own_form.abs().max()))


@torch.no_grad()
def test_M_of_a_turned_metric_is_the_form_at_every_offset() -> None:
    """s_ij + c|q_i|² + c|k_j|² = x̂_i M(i − j) x̂_jᵀ: rotations keep lengths."""
    trace, own = seen("own_metric", F64)
    c = 0.5 / 2.0**2
    for at, layer in enumerate(own):
        block, x = trace.view.blocks[at], trace.read_by(at)
        dot = layer.scores + c * layer.q.square().sum(-1)[:, :, None] + c * layer.k.square().sum(-1)[:, None]
        for offset in range(1 - len(x), len(x)):
            form = block.M()(offset).form(block.norm.hat(x), block.norm.hat(x))
            assert gap(form.diagonal(-offset, -2, -1), dot.diagonal(-offset, -2, -1)) <= 1e-5


@pytest.mark.parametrize("name", sorted(NO_FORM))
def test_a_score_that_is_no_form_has_no_M(name: str) -> None:
    view = model(name).view
    for ask in (view.blocks[1].M, lambda: view.head(1, 2).M, lambda: rs.operators(view)):
        with pytest.raises(
            RheoscopeError, match=r"the score of this head \(.*\) is no bilinear form .*; type trace"
        ) as said:
            ask()
        assert "\n" not in str(said.value)
    assert view.head(1, 2).F.shape == (32, 32)
    assert traced(name).scores(1, 2).shape == traced(name).weights(1, 2).shape == (18, 18)


@pytest.mark.parametrize("name", EVERY)
def test_parts_of_scores_are_for_scaled_dot_products(name: str) -> None:
    if name in DOT:
        assert bool(rs.scores(traced(name)).centred.notnull().all())
        return
    with pytest.raises(RheoscopeError, match=r"no scaled dot products, .*; type trace.scores\(layer, head\)"):
        rs.scores(traced(name))


def test_a_mapped_value_has_no_F() -> None:
    from rheoscope.attention.feature import Unit

    block = model("own").view.blocks[0]
    mapped = replace(block, mechanism=replace(block.mechanism, value=Unit()))
    with pytest.raises(RheoscopeError, match=r"maps its values by Unit .* so it has no F; type trace.displacement"):
        mapped.F()


@pytest.mark.parametrize("name", WITH_M)
def test_operators_are_finite(name: str) -> None:
    found = rs.operators(model(name).view)
    assert all(bool(found[field].notnull().all()) for field in found.data_vars)


def test_offsets_may_reach_beyond_the_longest_text() -> None:
    """`rs.operators` asks for offsets up to 16; a rotation beyond the tables follows their formula."""
    short, long = (rs.load(randomised(Transformer(tiny(context=context, depth=1)).to(F64))) for context in (4, 64))
    for offset in (3, 4, 20):
        found, wanted = (
            one.view.blocks[0].mechanism.position.rotation(offset, 8, torch.empty(0, dtype=F64))
            for one in (short, long)
        )
        assert torch.equal(found, wanted)
    assert bool(rs.operators(short.view).symmetry_at.notnull().all())


def test_tied_queries_and_keys_are_symmetric() -> None:
    def tie(net: Any) -> None:
        for block in net.stack.blocks:
            rows = block.attention.read.weight.unflatten(0, (-1, 8))
            rows[:4] = rows[4:6].repeat_interleave(2, 0)

    for block in changed("own", tie).view.blocks:
        for offset in (0, 1, 7, -3):
            assert gap(block.M().symmetry_at(offset), torch.ones(4)) <= 1e-6
        assert float(replace(block, W_K=block.W_K.flip(0)).M().symmetry().detach().abs().max()) < 0.6


# The certificate


def broken(name: str, wrong: Callable[[Heads], Heads]) -> Any:
    of = model(name)
    return replace(of, view=replace(of.view, blocks=(of.view.blocks[0], wrong(of.view.blocks[1]))))


def backwards(heads: Heads) -> Heads:
    position: Any = heads.mechanism.position
    return replace(heads, mechanism=replace(heads.mechanism, position=Turned(lambda x, at: position.turn(x, 50 - at))))


FAULTS: list[tuple[str, str, Callable[[Heads], Heads]]] = [
    ("wrong scale", "own", lambda h: replace(h, mechanism=replace(h.mechanism, score=Gram(scale=0.5)))),
    ("no mask", "own", lambda h: replace(h, mechanism=replace(h.mechanism, mask=Mask()))),
    ("no rotation", "own", lambda h: replace(h, mechanism=replace(h.mechanism, position=Position()))),
    ("turned backwards", "own", backwards),
    ("other slopes", "own_alibi", lambda h: replace(h, mechanism=replace(h.mechanism, position=ALiBi(torch.ones(4))))),
    ("heads of W_O in another order", "own", lambda h: replace(h, W_O=h.W_O.flip(0))),
    ("branch not folded", "own_branch", lambda h: replace(h, W_O=h.W_O / 0.4)),
    ("branch not folded into b_O", "own_branch", lambda h: replace(h, b_O=h.b_O / 0.4)),
    ("queries for keys", "own_biased", lambda h: replace(h, W_Q=h.W_K, W_K=h.W_Q)),
    ("no bias of the norm", "own_biased", lambda h: replace(h, norm=replace(h.norm, bias=None))),
    ("another norm", "own", lambda h: replace(h, norm=Norm())),
    ("another mechanism", "own_metric", lambda h: replace(h, mechanism=replace(h.mechanism, score=Gram()))),
]


@pytest.mark.parametrize(("name", "wrong"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_a_wrong_description_is_refused(name: str, wrong: Callable[[Heads], Heads]) -> None:
    with pytest.raises(RheoscopeError, match=r"does not reproduce this model \(.*\); .* report"):
        certify(broken(name, wrong))


@pytest.mark.parametrize("name", EVERY)
def test_a_right_description_passes(name: str) -> None:
    for dtype, within in ((torch.float32, 1e-5), (F64, 1e-9)):
        found = model(name, dtype).view.facts["certificate"]
        assert found.tokens == 8
        assert max(found.weights, found.closure, found.operators) <= within
    assert not hooks_left(network(name))


@pytest.mark.parametrize("name", EVERY)
def test_half_precision_is_certified(name: str) -> None:
    of = rs.load(copy.deepcopy(network(name)), dtype="bfloat16")
    assert of.view.facts["certificate"].dtype == of.view.facts["dtype"] == "bfloat16"
    assert of.trace(text()).points.dtype is torch.bfloat16


@pytest.mark.parametrize("name", ["own", "own_alibi", "own_encoder"])
def test_positions_keep_their_precision(name: str) -> None:
    half = rs.load(copy.deepcopy(network(name)), dtype="bfloat16").network
    assert all(x.dtype is torch.bfloat16 for x in half.parameters())
    buffers = dict(half.named_buffers())
    assert buffers
    for key, x in buffers.items():
        assert torch.equal(x, network(name).get_buffer(key))


# Texts and edits


def spoken() -> Trained:
    tokenizer = characters(["abcdefgh ijkl"], ["<|endoftext|>"])
    found = rs.load(network("own"), tokenizer=tokenizer)
    assert isinstance(found, Trained)
    return found


def test_a_string_goes_through_the_tokenizer() -> None:
    trace = spoken().trace("bad gag", logits=True)
    assert trace.tokens == list("bad gag")
    assert trace.text == "bad gag"
    assert torch.equal(trace.logits, spoken().run(trace.ids))
    assert spoken().words(torch.tensor([0, 2])) == ["<|endoftext|>", "a"]
    assert [len(one) for one in spoken().trace(["bad", "gag lid"])] == [3, 7]


def test_a_text_that_the_tokenizer_cannot_read_is_refused() -> None:
    with as_users_run(), pytest.raises(RheoscopeError, match=r"the tokenizer cannot read this text .*; type a text of"):
        spoken().trace("ähem")
    with pytest.raises(RheoscopeError, match="this model has no tokenizer: type token ids"):
        model("own").trace("bad")


def test_a_tokenizer_of_transformers_serves_too() -> None:
    from tests.pretrained.cases import tokenizer

    assert rs.load(network("own"), tokenizer=tokenizer()).ids("w7 w8").tolist() == [1, 7, 8]


def test_longer_than_the_context_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="the text has 65 tokens, the model reads at most 64; type a shorter text"):
        model("own").trace(text(n=65))


@pytest.mark.parametrize("name", sorted(UNMASKED))
def test_texts_of_several_lengths_are_refused_where_no_mask_is_defined(name: str) -> None:
    assert len(model(name).trace([text(1), text(2)])) == 2
    with pytest.raises(RheoscopeError, match="is defined without a mask"):
        model(name).trace([text(1), text(2, 5)])


def same(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    return mechanism.attend(q, k, v)


@pytest.mark.parametrize("name", EVERY)
def test_an_edit_that_changes_nothing_changes_nothing(name: str) -> None:
    every = {(at, head): same for at in range(2) for head in range(4)}
    assert gap(model(name).run(text(), edit=every), traced(name).logits) <= 1e-5 * max(
        1.0, float(traced(name).logits.abs().max())
    )
    assert torch.equal(model(name).run(text()), traced(name).logits)


@pytest.mark.parametrize("name", EVERY)
def test_an_edit_is_given_the_mechanism_of_its_head(name: str) -> None:
    for at, layer in enumerate(seen(name, F64)[1]):
        found: dict[int, Tensor] = {}

        def look(head: int) -> Any:
            def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
                found[head] = mechanism.weights(q, k)[0, 0]
                return mechanism.attend(q, k, v)

            return edit

        model(name, F64).run(text(), edit={(at, head): look(head) for head in range(4)})
        for head, weights in found.items():
            assert gap(weights, layer.weights[head]) <= 1e-12


def test_a_run_inside_an_edit_leaves_the_edit_as_it_was() -> None:
    of, plain = model("own"), traced("own").logits
    zero = of.run(text(), edit={(0, 1): lambda q, k, v, mechanism: torch.zeros_like(q)})

    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
        of.run(text(), edit={(0, 1): same, (1, 0): same})
        return torch.zeros_like(q)

    assert gap(of.run(text(), edit={(0, 1): edit}), zero) <= 1e-6
    assert torch.equal(of.run(text()), plain)
    assert all("current" not in vars(block.attention.mechanism) for block in network("own").stack.blocks)


# Loading


def test_another_mechanism_is_another_model() -> None:
    """The same weights read by another score: a Trace of one is not opened with the View of the other."""
    net = network("own_laplace")
    other = Transformer(net.config.but(mechanism="scaled_dot")).eval()
    other.load_state_dict(net.state_dict())
    assert rs.load(other).view.facts["weights"] != model("own_laplace").view.facts["weights"]


def test_transformers_is_never_imported(tmp_path: Path) -> None:
    saved("own", tmp_path, tokenizer=characters(["abc"], []))
    code = (
        f"import sys, rheoscope as rs; model = rs.load({str(tmp_path)!r}); trace = model.trace('abc', logits=True); "
        "rs.operators(model.view); model.run('abc', edit={(0, 0): lambda q, k, v, mechanism: v * 0 + q * 0}); "
        "print([name for name in sys.modules if name.split('.')[0] == 'transformers'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_the_config_of_a_case_is_what_it_says() -> None:
    assert all(isinstance(config, Config) for config in CASES.values())
    assert {CASES[name].position for name in EVERY} == {"rotary", "learned", "sinusoidal", "alibi", "buckets", "none"}

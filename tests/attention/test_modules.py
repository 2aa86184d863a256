"""Layers: parameters of a mechanism are trained, caches change nothing, any mechanism fits."""

import copy

import pytest
import torch

import rheoscope as rs
from rheoscope.attention.definition import reference
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.parameters import tensors
from rheoscope.attention.position import ALiBi, Learned, Rotary, alibi_slopes
from rheoscope.attention.zoo import ZOO
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import COMPOSED, EVERY, any_mechanism, constructed, gap, inputs, random


@pytest.mark.parametrize("name", EVERY)
def test_every_tensor_is_a_parameter(name: str) -> None:
    mechanism = any_mechanism(name)
    layer = rs.nn.Attention(mechanism)
    assert {path.replace(".", "_") for path in tensors(mechanism)} == {
        n.split(".")[-1] for n, _ in layer.named_parameters()
    }
    q, k, v = inputs(5, 5)
    assert gap(layer(q, k, v), reference(mechanism, q, k, v)[0]) < 1e-9
    if mechanism.domain.differentiable and tensors(mechanism):
        layer(q, k, v).square().sum().backward()
        assert all(x.grad is not None and bool(x.grad.any()) for x in layer.parameters())


def test_training_moves_the_layer_and_not_the_mechanism() -> None:
    mechanism = any_mechanism("bilinear")
    before = tensors(mechanism)["score.phi.W"].clone()
    layer = rs.nn.Attention(mechanism)
    q, k, v = inputs()
    optimiser = torch.optim.SGD(layer.parameters(), lr=1.0)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        loss = (layer(q, k, v, mask="causal") - 1).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert torch.equal(tensors(mechanism)["score.phi.W"], before)
    assert not torch.equal(tensors(layer.current())["score.phi.W"], before)


def test_a_layer_is_saved_and_opened() -> None:
    layer, other = (rs.nn.Attention("metric_map", dim=6, seed=seed).double() for seed in (0, 5))
    q, k, v = inputs()
    assert gap(layer(q, k, v), other(q, k, v)) > 1e-3
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(q, k, v), other(q, k, v))


@pytest.mark.parametrize("name", ZOO)
def test_any_mechanism_makes_a_layer(name: str) -> None:
    layer = rs.nn.MultiHeadAttention(12, heads=4, kv_heads=2, mechanism=name, bias=True)
    x = random(1, 2, 5, 12).float()
    assert layer(x).shape == (2, 5, 12)
    assert layer.W_K.weight.shape == (6, 12)


@pytest.mark.parametrize("name", ZOO)
def test_a_call_puts_no_mechanism_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a mask, with other numbers in the places of its parameters."""
    layer, x = rs.nn.MultiHeadAttention(12, heads=4, mechanism=name), random(1, 2, 5, 12).float()
    others = {path: 2 * own for path, own in layer.named_parameters()}
    mask = "causal" if layer.attention.mechanism.domain.masked else None
    expected = copy.deepcopy(layer)
    expected.load_state_dict(others)
    made = constructed(monkeypatch)
    assert torch.equal(torch.func.functional_call(layer, others, x, {"mask": mask}), expected(x, mask=mask))
    assert not made


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(position=Rotary()),
        Mechanism(position=ALiBi(alibi_slopes(4))),
        Mechanism(position=Learned(random(2, 9, 4).float())),
        rs.mechanism("softmax_sink"),
        rs.mechanism("entmax15"),
    ],
    ids=["rotary", "alibi", "learned", "sink", "entmax"],
)
@pytest.mark.parametrize("steps", [(1, 1, 1, 1, 1, 1), (3, 1, 2)], ids=str)
def test_a_cache_changes_nothing(mechanism: Mechanism, steps: tuple[int, ...]) -> None:
    """Tokens one at a time, or a prompt and then tokens: the rows of the whole text."""
    layer, cache = rs.nn.MultiHeadAttention(16, heads=4, kv_heads=2, mechanism=mechanism), rs.nn.Cache()
    x = random(3, 2, 6, 16).float()
    out = torch.cat([layer(part, mask="causal", cache=cache) for part in x.split(steps, 1)], 1)
    assert len(cache) == 6
    assert gap(out, layer(x, mask="causal")) < 1e-5


def test_heads_are_those_of_the_projections() -> None:
    """Head h takes columns h · width of W_Q, and key head h // 2: by hand for one head."""
    layer = rs.nn.MultiHeadAttention(8, heads=4, kv_heads=2, head_width=3).double()
    x = random(4, 1, 5, 8)
    q = x @ layer.W_Q.weight[9:12].T
    k, v = x @ layer.W_K.weight[3:6].T, x @ layer.W_V.weight[3:6].T
    last = torch.softmax(q @ k.mT / 3**0.5, -1) @ v
    with torch.no_grad():
        layer.W_O.weight[:, :9] = 0
    assert gap(layer(x), last @ layer.W_O.weight[:, 9:12].T) < 1e-12


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": 3, "kv_heads": 2}, "multiple of kv_heads.*3 and 2"),
        ({"heads": 0}, "at least 1"),
        ({"heads": 16}, "too small.*type head_width"),
        ({"heads": 2, "mechanism": "metrik"}, "unknown mechanism 'metrik'"),
    ],
)
def test_bad_heads(options: dict, words: str) -> None:
    with pytest.raises(RheoscopeError, match=words):
        rs.nn.MultiHeadAttention(8, **options)


def test_a_layer_tells_what_it_is() -> None:
    assert "score=Distance, normaliser=Softmax" in repr(rs.nn.Attention("metric"))
    assert "normaliser=Sink" in repr(rs.nn.Attention(COMPOSED["sink a head"]()))


def test_values_may_have_a_width_of_their_own() -> None:
    """W_O maps h · d_v numbers back; heads one by one give the same."""
    layer = rs.nn.MultiHeadAttention(12, heads=4, kv_heads=2, value_width=5).double()
    x = random(1, 2, 6, 12)
    assert (layer.W_V.weight.shape, layer.W_O.weight.shape) == ((10, 12), (12, 20))
    q, k = ((x @ W.weight.T).unflatten(-1, (-1, 3)).transpose(1, 2) for W in (layer.W_Q, layer.W_K))
    v = (x @ layer.W_V.weight.T).unflatten(-1, (-1, 5)).transpose(1, 2)
    own = sum(
        rs.mechanism("scaled_dot")(q[:, [h]], k[:, [h // 2]], v[:, [h // 2]])[:, 0]
        @ layer.W_O.weight[:, 5 * h : 5 * h + 5].T
        for h in range(4)
    )
    assert gap(layer(x), own) < 1e-12  # type: ignore[arg-type]

"""Layers train the tensors of any mechanism, and a cache does not change outputs."""

import copy

import pytest
import torch

import rheoscope as rs
from rheoscope.attention.definition import reference_attention
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.parameters import tensors_by_path
from rheoscope.attention.position import LearnedPosition, Rotary
from rheoscope.attention.position_bias import ALiBi, alibi_slopes
from rheoscope.attention.zoo import ZOO
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import COMPOSED, MECHANISM_NAMES, any_mechanism, gap, inputs, random, record_constructions


@pytest.mark.parametrize("name", MECHANISM_NAMES)
def test_every_tensor_is_a_parameter(name: str) -> None:
    mechanism = any_mechanism(name)
    layer = rs.nn.Attention(mechanism)
    assert {path.replace(".", "_") for path in tensors_by_path(mechanism)} == {
        n.split(".")[-1] for n, _ in layer.named_parameters()
    }
    q, k, v = inputs(5, 5)
    assert gap(layer(q, k, v), reference_attention(mechanism, q, k, v)[0]) < 1e-9
    if mechanism.domain.is_differentiable and tensors_by_path(mechanism):
        layer(q, k, v).square().sum().backward()
        assert all(x.grad is not None and bool(x.grad.any()) for x in layer.parameters())


def test_training_changes_the_layer_but_not_the_mechanism() -> None:
    mechanism = any_mechanism("bilinear")
    before = tensors_by_path(mechanism)["score.phi.W"].clone()
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
    assert torch.equal(tensors_by_path(mechanism)["score.phi.W"], before)
    assert not torch.equal(tensors_by_path(layer.current_mechanism())["score.phi.W"], before)


def test_layer_round_trips_through_state_dict() -> None:
    layer, other_layer = (rs.nn.Attention("metric_map", dim=6, seed=seed).double() for seed in (0, 5))
    q, k, v = inputs()
    assert gap(layer(q, k, v), other_layer(q, k, v)) > 1e-3
    other_layer.load_state_dict(layer.state_dict())
    assert torch.equal(layer(q, k, v), other_layer(q, k, v))


@pytest.mark.parametrize("name", ZOO)
def test_every_mechanism_works_in_a_layer(name: str) -> None:
    layer = rs.nn.MultiHeadAttention(12, heads=4, kv_heads=2, mechanism=name, bias=True)
    x = random(1, 2, 5, 12).float()
    assert layer(x).shape == (2, 5, 12)
    assert layer.W_K.weight.shape == (6, 12)


@pytest.mark.parametrize("name", ZOO)
def test_call_constructs_no_mechanism(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds under a mask and with substituted parameters."""
    layer, x = rs.nn.MultiHeadAttention(12, heads=4, mechanism=name), random(1, 2, 5, 12).float()
    replacements = {path: 2 * parameter for path, parameter in layer.named_parameters()}
    mask = "causal" if layer.attention.mechanism.domain.allows_masks else None
    expected = copy.deepcopy(layer)
    expected.load_state_dict(replacements)
    constructions = record_constructions(monkeypatch)
    assert torch.equal(torch.func.functional_call(layer, replacements, x, {"mask": mask}), expected(x, mask=mask))
    assert not constructions


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(position=Rotary()),
        Mechanism(position=ALiBi(alibi_slopes(4))),
        Mechanism(position=LearnedPosition(random(2, 9, 4).float())),
        rs.mechanism("softmax_sink"),
        rs.mechanism("entmax15"),
    ],
    ids=["rotary", "alibi", "learned", "sink", "entmax"],
)
@pytest.mark.parametrize("steps", [(1, 1, 1, 1, 1, 1), (3, 1, 2)], ids=str)
def test_cached_output_equals_uncached_output(mechanism: Mechanism, steps: tuple[int, ...]) -> None:
    """Single tokens, or a prompt followed by tokens, produce the rows of the whole text."""
    layer, cache = rs.nn.MultiHeadAttention(16, heads=4, kv_heads=2, mechanism=mechanism), rs.nn.Cache()
    x = random(3, 2, 6, 16).float()
    out = torch.cat([layer(part, mask="causal", cache=cache) for part in x.split(steps, 1)], 1)
    assert len(cache) == 6
    assert gap(out, layer(x, mask="causal")) < 1e-5


def test_heads_are_column_blocks_of_the_projections() -> None:
    """Head h uses columns h · width of W_Q and key head h // 2; checked by hand for one head."""
    layer = rs.nn.MultiHeadAttention(8, heads=4, kv_heads=2, head_width=3).double()
    x = random(4, 1, 5, 8)
    q = x @ layer.W_Q.weight[9:12].T
    k, v = x @ layer.W_K.weight[3:6].T, x @ layer.W_V.weight[3:6].T
    last_head = torch.softmax(q @ k.mT / 3**0.5, -1) @ v
    with torch.no_grad():
        layer.W_O.weight[:, :9] = 0
    assert gap(layer(x), last_head @ layer.W_O.weight[:, 9:12].T) < 1e-12


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"heads": 3, "kv_heads": 2}, "multiple of kv_heads.*3 and 2; type heads=4, kv_heads=2"),
        ({"heads": 0}, "at least 1, got 0"),
        ({"heads": 16}, "width 8 is too small for 16 heads; type head_width=8"),
        ({"heads": 2, "mechanism": "metrik"}, "unknown mechanism 'metrik'"),
    ],
)
def test_invalid_heads_are_rejected(options: dict, expected: str) -> None:
    with pytest.raises(RheoscopeError, match=expected):
        rs.nn.MultiHeadAttention(8, **options)


def test_repr_names_score_and_normaliser() -> None:
    assert "score=Distance, normaliser=Softmax" in repr(rs.nn.Attention("metric"))
    assert "normaliser=Sink" in repr(rs.nn.Attention(COMPOSED["sink per head"]()))


def test_value_width_may_differ_from_head_width() -> None:
    """W_O maps h · d_v numbers back to the model width; single heads sum to the same output."""
    layer = rs.nn.MultiHeadAttention(12, heads=4, kv_heads=2, value_width=5).double()
    x = random(1, 2, 6, 12)
    assert (layer.W_V.weight.shape, layer.W_O.weight.shape) == ((10, 12), (12, 20))
    q, k = ((x @ W.weight.T).unflatten(-1, (-1, 3)).transpose(1, 2) for W in (layer.W_Q, layer.W_K))
    v = (x @ layer.W_V.weight.T).unflatten(-1, (-1, 5)).transpose(1, 2)
    sum_of_heads = sum(
        rs.mechanism("scaled_dot")(q[:, [h]], k[:, [h // 2]], v[:, [h // 2]])[:, 0]
        @ layer.W_O.weight[:, 5 * h : 5 * h + 5].T
        for h in range(4)
    )
    assert gap(layer(x), sum_of_heads) < 1e-12  # type: ignore[arg-type]

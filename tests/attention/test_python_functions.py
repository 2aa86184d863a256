"""Any Python function as a part: what it computes, on which ways, with which gradients."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import rheoscope as rs
from rheoscope.attention.definition import for_every_head
from rheoscope.attention.feature_maps import Residual, Tanh
from rheoscope.attention.lower import block_size
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.python_functions import functions
from rheoscope.attention.score import SoftCap
from tests.attention.cases import bent, gap, inputs, random, wave


class Learned(nn.Module):
    """A score with parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.B = nn.Parameter(random(3, 6, 6))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.tanh(q @ self.B @ k.mT)


def test_the_definition_with_functions_pair_by_pair() -> None:
    """o_i = sum_j softmax_j f(q_i, k_j) g(v_j), written out; key head h // 2 serves query head h."""
    q, k, v = inputs(3, 4)
    found = Mechanism(score=wave, value=bent)(q, k, v)
    for b, h, i in ((0, 0, 0), (1, 3, 2), (0, 2, 1)):
        s = [wave(q[b, h, i][None], k[b, h // 2, j][None])[0, 0] for j in range(4)]
        o = sum(a * bent(v[b, h // 2, j][None])[0] for j, a in enumerate(torch.stack(s).softmax(0)))
        assert gap(found[b, h, i], o) < 1e-12  # type: ignore[arg-type]


@pytest.mark.parametrize("wrapped", [False, True])
def test_parameters_of_a_function_get_their_gradient_on_the_block_path(
    wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks recompute what they do; what a function reads from elsewhere is followed all the same."""
    monkeypatch.setattr(block_size, "NEAR", 40)
    q, k, v = inputs(9, 9)
    found = []
    for lowering in ("reference", "blocks"):
        f = Learned()
        mechanism = Mechanism(score=f, value=bent)
        mechanism = replace(mechanism, score=SoftCap(mechanism.score, 0.7)) if wrapped else mechanism
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = mechanism(*leaves, mask="causal", lowering=lowering)
        found.append(torch.autograd.grad((out * random(4, *out.shape)).sum(), [f.B, *leaves]))
    assert max(gap(a, b) for a, b in zip(*found, strict=True)) < 1e-11


def test_long_texts_take_blocks_and_kernels_are_refused_with_a_reason() -> None:
    q = torch.empty(1, 8, 2048, 64)
    choice = Mechanism(score=wave).explain(q[:, :, :4], q[:, :, :4], q[:, :, :4])
    assert choice.name == "reference"
    far = Mechanism(score=wave).explain(torch.randn(1, 8, 2048, 4), torch.randn(1, 8, 2048, 4), q)
    assert far.name == "blocks"
    assert "wave, into which a kernel cannot look" in far.passed_over["sdpa"]


def test_a_value_map_alone_leaves_the_kernel_its_dot_products() -> None:
    q, k, v = inputs(5, 5)
    mapped = Mechanism(value=bent)
    assert mapped.explain(q, k, v).name == "sdpa"
    assert gap(mapped(q, k, v), Mechanism()(q, for_every_head(k, 4), bent(for_every_head(v, 4)))) < 1e-12


def test_a_module_is_trained_with_the_layer_that_holds_it() -> None:
    f = Learned()
    layer = rs.nn.Attention(Mechanism(score=f))
    assert [id(p) for p in layer.parameters()] == [id(f.B)]
    before = layer(*inputs(4, 4)).detach()
    optimiser = torch.optim.SGD(layer.parameters(), 1.0)
    layer(*inputs(4, 4)).square().sum().backward()
    optimiser.step()
    assert gap(layer(*inputs(4, 4)), before) > 1e-4


def test_functions_are_found_inside_other_parts() -> None:
    mechanism = Mechanism(score=SoftCap(Mechanism(score=wave).score, 1.0), value=bent)
    assert functions(mechanism) == [wave, bent]
    assert functions(Residual(Tanh(random(1, 3, 3), random(2, 1, 3), random(3, 3, 3)))) == []


def test_a_function_that_reads_no_keys_gives_them_no_gradient() -> None:
    mechanism = Mechanism(score=lambda q, k: q.sum(-1, keepdim=True).expand(*q.shape[:-1], k.shape[-2]))
    q, k, v = inputs(4, 5)
    found = rs.attention_gradients(mechanism, q, k, v, random(5, 2, 4, 4, 3))
    assert not found.k.any()
    constant = Mechanism(score=lambda q, k: torch.zeros(*q.shape[:-1], k.shape[-2], dtype=q.dtype))
    assert not rs.attention_gradients(constant, q, k, v, random(5, 2, 4, 4, 3)).q.any()

"""Tests of the distance to a gradient flow: symmetrised scores, the energy of a layer and its gain, against slow sums and autograd."""

import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.attention.definition import masked_scores
from rheoscope.flow.energy.head_updates import head_updates
from rheoscope.flow.energy.landscape import ignores_key_shifts
from rheoscope.models.transformer import build
from rheoscope.space.head import Heads, single_head_mechanism
from tests.cases import model, text, traced
from tests.flow.test_energy import cosine
from tests.flow.test_landscape import slow_energies
from tests.models.cases import tiny

F64 = torch.float64
KINDS = ["gpt2", "llama", "qwen3", "gemma3", "bert", "own_alibi", "own_sink"]


def slow_symmetric_energies(heads: Heads, x: Tensor, moving: Tensor, head: int) -> Tensor:
    """Λ_i (n) with ½(s_ij + s_ji), where token i moves in both scores and token j stays."""
    mechanism, positions = single_head_mechanism(heads.mechanism, head), torch.arange(len(x))
    gain = torch.ones(()) if heads.norm.gain is None else heads.norm.gain
    bias = torch.zeros(()) if heads.norm.bias is None else heads.norm.bias

    def sides(x_hat: Tensor) -> list[Tensor]:
        q, k = heads.select_head(*heads.project((x_hat * gain + bias)[None])[:2], head)
        if ignores_key_shifts(heads):
            k = k - heads.select_head(*heads.project((0 * x_hat[:1] * gain + bias)[None])[:2], head)[1]
        return [mechanism.position.encode(side, positions) for side in (q, k)]

    (q, k), (fixed_q, fixed_k) = sides(moving), sides(heads.norm.normalise(x))
    cap = float(getattr(mechanism.score, "cap", 0) or 0)

    def uncapped(a: Tensor, b: Tensor) -> Tensor:
        return a[0, 0] @ b[0, 0].mT * heads.scale

    s = (uncapped(q, fixed_k) + uncapped(fixed_q, k).mT) / 2
    s = cap * (s / cap).tanh() if cap else s
    rest = masked_scores(mechanism, 0 * fixed_q, 0 * fixed_k, positions, positions)[0, 0]
    total = (s + rest).exp().sum(-1)
    if hasattr(mechanism.normaliser, "sink"):
        total = total + torch.as_tensor(mechanism.normaliser.sink).exp()
    return (total / (rest > -torch.inf).sum(-1)).log()


@pytest.mark.parametrize("name", KINDS)
def test_symmetric_cosine_equals_autograd(name: str) -> None:
    trace = traced(name, F64)
    result, heads, x = rs.energy(trace, keep_massive=True), trace.view.layer_heads[1], trace.layer_input(1)
    displacement = trace.attention_parts(1)[0]
    for head in (0, heads.n_heads - 1):
        x_hat = heads.norm.normalise(x).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(slow_symmetric_energies(heads, x, x_hat, head).sum(), x_hat)
        expected = cosine(displacement[head], heads.norm.centre(gradient))
        assert float(result.symmetric_cosine[1, head]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_layer_fields_equal_slow_sums(name: str) -> None:
    trace = traced(name, F64)
    result, heads, x = rs.energy(trace, keep_massive=True), trace.view.layer_heads[1], trace.layer_input(1)
    updates, displacement = head_updates(trace, 1), trace.attention_parts(1)[0].sum(0)
    gradient = (updates.query_gradient @ updates.query_weights.mT).sum(0)
    assert float(result.layer_cosine[1]) == pytest.approx(cosine(displacement, gradient), abs=1e-5)
    sd = (displacement.mT @ gradient).norm() / x.shape[-1] ** 0.5 / displacement.norm() / gradient.norm()
    assert float(result.layer_cosine_null_sd[1]) == pytest.approx(float(sd), abs=1e-6)

    def summed_energy(cloud: Tensor) -> float:
        x_hat = heads.norm.normalise(cloud)
        return sum(float(slow_energies(heads, x, x_hat, head).mean()) for head in range(heads.n_heads))

    gains = [
        summed_energy(x + step) - summed_energy(x)
        for step in (displacement, gradient * displacement.norm() / gradient.norm())
    ]
    assert float(result.dissipation[1]) == pytest.approx(gains[0] / gains[1], rel=1e-3, abs=1e-4)


def test_symmetric_M_has_equal_cosines_and_other_scores_have_none() -> None:
    tied = rs.energy(rs.load(build(tiny(projection="tied"))).trace(text()), keep_massive=True)
    assert float(abs(tied.symmetric_cosine - tied.cosine).max()) <= 1e-6
    assert bool(rs.energy(model("own_metric").trace(text())).symmetric_cosine.isnull().all())

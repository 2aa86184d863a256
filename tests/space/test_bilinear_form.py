"""Forms as further columns of queries and keys: they are the model's own scores, and stay inside a cap."""

import torch
from torch import Generator

from rheoscope.attention.mechanism import Mechanism
from rheoscope.space.bilinear_form import columns, own_form, with_columns
from tests.cases import gap, traced

F64 = torch.float64


def test_a_change_inside_a_soft_cap_stays_inside() -> None:
    from rheoscope.attention.definition import reference
    from rheoscope.attention.score import Gram, SoftCap

    generator = Generator().manual_seed(0)
    q, k, v, a, b = (torch.randn(1, 2, 5, 4, generator=generator, dtype=F64) for _ in range(5))
    capped = Mechanism(SoftCap(Gram(scale=0.7), 2.0))
    mechanism, wide_q, wide_k = with_columns(capped, q, k, (a[0], b[0]))
    s = 2.0 * torch.tanh((0.7 * q @ k.mT + a @ b.mT) / 2.0)
    assert gap(reference(mechanism, wide_q, wide_k, v)[1], s.softmax(-1)) <= 1e-12


def test_columns_reproduce_the_models_own_scores() -> None:
    """The form as it is, between the tokens as they are: bias-free scores of the model."""
    trace = traced("llama_linear", F64)
    heads, x = trace.view.blocks[1], trace.read_by(1)
    hat = heads.norm.hat(x)
    q, k = columns(heads, own_form(heads), hat, hat)
    for head in range(heads.count):
        assert gap(q[head] @ k[head].mT, trace.scores(1, head)) <= 1e-5

"""Forms as extra columns of queries and keys: they reproduce the model's scores and stay inside a soft cap."""

import torch
from torch import Generator

from rheoscope.attention.mechanism import Mechanism
from rheoscope.space.bilinear_form import heads_form, query_key_columns, with_dot_columns
from tests.cases import gap, traced

F64 = torch.float64


def test_edit_stays_inside_the_soft_cap() -> None:
    from rheoscope.attention.definition import reference_attention
    from rheoscope.attention.score import Gram, SoftCap

    generator = Generator().manual_seed(0)
    q, k, v, a, b = (torch.randn(1, 2, 5, 4, generator=generator, dtype=F64) for _ in range(5))
    capped = Mechanism(SoftCap(Gram(scale=0.7), 2.0))
    mechanism, wide_q, wide_k = with_dot_columns(capped, q, k, (a[0], b[0]))
    s = 2.0 * torch.tanh((0.7 * q @ k.mT + a @ b.mT) / 2.0)
    assert gap(reference_attention(mechanism, wide_q, wide_k, v)[1], s.softmax(-1)) <= 1e-12


def test_columns_reproduce_the_scores_of_the_model() -> None:
    """The unedited form between the tokens equals the bias-free scores of the model."""
    trace = traced("llama_linear", F64)
    heads, x = trace.view.layer_heads[1], trace.layer_input(1)
    x_hat = heads.norm.normalise(x)
    q, k = query_key_columns(heads, heads_form(heads), x_hat, x_hat)
    for head in range(heads.n_heads):
        assert gap(q[head] @ k[head].mT, trace.scores(1, head)) <= 1e-5
